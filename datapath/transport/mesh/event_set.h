#pragma once
// The descriptors that a mesh watches, by epoll.

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {

/// Bits of epoll, and what the descriptor was added with.
struct Event {
  uint32_t bits;
  uint64_t data;
};

/// Not thread-safe; calls may come from one thread after the other, even when the former has ended.
class EventSet {
 public:
  explicit EventSet(UniqueFd epoll) : epoll_(std::move(epoll)) {}

  /// Watches `fd` for `bits` of epoll, with EPOLLET: whatever is true now, then whatever happens;
  /// EPOLLHUP and EPOLLERR are always reported. kUnavailable: the system refuses.
  Status Add(int fd, uint32_t bits, uint64_t data);
  /// What happened, at most 64 events; those that came later stay for the next call, which ends
  /// their lifetime. Waits at most for `timeout`, where 0 only looks, and may return nothing
  /// earlier. An event may be reported twice. kInternal: the system fails.
  StatusOr<std::span<const Event>> Wait(Duration timeout);
  /// Forgets every descriptor. No event is reported afterwards.
  void Clear();

 private:
  UniqueFd epoll_;
  std::array<Event, 64> events_;
};

/// kUnavailable: the system refuses, and why.
StatusOr<std::unique_ptr<EventSet>> MakeEventSet();

}  // namespace weir::mesh
