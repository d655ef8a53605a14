// SPDX-License-Identifier: Apache-2.0
// The rings and segments below the shm transport: order, bounds, wake-ups, and memory of untrusted
// peers.

#include "datapath/transport/builtin/shm/ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/transport/builtin/shm/rendezvous_socket.h"
#include "datapath/transport/builtin/shm/segment.h"

namespace weir::shm {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCapacity = 4096;

// Both ends of one ring, with an eventfd for each.
struct RingPair {
  mesh::UniqueFd reader_event_fd{eventfd(0, EFD_NONBLOCK)},
      writer_event_fd{eventfd(0, EFD_NONBLOCK)};
  mesh::UniqueFd fd;
  StatusOr<Segment> segment = Segment::Create(kCapacity, &fd);
  RingControl* control = segment->End(0, -1).control;
  RingWriter writer{segment->End(0, reader_event_fd.get())};
  RingReader reader{segment->End(0, writer_event_fd.get())};
};

bool WasSignalled(const mesh::UniqueFd& event_fd) {
  uint64_t count = 0;
  return read(event_fd.get(), &count, sizeof count) == sizeof count;
}

// Sleeps until the eventfd is signalled. Returns false if that takes more than 20 s.
bool IsWoken(const mesh::UniqueFd& event_fd) {
  constexpr int kPatienceMs = 20000;
  pollfd entry = {event_fd.get(), POLLIN, 0};
  const bool woken = poll(&entry, 1, kPatienceMs) == 1;
  WasSignalled(event_fd);
  return woken;
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
    // The reader claims to have read bytes that were never written.
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
  EXPECT_FALSE(WasSignalled(ring.reader_event_fd));
  EXPECT_FALSE(ring.reader.PrepareSleep()) << "bytes are there";
  ring.reader.Awake();
  EXPECT_TRUE(ring.writer.PrepareSleep());
  EXPECT_EQ(Read(ring.reader, std::span(out).first(100)), 100);
  EXPECT_FALSE(WasSignalled(ring.writer_event_fd)) << "it would be woken for every piece";
  ring.reader.TurnEnds();
  EXPECT_TRUE(WasSignalled(ring.writer_event_fd));
  EXPECT_FALSE(ring.writer.PrepareSleep()) << "there is room";
  EXPECT_EQ(Read(ring.reader, out), static_cast<ssize_t>(kCapacity) - 100);
  EXPECT_TRUE(WasSignalled(ring.writer_event_fd));
  EXPECT_TRUE(ring.reader.PrepareSleep());
  EXPECT_EQ(Write(ring.writer, std::span(bytes).first(1)), 1);
  EXPECT_TRUE(WasSignalled(ring.reader_event_fd));
  EXPECT_EQ(Write(ring.writer, std::span(bytes).first(1)), 1);
  EXPECT_FALSE(WasSignalled(ring.reader_event_fd)) << "once is enough";
}

// Two threads sleep whenever they can, so a lost wake-up would show as a time-out of poll.
TEST(ShmRingTest, NoWakeUpIsLost) {
  RingPair ring;
  constexpr uint64_t kBytes = 8 << 20;
  std::thread writer([&] {
    Random random(1);
    const std::vector<uint8_t> bytes(2 * kCapacity, 1);
    for (uint64_t sent = 0; sent < kBytes;) {
      const uint64_t size = std::min(1 + random.Below(bytes.size()), kBytes - sent);
      const ssize_t n = Write(ring.writer, std::span(bytes).first(size));
      if (n > 0) sent += static_cast<uint64_t>(n);
      const bool may_sleep = n == -EAGAIN && ring.writer.PrepareSleep();
      ASSERT_TRUE(!may_sleep || IsWoken(ring.writer_event_fd)) << sent;
      ring.writer.Awake();
    }
  });
  Random random(2);
  std::vector<uint8_t> out(2 * kCapacity);
  for (uint64_t received = 0; received < kBytes;) {
    const ssize_t n = Read(ring.reader, std::span(out).first(1 + random.Below(out.size())));
    if (n > 0) received += static_cast<uint64_t>(n);
    ring.reader.TurnEnds();
    if (n == -EAGAIN && ring.reader.PrepareSleep() && !IsWoken(ring.reader_event_fd)) {
      ADD_FAILURE() << "lost after " << received << " bytes";
      _exit(1);  // the writer waits for ever
    }
    ring.reader.Awake();
  }
  writer.join();
}

// ---- direct reads

constexpr size_t kLong = 2 * kDirectReadBytesMin;

// A ring whose reader may read this process's memory, which stands for the writer's.
struct DirectReadPair : RingPair {
  static std::array<int, 2> MakeSockets() {
    std::array<int, 2> made;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, made.data()), 0);
    return made;
  }
  ~DirectReadPair() {
    close(sockets[0]);
    close(sockets[1]);
  }
  // The reader says that it can import when it looks for the first time.
  void Meet() {
    std::vector<uint8_t> byte(1);
    ASSERT_EQ(Write(writer, byte), 1);
    ASSERT_EQ(Read(reader, byte), 1);
    ASSERT_EQ(control->direct.imports.load(), 1u);
  }

  const std::array<int, 2> sockets = MakeSockets();
  mesh::UniqueFd process = WatchProcess(getpid());
  PeerMemory memory{getpid(), process.get(), sockets[0]};
  RingReader reader{segment->End(0, writer_event_fd.get()), &memory};
};

