// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sends from the caller's memory without a copy (MSG_ZEROCOPY), and the kernel's reports of when it
// no longer reads that memory. Source: the kernel's Documentation/networking/msg_zerocopy.rst.

#include <cstddef>
#include <cstdint>
#include <deque>

namespace weir::tcp {

/// The bytes of one socket that were given to the kernel without a copy. Not thread-safe.
class ZeroCopy {
 public:
  /// With bytes_min 0, or a kernel that does not support it, nothing is sent without a copy.
  ZeroCopy(int fd, size_t bytes_min);

  /// Whether a buffer of `bytes` should go without a copy.
  bool Wants(size_t bytes) const { return on_ && bytes >= bytes_min_; }
  /// A call took `bytes`, at least 1.
  void Wrote(size_t bytes, bool zero_copy);
  /// Reads the kernel's reports and returns how many of the last bytes written the kernel may still
  /// read. Takes one system call per report when reports are missing, else none.
  size_t Retained();
  /// Whether anything was sent without a copy; the socket then has reports, which epoll shows as
  /// errors.
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
  uint32_t issued_ = 0;     // calls, numbered as the kernel numbers them
  std::deque<Call> calls_;  // from the first one that is not complete
};

}  // namespace weir::tcp
