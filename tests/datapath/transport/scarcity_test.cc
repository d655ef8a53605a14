// A machine that has no descriptors left, for as long as a mesh is made or for a while.
//
// What goes wrong in the field, and the tests that have it (conformance: over every transport):
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
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "datapath/transport/mesh/socket.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;

/// Takes every descriptor that the process may have, until it ends or is told to give them back.
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

// The dialer has the only descriptor that is left; whoever accepts needs another one.
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