std::vector<uint8_t> Numbered(size_t size, uint64_t seed) {
  std::vector<uint8_t> bytes(size);
  Random random(seed);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  return bytes;
}

TEST(ShmDirectReadTest, LongPartsComeInTheirPlaceWithoutPassingThroughTheRing) {
  DirectReadPair ring;
  ring.Meet();
  std::vector<uint8_t> head = Numbered(100, 1), body = Numbered(kLong, 2), tail = Numbered(50, 3);
  const iovec parts[] = {
      {head.data(), head.size()}, {body.data(), body.size()}, {tail.data(), tail.size()}};
  const size_t all = head.size() + body.size() + tail.size();
  EXPECT_EQ(ring.writer.Write(parts), static_cast<ssize_t>(all));
  EXPECT_EQ(ring.control->written.load(), 1 + head.size() + tail.size());
  EXPECT_EQ(ring.writer.Retained(), body.size() + tail.size());
  body[0] ^= 1;  // the reader reads the memory only when it reads the stream

  std::vector<uint8_t> out(all);
  size_t read = 0;
  const auto take = [&](size_t most) {
    const ssize_t n = Read(ring.reader, std::span(out).subspan(read, most));
    ASSERT_GT(n, 0);
    read += static_cast<size_t>(n);
  };
  take(head.size() + 8);
  EXPECT_EQ(read, head.size())
      << "the look-ahead must not take the first bytes of an exported piece";
  take(kDirectReadBytesMin);
  take(body.size() - kDirectReadBytesMin - 1);
  EXPECT_FALSE(ring.writer.exporter().Released());
  EXPECT_EQ(ring.writer.Retained(), body.size() + tail.size());
  take(1);
  EXPECT_TRUE(ring.writer.exporter().Released());
  EXPECT_EQ(ring.writer.Retained(), 0u);
  EXPECT_FALSE(ring.writer.exporter().Released()) << "no more than Retained has told";
  take(tail.size());
  EXPECT_TRUE(std::equal(head.begin(), head.end(), out.begin()));
  EXPECT_TRUE(std::equal(body.begin(), body.end(), out.begin() + 100));
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), out.end() - 50));
  EXPECT_EQ(Read(ring.reader, out), -EAGAIN);
}

