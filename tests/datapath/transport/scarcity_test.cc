// SPDX-License-Identifier: Apache-2.0
// A machine that has no descriptors left, for a while or for as long as ranks try to connect.
//
// Failures in the field, and the tests that cover them (conformance: over every transport):
//   a peer dies                 conformance_connect: KilledProcessIsNamedBySurvivors; conformance:
//                               DeathIsNamedOnEverySurvivorWhoeverItWaitsFor; shm_test:
//                               AProcessKilledInTheMiddleOfAMessageIsNamedAndLeavesNothing;
//                               python/reform_test: both, in training
//   it hangs or is half open    conformance: DeadlineNamesTheSilentRankAndFailsTheTransport;
//                               session/deadline_test: SilenceWithinAStep..., ARankThatIsLate...;
//                               tcp_hostile: SilentAndVanishingStrangersDoNoHarm; verbs_test:
//                               SilentHostIsNamedLongBeforeTheDeadline
//   a slow reader               conformance: SlowReaderHoldsTheSenderAndLosesNothing; tcp_hostile:
//                               PeerThatNeverReadsEndsInADeadline
//   one way loses               conformance: DroppedFrameEndsInADeadlineThatNamesTheSender
//   reordering                  TCP has none; verbs_stream_test: BrokenMessagesNameTheSender
//   a corrupt frame             conformance: CorruptPayloadNamesTheSender; tcp_hostile:
//                               LyingFramesAreNamed; session_test: ACorruptPayloadFailsTheStep...
//   an address in use           tcp_test, verbs_test: TakenPortIsUnavailable; session/reform_test:
//                               AnAddressInUseIsNamedAndTheSessionKeepsWhatItHolds
//   no descriptors              here
//   a clock that jumps          tests/lint: the datapath reads the steady clock only
//   all of it, at random        tests/integration/soak.cc

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "datapath/transport/builtin/shm/attach.h"
#include "datapath/transport/mesh/hello.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Occupies every descriptor that the process may have until it is destroyed or releases them.
class Hoard {
 public:
  Hoard() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 200);
    setrlimit(RLIMIT_NOFILE, &few);
    for (;;) {
      mesh::UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!fd) break;
      taken_.push_back(std::move(fd));
    }
  }
  ~Hoard() {
    GiveBack();
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  void GiveBack() { taken_.clear(); }

 private:
  rlimit before_ = {};
  std::vector<mesh::UniqueFd> taken_;
};

const TransportFactory& ScarceTcp() { return *Transports().Find("tcp").value(); }

/// Two ranks that have yet to connect.
struct RankPair {
  RankPair() {
    TransportOptions options;
    options.world = 2;
    for (options.rank = 0; options.rank < 2; ++options.rank) {
      ranks.push_back(ScarceTcp().Create(options).value());
      addresses.push_back(ranks.back()->address());
    }
  }
  std::vector<Status> Connect(double seconds) {
    std::vector<Status> statuses(2);
    RunRanks(2, [&](int r) { statuses[r] = ranks[r]->Connect(addresses, Within(seconds)); });
    return statuses;
  }
  std::vector<std::unique_ptr<Transport>> ranks;
  std::vector<TransportAddress> addresses;
};

TEST(ScarcityTest, CreateWithoutDescriptorsSaysSo) {
  Hoard hoard;
  const Status status = ScarceTcp().Create({}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(ToString(status), HasSubstr(mesh::ErrorText(EMFILE)));
  hoard.GiveBack();
  EXPECT_TRUE(ScarceTcp().Create({}).ok());
}

TEST(ScarcityTest, ConnectWithoutDescriptorsNamesTheMissingRankAndTheCause) {
  RankPair pair;
  Hoard hoard;
  const std::vector<Status> statuses = pair.Connect(0.7);
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(statuses[r].code(), StatusCode::kDeadlineExceeded) << ToString(statuses[r]);
    EXPECT_THAT(ToString(statuses[r]), HasSubstr(StrCat("missing rank ", 1 - r)));
  }
  EXPECT_THAT(ToString(statuses[1]), HasSubstr(mesh::ErrorText(EMFILE)));
}

