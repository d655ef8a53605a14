// SPDX-License-Identifier: Apache-2.0
#pragma once
// The set of descriptors that a mesh watches with epoll.

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {

/// Bits that epoll reported, and the data with which the descriptor was added.
struct Event {
  uint32_t bits;
  uint64_t data;
};

/// Not thread-safe. Different threads may call it one after the other.
class EventSet {
 public:
  explicit EventSet(UniqueFd epoll) : epoll_(std::move(epoll)) {}

  /// Watches `fd` for `bits` of epoll, with EPOLLET: reports once what is true now, and then every
  /// change. EPOLLHUP and EPOLLERR are always reported. kUnavailable: the system refuses.
  Status Add(int fd, uint32_t bits, uint64_t data);
  /// Returns the events that have happened, at most 64; the next call returns the others. The span
  /// is valid until the next call. Waits at most for `timeout` (0: not at all) and may return none
  /// earlier. An event may be reported twice. kInternal: the system fails.
  StatusOr<std::span<const Event>> Wait(Duration timeout);
  /// Forgets every descriptor. No event is reported afterwards.
  void Clear();

 private:
  UniqueFd epoll_;
  std::array<Event, 64> events_;
};

/// kUnavailable: the system refuses; the text says why.
StatusOr<std::unique_ptr<EventSet>> MakeEventSet();

}  // namespace weir::mesh
