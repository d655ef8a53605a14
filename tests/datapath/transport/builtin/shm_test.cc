// SPDX-License-Identifier: Apache-2.0
// Behaviour of the transports over shared memory only: the choice of the medium per pair, systems
// that do not permit shared memory, killed processes, clean-up, and ranks that sleep.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "datapath/transport/mesh/stream_mesh.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using World = std::vector<std::unique_ptr<Transport>>;

const TransportFactory& Named(const std::string& name) { return **Transports().Find(name); }

// Ranks made by the transports of `names`, unconnected.
struct Job {
  explicit Job(const std::vector<std::string>& names, uint64_t job = 5, int ring_bytes = 0,
               TransportOptions options = {}) {
    options.job = job;
    options.world = static_cast<int>(names.size());
    options.send_buffer_bytes = ring_bytes;
    for (const std::string& name : names) {
      auto made = Named(name).Create(options);
      EXPECT_TRUE(made.ok()) << made.status();
      addresses.push_back((*made)->address());
      ranks.push_back(std::move(*made));
      ++options.rank;
    }
  }
  int world() const { return static_cast<int>(ranks.size()); }
  // Connects all ranks; `before` runs first on each rank's thread.
  std::vector<Status> Connect(const std::function<void(int)>& before = {}) {
    std::vector<Status> statuses(ranks.size());
    RunRanks(world(), [&](int rank) {
      if (before) before(rank);
      statuses[rank] = ranks[rank]->Connect(addresses, Within(kPatience));
    });
    return statuses;
  }
  void ConnectAll(const std::function<void(int)>& before = {}) {
    for (const Status& status : Connect(before)) ASSERT_TRUE(status.ok()) << status;
  }
  std::string Media(int rank) const {
    std::string media;
    for (const PathSample& sample : ranks[rank]->Samples()) {
      media += (media.empty() ? "" : " ") + sample.medium;
    }
    return media;
  }
  // Every pair exchanges numbered messages of growing size both ways.
  void Exchange() {
    constexpr int kMessages = 24;
    RunRanks(world(), [&](int rank) {
      std::vector<StatusOr<Ticket>> tickets;
      std::vector<Bytes> out, in(static_cast<size_t>(world() * kMessages));
      const auto size_of = [](int i) { return static_cast<size_t>(i * i * i * 9); };
      for (int i = 0; i < kMessages; ++i) {
        out.emplace_back(size_of(i), static_cast<std::byte>(rank * 32 + i));
      }
      for (int i = 0; i < kMessages; ++i) {
        for (int peer = 0; peer < world(); ++peer) {
          if (peer == rank) continue;
          Bytes& buffer = in[static_cast<size_t>(peer * kMessages + i)];
          buffer.resize(size_of(i));
          tickets.push_back(ranks[rank]->PostReceive(peer, buffer));
          tickets.push_back(ranks[rank]->PostSend(peer, {}, out[static_cast<size_t>(i)]));
        }
      }
      for (const auto& ticket : tickets) {
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        const auto header = ranks[rank]->Wait(*ticket, Within(kPatience));
        ASSERT_TRUE(header.ok()) << header.status();
      }
      for (int peer = 0; peer < world(); ++peer) {
        for (int i = 0; peer != rank && i < kMessages; ++i) {
          EXPECT_EQ(in[static_cast<size_t>(peer * kMessages + i)],
                    Bytes(size_of(i), static_cast<std::byte>(peer * 32 + i)));
        }
      }
    });
  }

  World ranks;
  std::vector<TransportAddress> addresses;
};

TEST(ShmTransportTest, RanksOfOneNodeShareMemoryByThemselves) {
  for (const char* name : {"shm", "auto"}) {
    Job job({name, name, name});
    job.ConnectAll();
    EXPECT_EQ(job.Media(0), "shm shm") << name;
    EXPECT_EQ(job.Media(2), "shm shm") << name;
    job.Exchange();
    EXPECT_GT(job.ranks[0]->Samples()[1].bytes_acked, 100000u);
    EXPECT_GT(job.ranks[0]->Samples()[1].bytes_received, 100000u);
  }
}

