#include "datapath/transport/builtin/shm/ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weir::shm {

void RingEnd::Ring() const {
  if (bell < 0) return;
  const uint64_t one = 1;
  // Cannot fail but by overflow, and then the bell has rung already.
  [[maybe_unused]] const ssize_t n = write(bell, &one, sizeof one);
}

// ---- writing

size_t RingWriter::Room(size_t wanted) {
  const auto room = [&] { return end_.capacity - static_cast<size_t>(written_ - read_); };
  if (broken_ || room() >= wanted) return broken_ ? 0 : room();
  read_ = end_.control->read.load(std::memory_order_acquire);
  broken_ = written_ - read_ > end_.capacity;
  return broken_ ? 0 : room();
}

// Asking for a piece's pages in one call takes two thirds of the time of faulting them in one by
// one. Best effort: without, they come at the first touch.
void RingWriter::Populate(size_t end) {
  const size_t to = std::min(std::max(end, populated_ + kRingPieceBytes), end_.capacity);
  madvise(end_.data + populated_, to - populated_, MADV_POPULATE_WRITE);
  populated_ = to;
}

// The reader has read all there is, so it looks for more next, and finds the new origin with it.
void RingWriter::Rewind() {
  if (end_.capacity <= kRingRewindBytes || written_ - origin_ < kRingRewindBytes) return;
  if (end_.control->read.load(std::memory_order_acquire) != written_) return;
  origin_ = read_ = written_;
  end_.control->origin.store(origin_, std::memory_order_relaxed);
}

void RingWriter::Publish() {
  published_ = written_;
  end_.control->written.store(written_, std::memory_order_seq_cst);
  std::atomic<uint32_t>& sleeps = end_.control->reader_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) != 0 && sleeps.exchange(0) != 0) end_.Ring();
}

ssize_t RingWriter::Write(std::span<const iovec> parts) {
  size_t total = 0;
  Rewind();
  for (const iovec& part : parts) {
    size_t at = 0;
    while (at < part.iov_len) {
      const size_t room = Room(part.iov_len - at);
      const size_t offset = static_cast<size_t>(written_ - origin_) & (end_.capacity - 1);
      const size_t n = std::min({part.iov_len - at, room, end_.capacity - offset, kRingPieceBytes});
      if (n == 0) break;
      if (offset + n > populated_) Populate(offset + n);
      std::memcpy(end_.data + offset, static_cast<const std::byte*>(part.iov_base) + at, n);
      written_ += n;
      at += n;
      total += n;
      if (written_ - published_ >= kRingPieceBytes) Publish();
    }
    if (at < part.iov_len) break;
  }
  if (published_ != written_) Publish();
  if (broken_) return -EPROTO;
  return total > 0 ? static_cast<ssize_t>(total) : -EAGAIN;
}

bool RingWriter::PrepareSleep() {
  end_.control->writer_sleeps.store(1, std::memory_order_seq_cst);
  return end_.control->read.load(std::memory_order_seq_cst) == read_ && !Writable();
}

// ---- reading

size_t RingReader::Available() {
  if (!broken_ && written_ == read_) {
    written_ = end_.control->written.load(std::memory_order_acquire);
    origin_ = end_.control->origin.load(std::memory_order_relaxed);
    broken_ = written_ - read_ > end_.capacity;
  }
  return broken_ ? 0 : static_cast<size_t>(written_ - read_);
}

void RingReader::Release() {
  released_ = read_;
  end_.control->read.store(read_, std::memory_order_seq_cst);
  std::atomic<uint32_t>& sleeps = end_.control->writer_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) == 0) return;
  const bool half_empty = written_ - read_ <= end_.capacity / 2;
  if (half_empty && sleeps.exchange(0) != 0) end_.Ring();
}

ssize_t RingReader::Read(std::span<const iovec> parts) {
  size_t total = 0;
  for (const iovec& part : parts) {
    size_t at = 0;
    while (at < part.iov_len) {
      const size_t available = Available();  // tells the origin, too
      const size_t offset = static_cast<size_t>(read_ - origin_) & (end_.capacity - 1);
      const size_t n =
          std::min({part.iov_len - at, available, end_.capacity - offset, kRingPieceBytes});
      if (n == 0) break;
      std::memcpy(static_cast<std::byte*>(part.iov_base) + at, end_.data + offset, n);
      read_ += n;
      at += n;
      total += n;
      if (read_ - released_ >= kRingPieceBytes) Release();
    }
    if (at < part.iov_len) break;
  }
  if (released_ != read_) Release();
  if (broken_ && total == 0) return -EPROTO;
  return total > 0 ? static_cast<ssize_t>(total) : -EAGAIN;
}

void RingReader::TurnEnds() {
  std::atomic<uint32_t>& sleeps = end_.control->writer_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) == 0) return;
  const uint64_t unread = end_.control->written.load(std::memory_order_relaxed) - read_;
  if (unread < end_.capacity && sleeps.exchange(0) != 0) end_.Ring();
}

bool RingReader::PrepareSleep() {
  end_.control->reader_sleeps.store(1, std::memory_order_seq_cst);
  return end_.control->written.load(std::memory_order_seq_cst) == read_ && !broken_;
}

}  // namespace weir::shm
