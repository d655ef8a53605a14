// Multishot polls: the kernel writes events to memory that it shares with us, so looking for news
// costs a load where epoll costs a system call.
//
// The kernel works for the thread that submitted a poll, which it interrupts for that, and cancels
// the polls of a thread that ends. So whoever waits first makes the polls its own.

#include <liburing.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <vector>

#include "datapath/transport/mesh/event_set.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {
namespace {

constexpr unsigned kSubmissions = 64, kCompletions = 1024;
constexpr uint64_t kRemoval = UINT64_MAX;  // the user_data of what says nothing

class IoUringSet : public EventSet {
 public:
  ~IoUringSet() override { Clear(); }

  Status Open() {
    io_uring_params params = {};
    params.flags = IORING_SETUP_CQSIZE;
    params.cq_entries = kCompletions;
    const int result = io_uring_queue_init_params(kSubmissions, &ring_, &params);
    if (result < 0) return Unavailable(StrCat("io_uring: ", Refusal(-result)));
    open_ = true;
    // Waits with a timeout, and what came with the same kernel as multishot polls.
    constexpr unsigned kNeeded = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP | IORING_FEAT_RSRC_TAGS;
    if ((params.features & kNeeded) == kNeeded) return OkStatus();
    return Unavailable("io_uring: the kernel has no multishot polls, which came with Linux 5.13");
  }

  Status Add(int fd, uint32_t bits, uint64_t data) override {
    if ((bits & EPOLLET) == 0) return InvalidArgument("io_uring: expected EPOLLET, found none");
    if (!open_) return Unavailable("io_uring: the set was cleared");
    watched_.push_back({fd, bits & ~uint32_t{EPOLLET}, data});
    return Adopt();
  }

  StatusOr<std::span<const Event>> Wait(Duration timeout) override {
    if (!open_) return std::span<const Event>();
    WEIR_RETURN_IF_ERROR(Adopt());
    size_t count = Take();
    // What was cancelled meanwhile is watched again before this thread sleeps.
    if (armed_ != watched_.size()) {
      WEIR_RETURN_IF_ERROR(Adopt());
      if (count == 0) count = Take();
    }
    if (count == 0 && timeout > Duration(0)) {
      WEIR_RETURN_IF_ERROR(Sleep(timeout));
      count = Take();
    }
    WEIR_RETURN_IF_ERROR(failure_);
    return std::span<const Event>(events_.data(), count);
  }

  void Clear() override {
    if (open_) io_uring_queue_exit(&ring_);
    open_ = false;
    watched_.clear();
    armed_ = 0;
  }

 private:
  struct Watched {
    int fd;
    uint32_t bits;
    uint64_t data;
    bool armed = false;
    uint32_t generation = 0;  // tells this poll's completions from those of former ones
  };

  static std::string Refusal(int error) {
    switch (error) {
      case ENOSYS:
        return "this kernel has none";
      case EPERM:
        return "not permitted here (kernel.io_uring_disabled, or a seccomp filter)";
      case ENOMEM:
        return "cannot allocate memory (ulimit -l)";
      default:
        return ErrorText(error);
    }
  }

  uint64_t Name(size_t i) const { return uint64_t{watched_[i].generation} << 32 | i; }