// Makes one system call fail with EPERM, on this thread only, from now on.
void ForbidSystemCall(int number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(filter), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    ADD_FAILURE() << "seccomp is not available";
  }
}

TEST(ShmTransportTest, RanksOfOneNodeSeeEachOthersStagingBuffers) {
  for (const int world : {2, 3, 8}) {
    Job job(std::vector<std::string>(static_cast<size_t>(world), "auto"));
    EXPECT_EQ(job.ranks[0]->staging(), nullptr);  // not yet
    job.ConnectAll();
    for (int rank = 0; rank < world; ++rank) {
      const StagingBuffers* staging = job.ranks[rank]->staging();
      ASSERT_NE(staging, nullptr);
      ASSERT_EQ(staging->of.size(), static_cast<size_t>(world));
      ASSERT_GT(staging->own.size(), 0u);
      for (const auto& buffer : staging->of) EXPECT_EQ(buffer.size(), staging->own.size());
      EXPECT_EQ(staging->of[rank].data(), staging->own.data());
      std::fill(staging->own.begin(), staging->own.end(), static_cast<std::byte>(rank + 1));
    }
    job.Exchange();
    for (int rank = 0; rank < world; ++rank) {
      for (int peer = 0; peer < world; ++peer) {
        const std::span<const std::byte> buffer = job.ranks[rank]->staging()->of[peer];
        EXPECT_EQ(buffer.front(), static_cast<std::byte>(peer + 1));
        EXPECT_EQ(buffer.back(), static_cast<std::byte>(peer + 1));
      }
    }
    // Buffers stay mapped after their ranks have left.
    const StagingBuffers* staging = job.ranks[0]->staging();
    for (int rank = 1; rank < world; ++rank) job.ranks[rank].reset();
    EXPECT_EQ(staging->of[world - 1].back(), static_cast<std::byte>(world));
  }
}

TEST(ShmTransportTest, StagingBuffersAreThereForAllRanksOrForNone) {
  // Some pair uses TCP, or a rank cannot create memory but can map that of others.
  Job mixed({"auto", "auto", "tcp", "auto"});
  mixed.ConnectAll();
  for (const auto& rank : mixed.ranks) EXPECT_EQ(rank->staging(), nullptr);
  mixed.Exchange();
  Job poor({"auto", "auto", "auto"});
  poor.ConnectAll([](int rank) {
    if (rank == 0) ForbidSystemCall(SYS_memfd_create);
  });
  EXPECT_EQ(poor.Media(0), "shm shm");
  for (const auto& rank : poor.ranks) EXPECT_EQ(rank->staging(), nullptr);
  poor.Exchange();
  Job far({"tcp", "tcp"});
  far.ConnectAll();
  EXPECT_EQ(far.ranks[0]->staging(), nullptr);
  Job alone({"auto"});
  alone.ConnectAll();
  EXPECT_EQ(alone.ranks[0]->staging(), nullptr);
}

TEST(ShmTransportTest, ARankThatIsForcedToTcpGetsTcpFromThoseThatChoose) {
  Job job({"auto", "tcp", "auto", "auto", "tcp"});
  job.ConnectAll();
  EXPECT_EQ(job.Media(0), "tcp shm shm tcp");
  EXPECT_EQ(job.Media(1), "tcp tcp tcp tcp");
  EXPECT_EQ(job.Media(3), "shm tcp shm tcp");
  job.Exchange();
}

TEST(ShmTransportTest, WorldsFromOneToEightAndSmallRings) {
  for (const int world : {1, 2, 8}) {
    Job job(std::vector<std::string>(static_cast<size_t>(world), "shm"), 5, 4096);
    job.ConnectAll();
    job.Exchange();
  }
}

