// SPDX-License-Identifier: Apache-2.0
// Messages between pairs: matching, progress beside collectives, and how they end badly.

#include <thread>

#include "tests/datapath/communicator/world_of_communicators.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Messages : public ::testing::TestWithParam<std::string> {
 protected:
  Communicators Make(int world, double timeout_s = 20) {
    return MakeCommunicators(world, GetParam(), timeout_s);
  }
};

std::vector<uint32_t> Numbers(size_t count, uint32_t seed) {
  std::vector<uint32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = seed * 2654435761u + static_cast<uint32_t>(i);
  return values;
}

void ExpectOk(Outcome& outcome) {
  const Status status = outcome.Wait();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(Messages, BothSendLargeThenReceive) {
  Communicators all = Make(2);
  ASSERT_EQ(all.size(), 2u);
  constexpr size_t kCount = (16 << 20) / 4 + 3;  // more than sockets and rings hold
  std::vector<std::vector<uint32_t>> out(2), in(2, std::vector<uint32_t>(kCount));
  std::vector<Outcome> sent(2), received(2);
  for (int rank = 0; rank < 2; ++rank) out[rank] = Numbers(kCount, rank);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(all[rank]->Send(Bytes(out[rank]), 1 - rank, 7, sent[rank].Done()).ok());
  }
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(all[rank]->Receive(Bytes(in[rank]), 1 - rank, 7, received[rank].Done()).ok());
  }
  for (int rank = 0; rank < 2; ++rank) {
    ExpectOk(sent[rank]);
    ExpectOk(received[rank]);
    EXPECT_TRUE(in[rank] == out[1 - rank]);
    EXPECT_EQ(received[rank].peer(), 1 - rank);
  }
}

TEST_P(Messages, MatchByTagWhateverTheOrder) {
  Communicators all = Make(2);
  ASSERT_EQ(all.size(), 2u);
  constexpr int kCount = 40, kLast = 1000;
  std::vector<std::vector<uint32_t>> out(kCount), in(kCount);
  std::vector<Outcome> sent(kCount), received(kCount);
  for (int k = 0; k < kCount; ++k) {
    out[k] = Numbers(static_cast<size_t>(k % 5) * 1000, k);  // some are empty
    in[k].resize(out[k].size());
    ASSERT_TRUE(all[0]->Send(Bytes(out[k]), 1, k, sent[k].Done()).ok());
  }
  // Earlier offers arrive before the last message, so half of the receives find an offer.
  Outcome last_sent, last_received;
  std::vector<uint32_t> last_out = Numbers(1, kLast), last_in(1);
  for (int k = kCount - 1; k >= kCount / 2; --k) {
    ASSERT_TRUE(all[1]->Receive(Bytes(in[k]), 0, k, received[k].Done()).ok());
  }
  ASSERT_TRUE(all[0]->Send(Bytes(last_out), 1, kLast, last_sent.Done()).ok());
  ASSERT_TRUE(all[1]->Receive(Bytes(last_in), 0, kLast, last_received.Done()).ok());
  ExpectOk(last_received);
  EXPECT_EQ(last_in, last_out);
  for (int k = kCount / 2 - 1; k >= 0; --k) {
    ASSERT_TRUE(all[1]->Receive(Bytes(in[k]), 0, k, received[k].Done()).ok());
  }
  for (int k = 0; k < kCount; ++k) {
    ExpectOk(sent[k]);
    ExpectOk(received[k]);
    EXPECT_EQ(in[k], out[k]) << k;
  }
  ExpectOk(last_sent);
}

TEST_P(Messages, EqualTagsKeepTheirOrder) {
  Communicators all = Make(2);
  ASSERT_EQ(all.size(), 2u);
  std::vector<std::vector<uint32_t>> out = {Numbers(10, 1), Numbers(10, 2), Numbers(10, 3)};
  std::vector<std::vector<uint32_t>> in(3, std::vector<uint32_t>(10));
  std::vector<Outcome> sent(3), received(3);
  ASSERT_TRUE(all[1]->Receive(Bytes(in[0]), 0, 5, received[0].Done()).ok());
  for (int k = 0; k < 3; ++k) {
    ASSERT_TRUE(all[0]->Send(Bytes(out[k]), 1, 5, sent[k].Done()).ok());
  }
  for (int k = 1; k < 3; ++k) {
    ASSERT_TRUE(all[1]->Receive(Bytes(in[k]), 0, 5, received[k].Done()).ok());
  }
  for (int k = 0; k < 3; ++k) {
    ExpectOk(sent[k]);
    ExpectOk(received[k]);
    EXPECT_EQ(in[k], out[k]) << k;
  }
}

TEST_P(Messages, AnyRankTakesEachSenderOnceAndNamesIt) {
  Communicators all = Make(4);
  ASSERT_EQ(all.size(), 4u);
  std::vector<std::vector<uint32_t>> out(4), in(4, std::vector<uint32_t>(9));
  std::vector<Outcome> sent(4), received(4);
  for (int rank = 1; rank < 4; ++rank) {
    out[rank] = Numbers(9, rank);
    ASSERT_TRUE(all[rank]->Send(Bytes(out[rank]), 0, 3, sent[rank].Done()).ok());
    ASSERT_TRUE(all[0]->Receive(Bytes(in[rank]), kAnyRank, 3, received[rank].Done()).ok());
  }
  std::set<int> peers;
  for (int k = 1; k < 4; ++k) {
    ExpectOk(received[k]);
    ExpectOk(sent[k]);
    peers.insert(received[k].peer());
    EXPECT_EQ(in[k], Numbers(9, received[k].peer()));
  }
  EXPECT_EQ(peers, (std::set<int>{1, 2, 3}));
}