TEST(ShmDirectReadTest, ShortAndLongPartsOfEverySizeComeOutInOrder) {
  DirectReadPair ring;
  ring.Meet();
  constexpr uint64_t kSeed = 8;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  struct Sent {
    std::vector<uint8_t> bytes;  // must not move: they may be exported
    size_t taken = 0, read = 0;
  };
  std::deque<Sent> sent;  // not read yet
  size_t long_parts = 0, retained_max = 0;
  std::vector<uint8_t> out(3 * kLong);
  for (int round = 0; round < 6000; ++round) {
    if (sent.empty() || sent.back().taken == sent.back().bytes.size()) {
      const bool is_long = random.Below(4) == 0;
      long_parts += is_long;
      const size_t size =
          is_long ? kDirectReadBytesMin + random.Below(kDirectReadBytesMin) : random.Below(700);
      sent.push_back({Numbered(1 + size, random.Next())});
    }
    Sent& last = sent.back();
    const ssize_t n = Write(ring.writer, std::span(last.bytes).subspan(last.taken));
    if (n > 0) last.taken += static_cast<size_t>(n);
    size_t unread = 0;
    for (const Sent& one : sent) unread += one.taken - one.read;
    const size_t retained = ring.writer.Retained();
    retained_max = std::max(retained_max, retained);
    ASSERT_LE(retained, unread + sent.front().read);
    if (random.Below(3) == 0) continue;
    const ssize_t read = Read(ring.reader, std::span(out).first(1 + random.Below(out.size())));
    for (size_t at = 0; read > 0 && at < static_cast<size_t>(read);) {
      ASSERT_FALSE(sent.empty());
      Sent& first = sent.front();
      const size_t piece = std::min(first.taken - first.read, static_cast<size_t>(read) - at);
      ASSERT_GT(piece, 0u);
      ASSERT_EQ(std::memcmp(first.bytes.data() + first.read, out.data() + at, piece), 0);
      first.read += piece;
      at += piece;
      if (first.read == first.bytes.size()) sent.pop_front();
    }
  }
  EXPECT_GT(long_parts, 300u);
  EXPECT_GT(retained_max, kLong);
}

TEST(ShmDirectReadTest, MoreThanCanBeExportedGoesThroughTheRing) {
  DirectReadPair ring;
  ring.Meet();
  const std::vector<uint8_t> bytes = Numbered(kLong, 1);
  for (size_t i = 0; i < kExportsMax; ++i) {
    EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong)) << i;
  }
  EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kCapacity));
  std::vector<uint8_t> out(kLong);
  for (size_t i = 0; i < kExportsMax; ++i) {
    EXPECT_EQ(Read(ring.reader, out), static_cast<ssize_t>(kLong)) << i;
    EXPECT_EQ(out, bytes) << i;
  }
  EXPECT_EQ(Read(ring.reader, out), static_cast<ssize_t>(kCapacity));
  EXPECT_EQ(ring.writer.Retained(), 0u);
}

TEST(ShmDirectReadTest, AReaderThatCannotImportGetsAllThroughTheRing) {
  const PeerMemory hidden(0, 0, 0), unwatched(getpid(), -1, 0);
  for (const PeerMemory* memory : {static_cast<const PeerMemory*>(nullptr), &hidden, &unwatched}) {
    RingPair ring;
    RingReader reader(ring.segment->End(0, -1), memory);
    std::vector<uint8_t> bytes(kLong), out(kLong);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kCapacity));
      EXPECT_EQ(ring.writer.Retained(), 0u);
      EXPECT_EQ(Read(reader, out), static_cast<ssize_t>(kCapacity));
    }
    EXPECT_EQ(ring.control->direct.imports.load(), 0u);
  }
}

TEST(ShmDirectReadTest, AnotherProcessOfThePeersNumberIsNotRead) {
  DirectReadPair ring;
  ring.control->direct.probe.store(ring.control->direct.probe.load() + 1);
  std::vector<uint8_t> byte(1);
  EXPECT_EQ(Write(ring.writer, byte), 1);
  EXPECT_EQ(Read(ring.reader, byte), 1);
  EXPECT_EQ(ring.control->direct.imports.load(), 0u);
}

