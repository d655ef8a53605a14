// SPDX-License-Identifier: Apache-2.0
// Connecting, for every transport that crosses processes: late starters, strangers, failures while
// connecting, and processes that are killed.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>

#include "tests/datapath/transport/conformance.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kNobody[] = "127.0.0.1:1";

class TransportRendezvous : public TransportConformance {
 protected:
  StatusOr<std::unique_ptr<Transport>> Create(int rank, int world, uint64_t job,
                                              TransportAddress listen = {}) const {
    TransportOptions options = FreshJob();
    options.job = job;
    options.rank = rank;
    options.world = world;
    options.listen = listen.empty() ? ListenAddress(*GetParam(), rank) : listen;
    return GetParam()->Create(options);
  }
  // Long enough for the others to connect before this rank gives up.
  double Soon() const { return GetParam()->Traits().needs_device ? 1 : 0.5; }
};

TEST_P(TransportRendezvous, RankThatListensLateIsDialedAgain) {
  const uint64_t job = FreshJob().job;
  auto rank1 = Create(1, 2, job);
  ASSERT_TRUE(rank1.ok()) << rank1.status();
  TransportAddress address;  // a port that was free a moment ago
  {
    auto departing = Create(0, 2, job);
    ASSERT_TRUE(departing.ok()) << departing.status();
    address = (*departing)->address();
  }
  Status status0, status1;
  std::atomic<bool> dialing = false;
  std::thread dialer([&] {
    dialing = true;
    dialing.notify_all();
    status1 = (*rank1)->Connect({address, (*rank1)->address()}, Within(kPatience));
  });
  dialing.wait(false);
  auto rank0 = Create(0, 2, job, address);
  EXPECT_TRUE(rank0.ok()) << rank0.status();
  if (rank0.ok()) {
    status0 = (*rank0)->Connect({address, (*rank1)->address()}, Within(kPatience));
  } else {
    (*rank1)->Interrupt();
  }
  dialer.join();
  EXPECT_TRUE(status0.ok()) << status0;
  EXPECT_TRUE(status1.ok()) << status1;
}

TEST_P(TransportRendezvous, RefusedRankLearnsWhyAndTheRefuserSaysWhoCame) {
  auto rank0 = Create(0, 2, 5), rank1 = Create(1, 2, 6);
  ASSERT_TRUE(rank0.ok() && rank1.ok());
  const std::vector<TransportAddress> addresses = {(*rank0)->address(), (*rank1)->address()};
  Status statuses[2];
  RunRanks(2, [&](int rank) {
    statuses[rank] =
        (rank == 0 ? *rank0 : *rank1)->Connect(addresses, Within(rank == 0 ? Soon() : kPatience));
  });
  EXPECT_STATUS(statuses[1], kFailedPrecondition,
                AllOf(HasSubstr("rank 0 (" + addresses[0] + ") refused rank 1"),
                      HasSubstr("job: expected 5, found 6")));
  EXPECT_STATUS(statuses[0], kDeadlineExceeded,
                AllOf(HasSubstr("rank 1 ("), HasSubstr("job: expected 5, found 6")));
}

TEST_P(TransportRendezvous, FailedConnectTellsThoseWhoWereConnected) {
  const uint64_t job = FreshJob().job;
  auto rank0 = Create(0, 3, job), rank1 = Create(1, 3, job);
  ASSERT_TRUE(rank0.ok() && rank1.ok());
  const std::vector<TransportAddress> addresses = {(*rank0)->address(), (*rank1)->address(),
                                                   kNobody};
  Status statuses[2];
  RunRanks(2, [&](int rank) {
    statuses[rank] =
        (rank == 0 ? *rank0 : *rank1)->Connect(addresses, Within(rank == 0 ? Soon() : kPatience));
  });
  EXPECT_STATUS(statuses[0], kDeadlineExceeded, HasSubstr(StrCat("rank 2 (", kNobody, ")")));
  EXPECT_STATUS(statuses[1], kUnavailable,
                AllOf(HasSubstr("rank 0 reported:"), HasSubstr(StrCat("rank 2 (", kNobody, ")"))));
}