TEST(ShmTransportTest, TwoJobsOfOneNodeStayApart) {
  Job first({"auto", "auto"}, 1), second({"auto", "auto"}, 2);
  std::thread other([&] {
    second.ConnectAll();
    second.Exchange();
  });
  first.ConnectAll();
  first.Exchange();
  other.join();
}

TEST(ShmTransportTest, WhereSharedMemoryIsNotPermittedAutoUsesTcpAndShmSaysWhy) {
  // The dialing side needs memory, and both sides need an eventfd.
  for (const auto& [number, rank] :
       {std::pair(SYS_memfd_create, 1), std::pair(SYS_eventfd2, 0), std::pair(SYS_eventfd2, 1)}) {
    Job choosing({"auto", "auto"});
    const auto forbid = [&, number = number, rank = rank](int self) {
      if (self == rank) ForbidSystemCall(static_cast<int>(number));
    };
    choosing.ConnectAll(forbid);
    EXPECT_EQ(choosing.Media(0), "tcp") << number;
    EXPECT_EQ(choosing.Media(1), "tcp") << number;
    choosing.Exchange();

    Job forced({"shm", "shm"});
    for (const Status& status : forced.Connect(forbid)) {
      EXPECT_FALSE(status.ok());
      EXPECT_TRUE(status.code() == StatusCode::kFailedPrecondition ||
                  status.code() == StatusCode::kUnavailable)
          << status;
    }
  }
  Job forced({"shm", "shm"});
  const Status status = forced.Connect([](int rank) {
    if (rank == 1) ForbidSystemCall(SYS_memfd_create);
  })[1];
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("no shared memory with rank 0 (" + forced.addresses[0]),
                    HasSubstr("operation not permitted")));
}

TEST(ShmTransportTest, RanksThatShareMemoryLearnWhyAnotherLeft) {
  Job job({"shm", "shm", "shm"});
  // Rank 1 cannot create memory, which it needs only for its pair with rank 0.
  const auto statuses = job.Connect([](int rank) {
    if (rank == 1) ForbidSystemCall(SYS_memfd_create);
  });
  EXPECT_EQ(statuses[0].code(), StatusCode::kFailedPrecondition) << statuses[0];
  EXPECT_EQ(statuses[1].code(), StatusCode::kFailedPrecondition) << statuses[1];
  Status third = statuses[2];
  if (third.ok()) {
    Bytes buffer(1);
    const auto ticket = job.ranks[2]->PostReceive(0, buffer);
    third = ticket.ok() ? job.ranks[2]->Wait(*ticket, Within(kPatience)).status() : ticket.status();
  }
  EXPECT_EQ(third.code(), StatusCode::kUnavailable) << third;
  EXPECT_THAT(Message(third), AllOf(HasSubstr("reported: rank"), HasSubstr("no shared memory")));
}

// A rank in another network namespace reaches the others over TCP (here with a socket that it made
// before) but not over their Unix sockets.
TEST(ShmTransportTest, AnotherNetworkNamespaceMeansTcp) {
  Job job({"auto", "auto"});
  std::atomic<bool> moved = true;
  const auto statuses = job.Connect([&](int rank) {
    if (rank == 0 && unshare(CLONE_NEWNET) != 0) moved = false;
  });
  for (const Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
  if (!moved) GTEST_SKIP() << "needs the right to make a network namespace";
  EXPECT_EQ(job.Media(0), "tcp");
  EXPECT_EQ(job.Media(1), "tcp");
  job.Exchange();
}

// Names that Weir's processes could leave behind on this machine.
std::set<std::string> Traces() {
  std::set<std::string> traces;
  for (const char* directory : {"/dev/shm", "/tmp"}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
      const std::string name = entry.path().filename();
      // Directories belong to other tests.
      if (name.find("weir") != std::string::npos && !entry.is_directory(ignored)) {
        traces.insert(entry.path());
      }
    }
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find("@weir-");
    // Only listening sockets count; connected ones have the same names while they are open.
    if (at != std::string::npos && line.find(" 00010000 ") != std::string::npos) {
      traces.insert(line.substr(at));
    }
  }
  return traces;
}

