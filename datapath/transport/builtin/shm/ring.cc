// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace weir::shm {

void RingEnd::Wake() const {
  if (event_fd < 0) return;
  const uint64_t one = 1;
  // This fails only if the counter is full, and then the other end is being woken already.
  [[maybe_unused]] const ssize_t n = write(event_fd, &one, sizeof one);
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
// one. An error does not matter: the pages then come at the first access.
void RingWriter::Populate(size_t end) {
  const size_t to = std::min(std::max(end, populated_ + kRingPieceBytes), end_.capacity);
  madvise(end_.data + populated_, to - populated_, MADV_POPULATE_WRITE);
  populated_ = to;
}

// Moves the origin only when the reader has read everything. The reader then looks for a new
// position next and finds the new origin together with it.
void RingWriter::Rewind() {
  if (end_.capacity <= kRingRewindBytes || written_ - origin_ < kRingRewindBytes) return;
  if (end_.control->read.load(std::memory_order_acquire) != written_) return;
  origin_ = read_ = written_;
  end_.control->origin.store(origin_, std::memory_order_relaxed);
}

void RingWriter::Publish() {
  published_ = written_;
  exported_ = false;
  end_.control->written.store(written_, std::memory_order_seq_cst);
  std::atomic<uint32_t>& sleeps = end_.control->reader_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) != 0 && sleeps.exchange(0) != 0) end_.Wake();
}

ssize_t RingWriter::Write(std::span<const iovec> parts) {
  size_t total = 0;
  Rewind();
  for (const iovec& part : parts) {
    const std::span bytes(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    size_t at = 0;
    if (exporter_.Export(written_, taken_ + total, bytes)) {
      exported_ = true;
      at = bytes.size();
      total += at;
    }
    while (at < bytes.size()) {
      const size_t room = Room(bytes.size() - at);
      const size_t offset = static_cast<size_t>(written_ - origin_) & (end_.capacity - 1);
      const size_t n = std::min({bytes.size() - at, room, end_.capacity - offset, kRingPieceBytes});
      if (n == 0) break;
      if (offset + n > populated_) Populate(offset + n);
      std::memcpy(end_.data + offset, bytes.data() + at, n);
      written_ += n;
      at += n;
      total += n;
      if (written_ - published_ >= kRingPieceBytes) Publish();
    }
    if (at < bytes.size()) break;
  }
  if (published_ != written_ || exported_) Publish();
  broken_ = broken_ || exporter_.broken();
  taken_ += total;
  if (broken_) return -EPROTO;
  return total > 0 ? static_cast<ssize_t>(total) : -EAGAIN;
}

bool RingWriter::PrepareSleep() {
  end_.control->writer_sleeps.store(1, std::memory_order_seq_cst);
  return end_.control->read.load(std::memory_order_seq_cst) == read_ && !Writable();
}

// ---- reading

// The bytes in the ring that come before the next exported piece.
size_t RingReader::Available() {
  if (error_ == 0 && written_ == read_) {
    written_ = end_.control->written.load(std::memory_order_acquire);
    origin_ = end_.control->origin.load(std::memory_order_relaxed);
    importer_.Look();
    if (written_ - read_ > end_.capacity || importer_.broken()) error_ = -EPROTO;
  }
  if (importer_.open() && importer_.at() - read_ > end_.capacity) error_ = -EPROTO;
  if (error_ != 0) return 0;
  return static_cast<size_t>((importer_.open() ? std::min(importer_.at(), written_) : written_) -
                             read_);
}

void RingReader::Release() {
  released_ = read_;
  end_.control->read.store(read_, std::memory_order_seq_cst);
  std::atomic<uint32_t>& sleeps = end_.control->writer_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) == 0) return;
  const bool half_empty = written_ - read_ <= end_.capacity / 2;
  if (half_empty && sleeps.exchange(0) != 0) end_.Wake();
}

// Reads at most to the end of the memory or of a piece. Returns 0 if the ring has no bytes.
size_t RingReader::ReadRing(std::span<std::byte> out) {
  const size_t available = Available();  // updates origin_, too
  const size_t offset = static_cast<size_t>(read_ - origin_) & (end_.capacity - 1);
  const size_t n = std::min({out.size(), available, end_.capacity - offset, kRingPieceBytes});
  if (n > 0) std::memcpy(out.data(), end_.data + offset, n);
  read_ += n;
  if (read_ - released_ >= kRingPieceBytes) Release();
  return n;
}

size_t RingReader::ReadExported(std::span<std::byte> out) {
  bool awaited = false;
  const ssize_t n = importer_.Read(out, &awaited);
  if (awaited) end_.Wake();
  if (n < 0) error_ = static_cast<int>(n);
  return n < 0 ? 0 : static_cast<size_t>(n);
}

ssize_t RingReader::Read(std::span<const iovec> parts) {
  size_t total = 0;
  for (const iovec& part : parts) {
    std::span out(static_cast<std::byte*>(part.iov_base), part.iov_len);
    while (!out.empty()) {
      size_t n = ReadRing(out);
      if (n == 0 && ExportIsNext() && error_ == 0) {
        // The look-ahead for the next header must not take the first bytes of a payload, which
        // would then be copied twice.
        if (total > 0 && out.size() < kImportBytesMin) break;
        n = ReadExported(out);
      }
      if (n == 0) break;
      out = out.subspan(n);
      total += n;
    }
    if (!out.empty()) break;
  }
  if (released_ != read_) Release();
  if (total > 0) return static_cast<ssize_t>(total);
  if (error_ == 0) return -EAGAIN;
  return error_ == -ECONNRESET ? std::exchange(error_, 0) : error_;
}

void RingReader::TurnEnds() {
  std::atomic<uint32_t>& sleeps = end_.control->writer_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) == 0) return;
  const uint64_t unread = end_.control->written.load(std::memory_order_relaxed) - read_;
  if (unread < end_.capacity && sleeps.exchange(0) != 0) end_.Wake();
}

bool RingReader::PrepareSleep() {
  end_.control->reader_sleeps.store(1, std::memory_order_seq_cst);
  return end_.control->written.load(std::memory_order_seq_cst) == read_ && importer_.NoNews() &&
         !importer_.open() && error_ == 0;
}

}  // namespace weir::shm
