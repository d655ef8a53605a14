// The rings and segments below the shm transport: order, bounds, wake-ups, and memory of peers that
// are not to be trusted.

#include "datapath/transport/builtin/shm/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/transport/builtin/shm/segment.h"

namespace weir::shm {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCapacity = 4096;

// Both ends of one ring, with a bell for each.
struct RingPair {
  mesh::UniqueFd reader_bell{eventfd(0, EFD_NONBLOCK)}, writer_bell{eventfd(0, EFD_NONBLOCK)};
  mesh::UniqueFd fd;
  StatusOr<Segment> segment = Segment::Create(kCapacity, &fd);
  RingControl* control = segment->End(0, -1).control;
  RingWriter writer{segment->End(0, reader_bell.get())};
  RingReader reader{segment->End(0, writer_bell.get())};
};

bool HasRung(const mesh::UniqueFd& bell) {
  uint64_t count = 0;
  return read(bell.get(), &count, sizeof count) == sizeof count;
}

ssize_t Write(RingWriter& writer, std::span<const uint8_t> bytes) {
  const iovec part = {const_cast<uint8_t*>(bytes.data()), bytes.size()};
  return writer.Write(std::span(&part, 1));
}

ssize_t Read(RingReader& reader, std::span<uint8_t> bytes) {
  const iovec part = {bytes.data(), bytes.size()};
  return reader.Read(std::span(&part, 1));
}

TEST(ShmRingTest, PartsOfEverySizeComeOutInOrder) {
  RingPair ring;
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  uint64_t next_written = 0, next_read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> first(random.Below(600)), second(random.Below(3000));
    uint64_t value = next_written;
    for (uint8_t& byte : first) byte = static_cast<uint8_t>(value++ * 7);
    for (uint8_t& byte : second) byte = static_cast<uint8_t>(value++ * 7);
    const iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
    const ssize_t written = ring.writer.Write(parts);
    if (written == -EAGAIN) {
      ASSERT_TRUE(next_written - next_read == kCapacity || first.size() + second.size() == 0);
    } else {
      next_written += static_cast<uint64_t>(written);
    }
    std::vector<uint8_t> out(1 + random.Below(5000));
    const ssize_t n = Read(ring.reader, out);
    if (n == -EAGAIN) {
      ASSERT_EQ(next_read, next_written);
      continue;
    }
    for (ssize_t i = 0; i < n; ++i) {
      ASSERT_EQ(out[static_cast<size_t>(i)], static_cast<uint8_t>(next_read++ * 7));
    }
  }
  EXPECT_GT(next_read, 20u * kCapacity);
}

TEST(ShmRingTest, TakesExactlyItsCapacity) {
  RingPair ring;
  const std::vector<uint8_t> bytes(kCapacity + 1);
  EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kCapacity));
  EXPECT_FALSE(ring.writer.Writable());
  EXPECT_EQ(Write(ring.writer, bytes), -EAGAIN);
  std::vector<uint8_t> out(1);
  EXPECT_EQ(Read(ring.reader, out), 1);
  EXPECT_TRUE(ring.writer.Writable());
  EXPECT_EQ(Write(ring.writer, bytes), 1);
}

TEST(ShmRingTest, EmptyRingBehindTheRewindMarkStartsAtItsBeginning) {
  mesh::UniqueFd fd;
  StatusOr<Segment> segment = Segment::Create(4 * kRingRewindBytes, &fd);
  ASSERT_TRUE(segment.ok());
  const RingEnd end = segment->End(0, -1);
  RingWriter writer(end);
  RingReader reader(end);
  std::vector<uint8_t> bytes(4 * kRingRewindBytes), out(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 >> 3);
  size_t written = 0, read = 0;  // counts that start again with `bytes`
  const auto write = [&](size_t n) {
    ASSERT_EQ(Write(writer, std::span(bytes).subspan(written, n)), static_cast<ssize_t>(n));
    written += n;
  };
  const auto read_all = [&] {
    const size_t n = written - read;
    ASSERT_EQ(Read(reader, out), static_cast<ssize_t>(n));
    ASSERT_TRUE(std::equal(out.begin(), out.begin() + static_cast<ssize_t>(n),
                           bytes.begin() + static_cast<ssize_t>(read)));
    read += n;
  };
  write(kRingRewindBytes - 1);
  read_all();
  write(1);
  EXPECT_EQ(end.control->origin.load(), 0u) << "before the mark";
  read_all();
  write(kRingRewindBytes);
  EXPECT_EQ(end.control->origin.load(), kRingRewindBytes);
  EXPECT_EQ(end.data[0], static_cast<std::byte>(bytes[kRingRewindBytes]));
  write(1);
  EXPECT_EQ(end.control->origin.load(), kRingRewindBytes) << "not all was read";
  read_all();
  written = read = 0;
  write(bytes.size());
  EXPECT_EQ(end.control->origin.load(), 2 * kRingRewindBytes + 1);
  EXPECT_FALSE(writer.Writable());
  read_all();
}