// The names that are new since `before` and stay. Those of tests that run in parallel come and go.
std::set<std::string> Remains(const std::set<std::string>& before) {
  std::set<std::string> remains = Traces();
  for (int i = 0; i < 100 && !remains.empty(); ++i) {
    const std::set<std::string> now = Traces();
    std::erase_if(remains, [&](const std::string& trace) {
      return before.contains(trace) || !now.contains(trace);
    });
    if (!remains.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return remains;
}

// Rank 2 of 3 runs in a child that is killed in the middle of a large message to rank 0. With
// `orphan` a process that inherited the child's descriptors stays alive, as data loaders do.
void KillInTheMiddle(const std::string& name, bool orphan) {
  SCOPED_TRACE(name + (orphan ? " with a surviving grandchild" : ""));
  const std::set<std::string> before = Traces();
  Job job({name, name, name}, 9);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    const Bytes payload(64 << 20, std::byte{7});
    pid_t grandchild = 0;
    if (job.ranks[2]->Connect(job.addresses, Within(kPatience)).ok()) {
      (void)job.ranks[2]->PostSend(0, {}, payload);
      if (orphan) grandchild = fork();
      if (orphan && grandchild == 0) {
        alarm(60);
        for (;;) pause();
      }
    }
    [[maybe_unused]] const ssize_t n = write(pipe_ends[1], &grandchild, sizeof grandchild);
    for (;;) pause();
  }
  job.ranks[2].reset();
  std::barrier both_connected(2);
  pid_t grandchild = 0;
  RunRanks(2, [&](int rank) {
    const Status connected = job.ranks[rank]->Connect(job.addresses, Within(kPatience));
    EXPECT_TRUE(connected.ok()) << connected;
    both_connected.arrive_and_wait();
    Bytes buffer(64 << 20);
    TimePoint killed{};
    if (rank == 0) {
      EXPECT_EQ(read(pipe_ends[0], &grandchild, sizeof grandchild),
                static_cast<ssize_t>(sizeof grandchild));
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      killed = RealClock().Now();
    }
    // Rank 0 waits for the message, and rank 1 waits for another rank.
    const auto ticket = job.ranks[rank]->PostReceive(rank == 0 ? 2 : 0, buffer);
    const Status status =
        ticket.ok() ? job.ranks[rank]->Wait(*ticket, Within(kPatience)).status() : ticket.status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("rank 2 (" + job.addresses[2] + ") closed the connection"));
    EXPECT_TRUE(rank == 1 || ToSeconds(RealClock().Now() - killed) < 5);
  });
  if (grandchild > 0) kill(grandchild, SIGKILL);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  EXPECT_EQ(Remains(before), std::set<std::string>());
}

TEST(ShmTransportTest, AProcessKilledInTheMiddleOfAMessageIsNamedAndLeavesNothing) {
  for (const char* name : {"shm", "auto"}) KillInTheMiddle(name, false);
}

TEST(ShmTransportTest, ADeathIsNoticedThoughAForkedChildLivesOn) {
#ifdef SYS_pidfd_open
  KillInTheMiddle("shm", true);
#else
  GTEST_SKIP() << "no pidfd_open";
#endif
}

double ThreadCpuSeconds() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

TEST(ShmTransportTest, ARankThatWaitsSleeps) {
  Job job({"shm", "shm", "shm", "shm"});
  job.ConnectAll();
  constexpr double kWaitS = 0.3;
  std::vector<double> used(4);
  RunRanks(4, [&](int rank) {
    Bytes buffer(8);
    const auto ticket = job.ranks[rank]->PostReceive((rank + 1) % 4, buffer);
    const double before = ThreadCpuSeconds();
    EXPECT_EQ(job.ranks[rank]->Wait(*ticket, Within(kWaitS)).status().code(),
              StatusCode::kDeadlineExceeded);
    used[rank] = ThreadCpuSeconds() - before;
  });
  for (const double seconds : used) EXPECT_LT(seconds, kWaitS / 10);
}

