#pragma once
// Sending from the caller's memory without a copy (MSG_ZEROCOPY), and when the kernel is through
// with that memory. Source: the kernel's Documentation/networking/msg_zerocopy.rst.

#include <cstddef>
#include <cstdint>
#include <deque>

namespace weir::tcp {

/// The bytes of one socket that were given to the kernel without a copy. Not thread-safe.
class ZeroCopy {
 public:
  /// bytes_min 0, or a kernel that cannot: nothing is sent so.
  ZeroCopy(int fd, size_t bytes_min);

  /// Whether a buffer of `bytes` should go without a copy.
  bool Wants(size_t bytes) const { return on_ && bytes >= bytes_min_; }
  /// A call took `bytes`, at least 1.
  void Wrote(size_t bytes, bool zero_copy);
  /// Reads the kernel's reports. Of all bytes written, how many at the end it may still read. One
  /// system call per report when some are missing, else none.
  size_t Retained();
  /// Something was sent so: the socket has reports, which epoll shows as errors.
  bool used() const { return issued_ > 0; }
  bool on() const { return on_; }

 private:
  struct Call {
    uint64_t begins = 0;  // position of its first byte
    bool over = false;
  };
  bool TakeReport();

  const int fd_;
  const size_t bytes_min_;
  bool on_ = false;
  uint64_t written_ = 0;
  uint32_t issued_ = 0;     // calls; the kernel numbers them alike
  std::deque<Call> calls_;  // from the first that is not over
};

}  // namespace weir::tcp