  // None when the kernel takes nothing now: completions have to be taken first.
  io_uring_sqe* Submission() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe != nullptr) return sqe;
    (void)io_uring_submit(&ring_);
    return io_uring_get_sqe(&ring_);
  }

  // Arms the polls that are not, all anew when the last ones were another thread's.
  Status Adopt() {
    const std::thread::id self = std::this_thread::get_id();
    if (self != owner_) Disown();
    owner_ = self;
    if (armed_ != watched_.size()) {
      for (size_t i = 0; i < watched_.size(); ++i) {
        if (watched_[i].armed) continue;
        io_uring_sqe* const sqe = Submission();
        if (sqe == nullptr) break;
        io_uring_prep_poll_multishot(sqe, watched_[i].fd, watched_[i].bits);
        io_uring_sqe_set_data64(sqe, Name(i));
        watched_[i].armed = true;
        ++armed_;
      }
    }
    if (io_uring_sq_ready(&ring_) == 0) return OkStatus();
    const int result = io_uring_submit(&ring_);
    // Busy or short of memory: the next call submits what is left.
    if (result >= 0 || result == -EBUSY || result == -EAGAIN || result == -EINTR) return OkStatus();
    return Unavailable(StrCat("io_uring: ", ErrorText(-result)));
  }

  // A poll that cannot be removed goes on under a name that nobody listens to.
  void Disown() {
    for (size_t i = 0; i < watched_.size(); ++i) {
      if (!watched_[i].armed) continue;
      if (io_uring_sqe* const sqe = Submission()) {
        io_uring_prep_poll_remove(sqe, Name(i));
        io_uring_sqe_set_data64(sqe, kRemoval);
      }
      ++watched_[i].generation;
      watched_[i].armed = false;
    }
    armed_ = 0;
  }

  Status Sleep(Duration timeout) {
    using std::chrono::seconds, std::chrono::duration_cast;
    timeout = std::min<Duration>(timeout, std::chrono::hours(1));
    const auto whole = duration_cast<seconds>(timeout);
    __kernel_timespec limit = {};
    limit.tv_sec = whole.count();
    limit.tv_nsec = duration_cast<std::chrono::nanoseconds>(timeout - whole).count();
    io_uring_cqe* cqe = nullptr;
    const int result = io_uring_wait_cqes(&ring_, &cqe, 1, &limit, nullptr);
    if (result == 0 || result == -ETIME || result == -EINTR || result == -EAGAIN ||
        result == -EBUSY) {
      return OkStatus();
    }
    return Internal(StrCat("io_uring: ", ErrorText(-result)));
  }

  // The events among the completions that are there. Those that did not fit into the ring are
  // fetched, too, by a system call.
  size_t Take() {
    io_uring_cqe* completed[std::tuple_size_v<decltype(events_)>];
    size_t count = 0;
    while (count == 0) {
      const unsigned n = io_uring_peek_batch_cqe(&ring_, completed, std::size(completed));
      for (unsigned i = 0; i < n; ++i) count += Read(*completed[i], &events_[count]) ? 1 : 0;
      io_uring_cq_advance(&ring_, n);
      if (n == 0) break;
    }
    return count;
  }

  bool Read(const io_uring_cqe& cqe, Event* event) {
    const uint64_t name = io_uring_cqe_get_data64(&cqe);
    const size_t i = static_cast<uint32_t>(name);
    if (name == kRemoval || i >= watched_.size() || name != Name(i)) return false;
    Watched& watched = watched_[i];
    if ((cqe.flags & IORING_CQE_F_MORE) == 0 && watched.armed) {
      watched.armed = false;
      ++watched.generation;
      --armed_;
    }
    if (cqe.res == -ECANCELED || cqe.res == -EAGAIN || cqe.res == -ENOMEM) return false;
    if (cqe.res < 0) {
      failure_ = Internal(StrCat("io_uring: poll: ", ErrorText(-cqe.res)));
      return false;
    }
    *event = {static_cast<uint32_t>(cqe.res), watched.data};
    return true;
  }

  io_uring ring_ = {};
  bool open_ = false;
  std::thread::id owner_;
  std::vector<Watched> watched_;
  size_t armed_ = 0;
  std::array<Event, 64> events_;
  Status failure_;
};

}  // namespace

StatusOr<std::unique_ptr<EventSet>> MakeIoUringSet() {
  auto set = std::make_unique<IoUringSet>();
  WEIR_RETURN_IF_ERROR(set->Open());
  return set;
}

}  // namespace weir::mesh
