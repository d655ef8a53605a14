#pragma once
// The descriptors that a mesh watches, and who tells of their events: epoll or io_uring.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::mesh {

/// Bits of epoll, and what the descriptor was added with.
struct Event {
  uint32_t bits;
  uint64_t data;
};

/// Not thread-safe; calls may come from one thread after the other, even when the former has ended.
class EventSet {
 public:
  virtual ~EventSet() = default;

  /// Watches `fd` for `bits` of epoll, with EPOLLET: whatever is true now, then whatever happens;
  /// EPOLLHUP and EPOLLERR are always told of. io_uring takes no bits without EPOLLET:
  /// kInvalidArgument. kUnavailable: the system refuses.
  virtual Status Add(int fd, uint32_t bits, uint64_t data) = 0;
  /// What happened, at most 64 events; those that came later stay for the next call, which ends
  /// their lifetime. Waits at most for `timeout`, where 0 only looks, and may return nothing
  /// earlier. An event may be told of twice. kInternal: the system fails.
  virtual StatusOr<std::span<const Event>> Wait(Duration timeout) = 0;
  /// Forgets every descriptor, before they are closed: io_uring keeps open what it watches. Nothing
  /// comes afterwards.
  virtual void Clear() = 0;
};

/// "epoll" or "io_uring". kInvalidArgument: another name; kUnimplemented: this build has no
/// io_uring; kUnavailable: the system refuses, and why.
StatusOr<std::unique_ptr<EventSet>> MakeEventSet(std::string_view name);

StatusOr<std::unique_ptr<EventSet>> MakeEpollSet();
/// Only where the build has liburing.
StatusOr<std::unique_ptr<EventSet>> MakeIoUringSet();

}  // namespace weir::mesh