TEST(ShmDirectReadTest, MemoryThatTheKernelReadsForNobodyIsNotExported) {
#ifdef SYS_memfd_secret
  const mesh::UniqueFd fd(static_cast<int>(syscall(SYS_memfd_secret, O_CLOEXEC)));
  void* memory = MAP_FAILED;
  if (fd && ftruncate(fd.get(), kLong) == 0) {
    memory = mmap(nullptr, kLong, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  }
  if (memory == MAP_FAILED) GTEST_SKIP() << "this system has no secret memory";
  const std::span secret(static_cast<uint8_t*>(memory), kLong);
  std::fill(secret.begin(), secret.end(), 7);
  DirectReadPair ring;
  ring.Meet();
  EXPECT_EQ(Write(ring.writer, secret), static_cast<ssize_t>(kCapacity));
  EXPECT_EQ(ring.writer.Retained(), 0u);
  munmap(memory, kLong);
#else
  GTEST_SKIP() << "this system has no secret memory";
#endif
}

TEST(ShmDirectReadTest, WhatWasRevokedIsNeverTaken) {
  DirectReadPair ring;
  ring.Meet();
  std::vector<uint8_t> bytes(kLong, 1), out(kLong);
  EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
  EXPECT_EQ(Read(ring.reader, out), static_cast<ssize_t>(kLong));
  ring.writer.exporter().Revoke();
  EXPECT_EQ(ring.control->direct.revoked.load(), 0u) << "nothing was open";
  EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
  EXPECT_EQ(Read(ring.reader, std::span(out).first(kDirectReadBytesMin)),
            static_cast<ssize_t>(kDirectReadBytesMin));
  ring.writer.exporter().Revoke();
  bytes.assign(kLong, 2);
  EXPECT_EQ(Write(ring.writer, std::span(bytes).first(5)), 5);
  EXPECT_EQ(Read(ring.reader, out), -ECONNRESET);
  EXPECT_EQ(Read(ring.reader, out), 5) << "what comes behind it";
  EXPECT_EQ(out[4], 2);
  EXPECT_EQ(ring.writer.Retained(), kLong + 5) << "nobody has taken it";
}

TEST(ShmDirectReadTest, PiecesOfADeadProcessAreNotTaken) {
  DirectReadPair ring;
  std::vector<uint8_t> bytes = Numbered(kLong, 4), out(kLong);
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char go;
    (void)!read(done[0], &go, 1);  // ends when the parent closes
    _exit(0);
  }
  const mesh::UniqueFd process = WatchProcess(child);
  ASSERT_TRUE(process);
  const PeerMemory memory(child, process.get(), ring.sockets[0]);
  RingReader reader(ring.segment->End(0, -1), &memory);
  std::vector<uint8_t> byte(1);
  ASSERT_EQ(Write(ring.writer, byte), 1);
  ASSERT_EQ(Read(reader, byte), 1);
  ASSERT_EQ(ring.control->direct.imports.load(), 1u) << "the child has what its parent had";
  ASSERT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
  ASSERT_EQ(Read(reader, std::span(out).first(kDirectReadBytesMin)),
            static_cast<ssize_t>(kDirectReadBytesMin));
  close(done[1]);
  close(done[0]);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(Read(reader, out), -ECONNRESET);
}

TEST(ShmDirectReadTest, PiecesOfAPeerThatHungUpAreNotTaken) {
  DirectReadPair ring;
  ring.Meet();
  std::vector<uint8_t> bytes(kLong), out(kLong);
  ASSERT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
  shutdown(ring.sockets[1], SHUT_WR);  // as happens if another program replaces the process (exec)
  EXPECT_EQ(Read(ring.reader, out), -ECONNRESET);
}