TEST(ShmRingTest, PositionsThatCannotBeAreFoundByBothEnds) {
  for (const uint64_t position : {uint64_t{1}, uint64_t{kCapacity + 1}, UINT64_MAX - kCapacity}) {
    RingPair ring;
    // The reader claims to have read what was never written.
    ring.control->read.store(position);
    const std::vector<uint8_t> bytes(kCapacity + 1);
    EXPECT_EQ(Write(ring.writer, bytes), -EPROTO) << position;
    EXPECT_TRUE(ring.writer.Writable());
  }
  for (const uint64_t position : {uint64_t{kCapacity + 1}, UINT64_MAX}) {
    RingPair ring;
    ring.control->written.store(position);
    std::vector<uint8_t> out(10);
    EXPECT_TRUE(ring.reader.Readable());
    EXPECT_EQ(Read(ring.reader, out), -EPROTO) << position;
  }
}

TEST(ShmRingTest, OnlySleepersAreWoken) {
  RingPair ring;
  const std::vector<uint8_t> bytes(kCapacity);
  std::vector<uint8_t> out(kCapacity);
  EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kCapacity));
  EXPECT_FALSE(HasRung(ring.reader_bell));
  EXPECT_FALSE(ring.reader.PrepareSleep()) << "bytes are there";
  ring.reader.Awake();
  EXPECT_TRUE(ring.writer.PrepareSleep());
  EXPECT_EQ(Read(ring.reader, std::span(out).first(100)), 100);
  EXPECT_FALSE(HasRung(ring.writer_bell)) << "it would be woken for every piece";
  ring.reader.TurnEnds();
  EXPECT_TRUE(HasRung(ring.writer_bell));
  EXPECT_FALSE(ring.writer.PrepareSleep()) << "there is room";
  EXPECT_EQ(Read(ring.reader, out), static_cast<ssize_t>(kCapacity) - 100);
  EXPECT_TRUE(HasRung(ring.writer_bell));
  EXPECT_TRUE(ring.reader.PrepareSleep());
  EXPECT_EQ(Write(ring.writer, std::span(bytes).first(1)), 1);
  EXPECT_TRUE(HasRung(ring.reader_bell));
  EXPECT_EQ(Write(ring.writer, std::span(bytes).first(1)), 1);
  EXPECT_FALSE(HasRung(ring.reader_bell)) << "once is enough";
}

// Two threads that sleep whenever they can: a lost wake-up ends in the poll's time-out.
TEST(ShmRingTest, NoWakeUpIsLost) {
  RingPair ring;
  constexpr uint64_t kBytes = 8 << 20;
  constexpr int kPatienceMs = 20000;
  const auto sleep = [](const mesh::UniqueFd& bell) {
    pollfd entry = {bell.get(), POLLIN, 0};
    const bool woken = poll(&entry, 1, kPatienceMs) == 1;
    HasRung(bell);
    return woken;
  };
  std::thread writer([&] {
    Random random(1);
    const std::vector<uint8_t> bytes(2 * kCapacity, 1);
    for (uint64_t sent = 0; sent < kBytes;) {
      const uint64_t size = std::min(1 + random.Below(bytes.size()), kBytes - sent);
      const ssize_t n = Write(ring.writer, std::span(bytes).first(size));
      if (n > 0) sent += static_cast<uint64_t>(n);
      const bool may_sleep = n == -EAGAIN && ring.writer.PrepareSleep();
      ASSERT_TRUE(!may_sleep || sleep(ring.writer_bell)) << sent;
      ring.writer.Awake();
    }
  });
  Random random(2);
  std::vector<uint8_t> out(2 * kCapacity);
  for (uint64_t received = 0; received < kBytes;) {
    const ssize_t n = Read(ring.reader, std::span(out).first(1 + random.Below(out.size())));
    if (n > 0) received += static_cast<uint64_t>(n);
    ring.reader.TurnEnds();
    if (n == -EAGAIN && ring.reader.PrepareSleep() && !sleep(ring.reader_bell)) {
      ADD_FAILURE() << "lost after " << received << " bytes";
      _exit(1);  // the writer waits for ever
    }
    ring.reader.Awake();
  }
  writer.join();
}

TEST(ShmSegmentTest, MemoryOfAPeerIsCheckedBeforeItIsMapped) {
  mesh::UniqueFd fd;
  ASSERT_TRUE(Segment::Create(kCapacity, &fd).ok());
  EXPECT_TRUE(Segment::Map(fd.get(), kCapacity).ok());
  EXPECT_NE(ftruncate(fd.get(), 0), 0) << "the size is sealed";
  const auto refusal = [](int descriptor, uint64_t ring_bytes) {
    const Status status = Segment::Map(descriptor, ring_bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    return weir::Message(status);
  };
  EXPECT_THAT(refusal(fd.get(), 2 * kCapacity), HasSubstr("expected 20480 bytes, found 12288"));
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{5000}, uint64_t{1} << 62, UINT64_MAX}) {
    EXPECT_THAT(refusal(fd.get(), bytes), HasSubstr("power of two"));
  }
  const mesh::UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kControlBytes + 2 * kCapacity), 0);
  EXPECT_THAT(refusal(unsealed.get(), kCapacity), HasSubstr("sealed"));
}

}  // namespace
}  // namespace weir::shm