TEST_P(Messages, MoveWhileACollectiveWaits) {
  Communicators all = Make(2);
  ASSERT_EQ(all.size(), 2u);
  Outcome barrier, sent, received, late;
  ASSERT_TRUE(all[0]->Barrier(barrier.Done()).ok());  // rank 1 comes only after the message
  std::vector<uint32_t> out = Numbers(1 << 20, 4), in(1 << 20);
  ASSERT_TRUE(all[0]->Send(Bytes(out), 1, 0, sent.Done()).ok());
  ASSERT_TRUE(all[1]->Receive(Bytes(in), 0, 0, received.Done()).ok());
  ExpectOk(received);
  ExpectOk(sent);
  EXPECT_EQ(in, out);
  EXPECT_FALSE(barrier.done());
  ASSERT_TRUE(all[1]->Barrier(late.Done()).ok());
  ExpectOk(barrier);
  ExpectOk(late);
}

TEST_P(Messages, UnlikeSizesFailBothSidesAndNothingElse) {
  Communicators all = Make(2);
  ASSERT_EQ(all.size(), 2u);
  std::vector<uint32_t> out(4), in(5);
  Outcome sent, received;
  ASSERT_TRUE(all[0]->Send(Bytes(out), 1, 0, sent.Done()).ok());
  ASSERT_TRUE(all[1]->Receive(Bytes(in), 0, 0, received.Done()).ok());
  for (Outcome* outcome : {&sent, &received}) {
    const Status status = outcome->Wait();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 0 sent 16 bytes"), HasSubstr("rank 1"),
                                       HasSubstr("expected 20")));
  }
  Outcome again, good;
  ASSERT_TRUE(all[0]->Send(Bytes(out), 1, 0, again.Done()).ok());
  ASSERT_TRUE(all[1]->Receive(Bytes(in).first(16), 0, 0, good.Done()).ok());
  ExpectOk(again);
  ExpectOk(good);
}

TEST_P(Messages, DeadlineNamesTheSilentRank) {
  Communicators all = Make(3, 0.2);
  ASSERT_EQ(all.size(), 3u);
  std::vector<uint32_t> in(4);
  Outcome received;
  ASSERT_TRUE(all[0]->Receive(Bytes(in), 2, 9, received.Done()).ok());
  const Status status = received.Wait();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 2"), HasSubstr("tag 9")));
  Outcome other;  // the others hear of it
  ASSERT_TRUE(all[1]->Receive(Bytes(in), 2, 9, other.Done()).ok());
  EXPECT_THAT(Message(other.Wait()), HasSubstr("rank 2"));
}

TEST_P(Messages, PeerThatClosesEndsWhatWasAskedOfIt) {
  Communicators all = Make(3);
  ASSERT_EQ(all.size(), 3u);
  std::vector<uint32_t> first(4), second(4), out = Numbers(4, 8);
  Outcome from_gone, to_gone, from_alive, sent;
  ASSERT_TRUE(all[0]->Receive(Bytes(first), 1, 0, from_gone.Done()).ok());
  ASSERT_TRUE(all[0]->Send(Bytes(out), 1, 0, to_gone.Done()).ok());
  ASSERT_TRUE(all[0]->Receive(Bytes(second), 2, 0, from_alive.Done()).ok());
  all[1]->Close();
  for (Outcome* outcome : {&from_gone, &to_gone}) {
    const Status status = outcome->Wait();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(Message(status), HasSubstr("rank 1 closed"));
  }
  ASSERT_TRUE(all[2]->Send(Bytes(out), 0, 0, sent.Done()).ok());
  ExpectOk(from_alive);
  ExpectOk(sent);
  EXPECT_EQ(second, out);
  Outcome later;
  ASSERT_TRUE(all[0]->Send(Bytes(out), 1, 0, later.Done()).ok());
  EXPECT_EQ(later.Wait().code(), StatusCode::kUnavailable);
}

TEST_P(Messages, OwnCloseEndsEverything) {
  Communicators all = Make(2);
  ASSERT_EQ(all.size(), 2u);
  std::vector<uint32_t> in(4);
  Outcome received, barrier;
  ASSERT_TRUE(all[0]->Receive(Bytes(in), 1, 0, received.Done()).ok());
  ASSERT_TRUE(all[0]->Barrier(barrier.Done()).ok());
  const TimePoint start = RealClock().Now();
  all[0]->Close();
  EXPECT_LT(ToSeconds(RealClock().Now() - start), 5);
  EXPECT_EQ(received.Wait().code(), StatusCode::kAborted);
  EXPECT_EQ(barrier.Wait().code(), StatusCode::kAborted);
}

TEST_P(Messages, ManyThreadsExchangeAtOnce) {
  constexpr int kWorld = 3, kThreads = 3, kRounds = 20;
  Communicators all = Make(kWorld);
  ASSERT_EQ(all.size(), size_t{kWorld});
  RunRanks(kWorld * kThreads, [&](int index) {
    const int rank = index / kThreads, lane = index % kThreads;
    const int next = (rank + 1) % kWorld, previous = (rank + kWorld - 1) % kWorld;
    for (int round = 0; round < kRounds; ++round) {
      const size_t count = static_cast<size_t>(1) << (round % 18);
      std::vector<uint32_t> out = Numbers(count, rank * 100 + lane), in(count);
      Outcome sent, received;
      ASSERT_TRUE(all[rank]->Send(Bytes(out), next, lane, sent.Done()).ok());
      ASSERT_TRUE(all[rank]->Receive(Bytes(in), previous, lane, received.Done()).ok());
      ExpectOk(sent);
      ExpectOk(received);
      ASSERT_EQ(in, Numbers(count, previous * 100 + lane));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Messages, ::testing::Values("auto", "tcp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace weir::testing
