// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/event_set.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

namespace weir::mesh {

Status EventSet::Add(int fd, uint32_t bits, uint64_t data) {
  epoll_event event = {};
  event.events = bits;
  event.data.u64 = data;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return OkStatus();
  return Unavailable(StrCat("epoll: ", ErrorText(errno)));
}

StatusOr<std::span<const Event>> EventSet::Wait(Duration timeout) {
  epoll_event news[std::tuple_size_v<decltype(events_)>];
  const int n = epoll_wait(epoll_.get(), news, std::size(news), PollTimeout(timeout));
  if (n < 0 && errno != EINTR) return Internal(StrCat("epoll: ", ErrorText(errno)));
  const size_t count = static_cast<size_t>(std::max(n, 0));
  for (size_t i = 0; i < count; ++i) events_[i] = {news[i].events, news[i].data.u64};
  return std::span<const Event>(events_.data(), count);
}

void EventSet::Clear() { epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC)); }

StatusOr<std::unique_ptr<EventSet>> MakeEventSet() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return Unavailable(StrCat("epoll: ", ErrorText(errno)));
  return std::make_unique<EventSet>(std::move(epoll));
}

}  // namespace weir::mesh