// The dialer has the only descriptor that is left, and the rank that accepts needs another one.
TEST(ScarcityTest, AcceptingWithoutDescriptorsNamesTheCauseAndDoesNotSpin) {
  RankPair pair;
  mesh::UniqueFd spare(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Hoard hoard;
  spare.Reset();
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  const std::vector<Status> statuses = pair.Connect(1);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(statuses[0].code(), StatusCode::kDeadlineExceeded) << ToString(statuses[0]);
  EXPECT_THAT(ToString(statuses[0]), HasSubstr("accepting connections: "));
  EXPECT_THAT(ToString(statuses[0]), HasSubstr(mesh::ErrorText(EMFILE)));
  const auto busy = [](const rusage& use) {
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
  };
  EXPECT_LT(busy(after) - busy(before), 0.5);
}

// The error must come within seconds and not only at the connect deadline.
TEST(ScarcityTest, LastingScarcityIsSaidWithinSecondsWithTheLimit) {
  for (const int rank : {0, 1}) {
    RankPair pair;
    mesh::UniqueFd spare(open("/dev/null", O_RDONLY | O_CLOEXEC));
    Hoard hoard;
    if (rank == 0) spare.Reset();  // for the dialer, which comes first
    const TimePoint start = RealClock().Now();
    std::vector<Status> statuses(2);
    RunRanks(2, [&](int r) {
      statuses[r] = pair.ranks[r]->Connect(pair.addresses, Within(kPatience));
      if (r == rank) pair.ranks[1 - r]->Interrupt();
    });
    EXPECT_LT(ToSeconds(RealClock().Now() - start), 10);
    EXPECT_EQ(statuses[rank].code(), StatusCode::kResourceExhausted) << ToString(statuses[rank]);
    EXPECT_THAT(ToString(statuses[rank]),
                AllOf(HasSubstr(StrCat("rank ", rank, " cannot connect: ")),
                      HasSubstr("too many open files (this process may have 200: ulimit -n)")));
  }
}

TEST(ScarcityTest, WhoCannotBeLetInToShareMemoryStaysOnTcp) {
  const std::string name = shm::NewRendezvousName();
  mesh::UniqueFd rendezvous = *shm::ListenAtRendezvous(name, 4);
  mesh::UniqueFd event_fd(eventfd(0, EFD_NONBLOCK));
  mesh::UniqueFd wake(eventfd(0, EFD_NONBLOCK));
  int tcp[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, tcp), 0);
  const mesh::UniqueFd own(tcp[0]), peers(tcp[1]), control = *shm::ConnectToRendezvous(name);
  Hoard hoard;
  StatusOr<std::vector<shm::AttachResult>> results = Unavailable("still running");
  std::thread attaching([&] {
    shm::Attacher attacher({.rank = 0,
                            .world = 2,
                            .ring_bytes = 4096,
                            .rendezvous = &rendezvous,
                            .event_fd = event_fd.get(),
                            .wake = wake.get()});
    results = attacher.Run({{1, "raw", own.get(), "", nullptr, {}}}, Within(kPatience));
  });
  pollfd closes = {control.get(), POLLIN, 0};
  EXPECT_EQ(poll(&closes, 1, 5000), 1) << "the one who asks still waits";
  const uint32_t stays_on_tcp = 0;
  mesh::WriteFrame(peers.get(), mesh::EncodeFrame(FrameType::kHello, 1,
                                                  std::as_bytes(std::span(&stays_on_tcp, 1))));
  attaching.join();
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  EXPECT_EQ((*results)[0].attachment, nullptr);
}

TEST(ScarcityTest, DescriptorsThatComeWithAMessageButCannotBeTakenAreNamed) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
  const mesh::UniqueFd from(pair[0]), to(pair[1]);
  const int descriptors[] = {from.get(), to.get()};
  ASSERT_TRUE(shm::SendHandshake(from.get(), std::vector<std::byte>(8), descriptors).ok());
  Hoard hoard;
  const auto message = shm::ReceiveHandshake(to.get());
  EXPECT_EQ(message.status().code(), StatusCode::kUnavailable) << ToString(message.status());
  EXPECT_THAT(ToString(message.status()), HasSubstr("too many open files (this process may have"));
}

TEST(ScarcityTest, DescriptorsThatComeBackInTimeAreEnough) {
  RankPair pair;
  Hoard hoard;
  std::thread later([&hoard] {
    const TimePoint at = Within(0.3);
    while (RealClock().Now() < at) std::this_thread::yield();
    hoard.GiveBack();
  });
  for (const Status& status : pair.Connect(kPatience)) EXPECT_TRUE(status.ok()) << ToString(status);
  later.join();
}

}  // namespace
}  // namespace weir::testing