TEST_P(TransportRendezvous, InterruptEndsConnect) {
  auto rank0 = Create(0, 2, FreshJob().job);
  ASSERT_TRUE(rank0.ok()) << rank0.status();
  std::thread interrupter([&] { (*rank0)->Interrupt(); });
  const Status status = (*rank0)->Connect({(*rank0)->address(), kNobody}, Within(kPatience));
  interrupter.join();
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
}

// A process of the test that can be killed, and two pipes to it.
class Child {
 public:
  explicit Child(const std::function<void(int from_parent, int to_parent)>& body) {
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);
      close(down[1]);
      close(up[0]);
      body(down[0], up[1]);
      _exit(1);
    }
    close(down[0]);
    close(up[1]);
    to_child_ = down[1];
    from_child_ = up[0];
  }
  ~Child() {
    Kill();
    close(to_child_);
    close(from_child_);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int to_child() const { return to_child_; }
  int from_child() const { return from_child_; }

 private:
  pid_t pid_ = -1;
  int to_child_ = -1, from_child_ = -1;
};

// Rank 2 is a process that is killed while the others wait for each other. It is forked before any
// transport is created, because the contexts of devices do not survive a fork.
TEST_P(TransportRendezvous, KilledProcessIsNamedBySurvivors) {
  constexpr int kWorld = 3;
  struct Addresses {
    char text[kWorld][64] = {};
  } known;
  constexpr auto kOne = static_cast<ssize_t>(sizeof known.text[0]);
  const uint64_t job = FreshJob().job;
  Child child([&](int from_parent, int to_parent) {
    auto transport = Create(2, kWorld, job);
    if (!transport.ok()) return;
    (*transport)->address().copy(known.text[2], sizeof known.text[2] - 1);
    if (write(to_parent, known.text[2], sizeof known.text[2]) != kOne) return;
    if (read(from_parent, &known, sizeof known) != static_cast<ssize_t>(sizeof known)) return;
    const Bytes payload(100000);
    if ((*transport)
            ->Connect({known.text[0], known.text[1], known.text[2]}, Within(kPatience))
            .ok()) {
      (void)(*transport)->PostSend(0, {}, payload);  // no receive is posted for it
    }
    for (;;) pause();
  });
  ASSERT_EQ(read(child.from_child(), known.text[2], sizeof known.text[2]), kOne);
  World ranks;
  for (int rank = 0; rank < 2; ++rank) {
    auto transport = Create(rank, kWorld, job);
    ASSERT_TRUE(transport.ok()) << transport.status();
    (*transport)->address().copy(known.text[rank], sizeof known.text[rank] - 1);
    ranks.push_back(std::move(*transport));
  }
  ASSERT_EQ(write(child.to_child(), &known, sizeof known), static_cast<ssize_t>(sizeof known));
  const std::vector<TransportAddress> addresses = {known.text[0], known.text[1], known.text[2]};
  std::barrier both_connected(2);
  RunRanks(2, [&](int rank) {
    const Status connected = ranks[rank]->Connect(addresses, Within(kPatience));
    EXPECT_TRUE(connected.ok()) << connected;
    both_connected.arrive_and_wait();  // a rank that dies earlier may still come back
    Bytes first(72);
    if (rank == 0) child.Kill();
    EXPECT_STATUS(Failure(*ranks[rank], ranks[rank]->PostReceive(1 - rank, first)), kUnavailable,
                  HasSubstr("rank 2 (" + addresses[2] + ") closed the connection"));
  });
}

INSTANTIATE_TEST_SUITE_P(EveryTransport, TransportRendezvous, ::testing::ValuesIn(WiredFactories()),
                         [](const auto& info) { return info.param->Traits().name; });

}  // namespace
}  // namespace weir::testing