TEST(ShmDirectReadTest, ImpossibleCountsAreFoundByBothEnds) {
  std::vector<uint8_t> bytes(kLong), out(kLong);
  for (const uint64_t exported : {uint64_t{kExportsMax + 1}, UINT64_MAX}) {
    DirectReadPair ring;
    ring.Meet();
    ring.control->direct.exported.store(exported);
    EXPECT_TRUE(ring.reader.Readable());
    EXPECT_EQ(Read(ring.reader, out), -EPROTO) << exported;
  }
  {
    DirectReadPair ring;
    ring.Meet();
    ring.control->direct.exported.store(1);  // of no bytes
    EXPECT_EQ(Read(ring.reader, out), -EPROTO);
  }
  for (const uint64_t at : {uint64_t{0}, uint64_t{kCapacity + 2}, UINT64_MAX}) {
    DirectReadPair ring;
    ring.Meet();
    ASSERT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
    ring.control->direct.exports[0].at.store(at);
    EXPECT_EQ(Read(ring.reader, out), -EPROTO) << at;
  }
  {
    DirectReadPair ring;
    ring.Meet();
    ASSERT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
    ring.control->direct.exports[0].address.store(8);
    EXPECT_EQ(Read(ring.reader, out), -EFAULT);
  }
  {
    RingPair ring;  // its reader has not announced that it can import
    ring.control->direct.exported.store(1);
    EXPECT_EQ(Read(ring.reader, out), -EPROTO);
  }
  for (const uint64_t released : {uint64_t{2}, UINT64_MAX}) {
    DirectReadPair ring;
    ring.Meet();
    ASSERT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
    ring.control->direct.released.store(released);
    EXPECT_EQ(Write(ring.writer, bytes), -EPROTO) << released;
    EXPECT_GE(ring.writer.Retained(), kLong) << "the memory is not free";
  }
}

TEST(ShmDirectReadTest, OnlySleepersAreWoken) {
  DirectReadPair ring;
  ring.Meet();
  std::vector<uint8_t> bytes(kLong), out(kLong);
  EXPECT_TRUE(ring.reader.PrepareSleep());
  EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
  EXPECT_TRUE(WasSignalled(ring.reader_event_fd));
  EXPECT_FALSE(ring.reader.PrepareSleep()) << "a piece is there";
  ring.reader.Awake();
  EXPECT_EQ(Read(ring.reader, out), static_cast<ssize_t>(kLong));
  EXPECT_FALSE(WasSignalled(ring.writer_event_fd));
  EXPECT_FALSE(ring.writer.exporter().PrepareSleep()) << "it is released";
  ring.writer.exporter().Awake();
  EXPECT_EQ(ring.writer.Retained(), 0u);
  EXPECT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(kLong));
  EXPECT_TRUE(ring.writer.exporter().PrepareSleep());
  EXPECT_EQ(Read(ring.reader, std::span(out).first(100)), 100);
  EXPECT_FALSE(WasSignalled(ring.writer_event_fd));
  EXPECT_EQ(Read(ring.reader, out), static_cast<ssize_t>(kLong) - 100);
  EXPECT_TRUE(WasSignalled(ring.writer_event_fd));
}

// As NoWakeUpIsLost, with a writer that waits for the release of each piece.
TEST(ShmDirectReadTest, NoWakeUpIsLost) {
  DirectReadPair ring;
  ring.Meet();
  constexpr int kRounds = 2000;
  std::thread writer([&] {
    std::vector<uint8_t> bytes(kDirectReadBytesMin, 1);
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_EQ(Write(ring.writer, bytes), static_cast<ssize_t>(bytes.size()));
      while (ring.writer.Retained() > 0) {
        if (ring.writer.exporter().PrepareSleep() && !IsWoken(ring.writer_event_fd)) {
          ADD_FAILURE() << "the writer's, in round " << round;
          _exit(1);  // the reader waits for ever
        }
        ring.writer.exporter().Awake();
      }
      std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(round));
    }
  });
  std::vector<uint8_t> out(kDirectReadBytesMin);
  for (uint64_t received = 0; received < uint64_t{kRounds} * kDirectReadBytesMin;) {
    const ssize_t n = Read(ring.reader, out);
    if (n > 0) {
      const auto round = static_cast<int>(received / kDirectReadBytesMin);
      const auto expected = static_cast<uint8_t>(round == 0 ? 1 : round - 1);
      ASSERT_TRUE(std::all_of(out.begin(), out.begin() + n, [&](uint8_t b) {
        return b == expected;
      })) << round;
      received += static_cast<uint64_t>(n);
    }
    if (n < 0 && n != -EAGAIN) {
      ADD_FAILURE() << "error " << n << " after " << received << " bytes";
      _exit(1);  // the writer waits for ever
    }
    if (n == -EAGAIN && ring.reader.PrepareSleep() && !IsWoken(ring.reader_event_fd)) {
      ADD_FAILURE() << "the reader's, after " << received << " bytes";
      _exit(1);
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