// Ranks with neighbours of both kinds. The message that a rank waits for comes last, and the rings
// of the others have unread messages.
TEST(ShmTransportTest, UnreadMessagesOfOthersKeepNobodyAwake) {
  // Both stay posted until the job is closed, because rank 1 may complete a frame that was sent in
  // part before its shutdown notice.
  const Bytes unread(3 << 20);
  Bytes buffer(8);
  Job job({"auto", "auto", "tcp"});
  job.ConnectAll();
  RunRanks(3, [&](int rank) {
    if (rank == 1) {  // more than the ring holds, and no receive is posted for it
      EXPECT_TRUE(job.ranks[1]->PostSend(0, {}, unread).ok());
    } else if (rank == 0) {
      const auto ticket = job.ranks[0]->PostReceive(2, buffer);
      const double before = ThreadCpuSeconds();
      EXPECT_EQ(job.ranks[0]->Wait(*ticket, Within(0.3)).status().code(),
                StatusCode::kDeadlineExceeded);
      EXPECT_LT(ThreadCpuSeconds() - before, 0.03);
    }
  });
}

// Exchanges messages until both ranks know whether they can read each other's memory.
void Greet(Transport& self, int peer) {
  Bytes byte(1), heard(1);
  const auto in = self.PostReceive(peer, heard), out = self.PostSend(peer, {}, byte);
  ASSERT_TRUE(in.ok() && out.ok());
  for (const Ticket ticket : {*in, *out}) {
    const auto done = self.Wait(ticket, Within(kPatience));
    ASSERT_TRUE(done.ok()) << done.status();
  }
}

constexpr size_t kLong = 1 << 20;

TEST(ShmTransportTest, ALongSendIsOverWhenItsReaderHasIt) {
  TransportOptions options;
  options.host_silence_min = Duration(0);        // so only its reader wakes the sender
  Job job({"shm", "shm"}, 5, 4 << 20, options);  // all of it would fit into the ring
  job.ConnectAll();
  std::atomic<bool> asked = false;
  RunRanks(2, [&](int rank) {
    Greet(*job.ranks[rank], 1 - rank);
    Bytes buffer(kLong, static_cast<std::byte>(rank));
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      asked = true;
      const auto ticket = job.ranks[1]->PostReceive(0, buffer);
      const auto received = job.ranks[1]->Wait(*ticket, Within(kPatience));
      ASSERT_TRUE(received.ok()) << received.status();
      EXPECT_EQ(buffer, Bytes(kLong, std::byte{0}));
      return;
    }
    const auto ticket = job.ranks[0]->PostSend(1, {}, buffer);
    const double cpu = ThreadCpuSeconds();
    const TimePoint before = RealClock().Now();
    const auto sent = job.ranks[0]->Wait(*ticket, Within(kPatience));
    ASSERT_TRUE(sent.ok()) << sent.status();
    EXPECT_LT(ToSeconds(RealClock().Now() - before), kPatience / 2) << "it was not woken";
    EXPECT_TRUE(asked) << "it was copied into the ring";
    EXPECT_LT(ThreadCpuSeconds() - cpu, 0.1) << "it was not asleep";
    buffer.assign(kLong, std::byte{9});
  });
}

// If both ends can copy at the same time, the ring is faster up to a larger size.
TEST(ShmTransportTest, WhatIsExportedDependsOnTheCores) {
  const bool apart = mesh::RanksPerCore(2) == 1;
  for (const auto& [bytes, exported] :
       {std::pair(64 << 10, false), std::pair(128 << 10, !apart), std::pair(256 << 10, true)}) {
    Job job({"shm", "shm"}, 5, 4 << 20);  // it would fit into the ring
    job.ConnectAll();
    std::barrier looked(2);
    RunRanks(2, [&, bytes = bytes, exported = exported](int rank) {
      Transport& self = *job.ranks[rank];
      Greet(self, 1 - rank);
      Bytes buffer(static_cast<size_t>(bytes));
      const auto ticket = rank == 0 ? self.PostSend(1, {}, buffer) : StatusOr<Ticket>(Ticket{0});
      if (rank == 0) {
        const auto over = self.WaitAny(std::span(&*ticket, 1), RealClock().Now());
        EXPECT_EQ(over.ok() && over->has_value(), !exported) << bytes;
      }
      looked.arrive_and_wait();
      const auto awaited = rank == 0 ? ticket : self.PostReceive(0, buffer);
      const auto done = self.Wait(*awaited, Within(kPatience));
      EXPECT_TRUE(done.ok()) << done.status();
    });
  }
}

TEST(ShmTransportTest, WhereNobodyMayReadAnothersMemoryAllGoesThroughRings) {
  for (const int forbidden : {0, 1, 2}) {  // 2: to both
    Job job({"shm", "shm"}, 5, 4 << 20);
    std::atomic<int> sent_alone = 0;
    RunRanks(2, [&](int rank) {
      if (forbidden == rank || forbidden == 2) {
        ForbidSystemCall(static_cast<int>(SYS_process_vm_readv));
      }
      const Status connected = job.ranks[rank]->Connect(job.addresses, Within(kPatience));
      ASSERT_TRUE(connected.ok()) << connected;
      Greet(*job.ranks[rank], 1 - rank);
      const Bytes out(kLong, static_cast<std::byte>(rank));
      Bytes in(kLong, std::byte{7});
      for (int i = 0; i < 3; ++i) {
        const auto send = job.ranks[rank]->PostSend(1 - rank, {}, out);
        ASSERT_TRUE(send.ok()) << send.status();
        // A rank does not offer direct reads if it may not read its own memory in that way.
        const auto over = job.ranks[rank]->WaitAny(std::span(&*send, 1), RealClock().Now());
        ASSERT_TRUE(over.ok()) << over.status();
        sent_alone += over->has_value();
        const auto receive = job.ranks[rank]->PostReceive(1 - rank, in);
        ASSERT_TRUE(job.ranks[rank]->Wait(*receive, Within(kPatience)).ok());
        ASSERT_TRUE(job.ranks[rank]->Wait(*send, Within(kPatience)).ok());
        ASSERT_EQ(in, Bytes(kLong, static_cast<std::byte>(1 - rank)));
      }
    });
    EXPECT_EQ(sent_alone, 6) << "over before they were read";
    EXPECT_EQ(job.Media(0), "shm");
  }
}

// Pieces that an aborted rank has exported are not read any more, but its reason still arrives.
TEST(ShmTransportTest, AnAbortRevokesWhatWasExportedAndSaysWhy) {
  for (const bool posted : {false, true}) {
    Job job({"shm", "shm"});
    job.ConnectAll();
    std::barrier exported(2), aborted(2);
    RunRanks(2, [&](int rank) {
      Greet(*job.ranks[rank], 1 - rank);
      Bytes buffer(kLong, std::byte{1});
      if (rank == 0) {
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(job.ranks[0]->PostSend(1, {}, buffer).ok());
        exported.arrive_and_wait();
        const TimePoint before = RealClock().Now();
        job.ranks[0]->Abort("bucket 17 differs");
        EXPECT_LT(ToSeconds(RealClock().Now() - before), 2);
        buffer.assign(kLong, std::byte{2});
        job.ranks[0].reset();
        aborted.arrive_and_wait();
        return;
      }
      exported.arrive_and_wait();
      aborted.arrive_and_wait();
      Status status = OkStatus();
      if (posted) {
        const auto ticket = job.ranks[1]->PostReceive(0, buffer);
        status =
            ticket.ok() ? job.ranks[1]->Wait(*ticket, Within(kPatience)).status() : ticket.status();
      } else {
        const auto any = job.ranks[1]->WaitAny({}, Within(kPatience));
        status = any.status();
      }
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_THAT(Message(status), HasSubstr("rank 0 reported: bucket 17 differs"));
    });
  }
}

}  // namespace
}  // namespace weir::testing
