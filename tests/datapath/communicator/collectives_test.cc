// SPDX-License-Identifier: Apache-2.0
// Every collective against results computed here, over transports, world sizes and sizes that reach
// each algorithm.

#include <cmath>
#include <limits>
#include <tuple>

#include "datapath/base/half.h"
#include "tests/datapath/communicator/world_of_communicators.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Collectives : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    world = std::get<1>(GetParam());
    all = MakeCommunicators(world, std::get<0>(GetParam()));
    ASSERT_EQ(all.size(), static_cast<size_t>(world));
  }
  // Runs body(rank, outcome) on every rank and expects the operation it submits to succeed.
  void OnAll(const std::function<Status(int rank, Outcome& outcome)>& body) {
    RunRanks(world, [&](int rank) {
      Outcome outcome;
      const Status submitted = body(rank, outcome);
      ASSERT_TRUE(submitted.ok()) << submitted;
      const Status status = outcome.Wait();
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  int world = 0;
  Communicators all;
};

// Small integers: exact in every type and order.
template <typename T>
T Value(int rank, size_t i) {
  return static_cast<T>(1 + (static_cast<size_t>(rank) * 3 + i) % 4);
}

template <typename T>
T Expected(ReduceOperation operation, int world, size_t i) {
  T result = Value<T>(0, i);
  for (int r = 1; r < world; ++r) {
    const T next = Value<T>(r, i);
    switch (operation) {
      case ReduceOperation::kSum:
      case ReduceOperation::kAverage:
        result = static_cast<T>(result + next);
        break;
      case ReduceOperation::kProduct:
        result = static_cast<T>(result * next);
        break;
      case ReduceOperation::kMin:
        result = std::min(result, next);
        break;
      case ReduceOperation::kMax:
        result = std::max(result, next);
        break;
    }
  }
  return result;
}

constexpr ReduceOperation kOperations[] = {ReduceOperation::kSum, ReduceOperation::kProduct,
                                           ReduceOperation::kMin, ReduceOperation::kMax};

template <typename T>
void CheckAllReduce(ElementType type, Communicator& own, int rank, int world, size_t count) {
  for (const ReduceOperation operation : kOperations) {
    std::vector<T> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = Value<T>(rank, i);
    Outcome outcome;
    ASSERT_TRUE(own.AllReduce(Bytes(data), type, operation, outcome.Done()).ok());
    const Status status = outcome.Wait();
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(data[i], Expected<T>(operation, world, i))
          << "element " << i << " of " << count << ", operation " << static_cast<int>(operation)
          << ", type " << static_cast<int>(type);
    }
  }
}

TEST_P(Collectives, AllReduceOfEveryTypeAndOperation) {
  RunRanks(world, [&](int rank) {
    for (const size_t count : {0, 1, 5, 1000, 9000}) {
      CheckAllReduce<float>(ElementType::kFloat32, *all[rank], rank, world, count);
      CheckAllReduce<double>(ElementType::kFloat64, *all[rank], rank, world, count);
      CheckAllReduce<int8_t>(ElementType::kInt8, *all[rank], rank, world, count);
      CheckAllReduce<uint8_t>(ElementType::kUint8, *all[rank], rank, world, count);
      CheckAllReduce<int32_t>(ElementType::kInt32, *all[rank], rank, world, count);
      CheckAllReduce<int64_t>(ElementType::kInt64, *all[rank], rank, world, count);
    }
    CheckAllReduce<float>(ElementType::kFloat32, *all[rank], rank, world, 300001);  // the ring
  });
}

TEST_P(Collectives, AllReduceOfSixteenBitFloats) {
  for (const bool brain : {false, true}) {
    OnAll([&](int rank, Outcome& outcome) {
      std::vector<float> values(1500);
      for (size_t i = 0; i < values.size(); ++i) values[i] = Value<float>(rank, i);
      std::vector<uint16_t> data(values.size());
      brain ? FloatToBrain(values, data) : FloatToHalf(values, data);
      WEIR_RETURN_IF_ERROR(
          all[rank]->AllReduce(Bytes(data), brain ? ElementType::kBrain16 : ElementType::kFloat16,
                               ReduceOperation::kAverage, outcome.Done()));
      WEIR_RETURN_IF_ERROR(outcome.Wait());
      brain ? BrainToFloat(data, values) : HalfToFloat(data, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const float mean = Expected<float>(ReduceOperation::kSum, world, i) / world;
        EXPECT_NEAR(values[i], mean, mean / 128) << i;
      }
      return OkStatus();
    });
  }
}

// 65504 is the largest number of float16.
TEST_P(Collectives, AveragesOfLargeSixteenBitFloatsAreFinite) {
  OnAll([&](int rank, Outcome& outcome) {
    const auto large = [](size_t size) {
      std::vector<uint16_t> data(size);
      FloatToHalf(std::vector<float>(size, 60000), data);
      return data;
    };
    const auto check = [](const std::vector<uint16_t>& data) {
      std::vector<float> values(data.size());
      HalfToFloat(data, values);
      EXPECT_THAT(values, ::testing::Each(::testing::FloatNear(60000, 200)));
    };
    std::vector<uint16_t> all_reduced = large(1000), reduced = large(1000), own(1000);
    std::vector<uint16_t> input = large(own.size() * world);
    WEIR_RETURN_IF_ERROR(all[rank]->AllReduce(Bytes(all_reduced), ElementType::kFloat16,
                                              ReduceOperation::kAverage, outcome.Done()));
    WEIR_RETURN_IF_ERROR(outcome.Wait());
    check(all_reduced);
    Outcome second, third;
    WEIR_RETURN_IF_ERROR(all[rank]->Reduce(Bytes(reduced), ElementType::kFloat16,
                                           ReduceOperation::kAverage, 0, second.Done()));
    WEIR_RETURN_IF_ERROR(second.Wait());
    check(reduced);
    WEIR_RETURN_IF_ERROR(all[rank]->ReduceScatter(Bytes(input), Bytes(own), ElementType::kFloat16,
                                                  ReduceOperation::kAverage, third.Done()));
    WEIR_RETURN_IF_ERROR(third.Wait());
    check(own);
    return OkStatus();
  });
}

TEST_P(Collectives, NanReachesEveryRankThroughSumMinAndMax) {
  for (const ReduceOperation operation :
       {ReduceOperation::kSum, ReduceOperation::kMin, ReduceOperation::kMax}) {
    OnAll([&](int rank, Outcome& outcome) {
      std::vector<float> data = {1.0f, static_cast<float>(rank)};
      if (rank == world - 1) data[0] = std::numeric_limits<float>::quiet_NaN();
      WEIR_RETURN_IF_ERROR(
          all[rank]->AllReduce(Bytes(data), ElementType::kFloat32, operation, outcome.Done()));
      WEIR_RETURN_IF_ERROR(outcome.Wait());
      EXPECT_TRUE(std::isnan(data[0]));
      EXPECT_FALSE(std::isnan(data[1]));
      return OkStatus();
    });
  }
}

TEST_P(Collectives, BroadcastAndReduceFromAndToEveryRoot) {
  for (int root = 0; root < world; ++root) {
    for (const size_t count : {0, 1, 7, 70000, 600000}) {
      OnAll([&](int rank, Outcome& outcome) {
        std::vector<int32_t> data(count, rank == root ? 0 : -1);
        if (rank == root) {
          for (size_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i * 7 + 1);
        }
        WEIR_RETURN_IF_ERROR(all[rank]->Broadcast(Bytes(data), root, outcome.Done()));
        WEIR_RETURN_IF_ERROR(outcome.Wait());
        for (size_t i = 0; i < count; ++i) {
          if (data[i] != static_cast<int32_t>(i * 7 + 1)) return Internal(StrCat("element ", i));
        }
        return OkStatus();
      });
      OnAll([&](int rank, Outcome& outcome) {
        std::vector<double> data(count);
        for (size_t i = 0; i < count; ++i) data[i] = Value<double>(rank, i);
        WEIR_RETURN_IF_ERROR(all[rank]->Reduce(Bytes(data), ElementType::kFloat64,
                                               ReduceOperation::kSum, root, outcome.Done()));
        WEIR_RETURN_IF_ERROR(outcome.Wait());
        for (size_t i = 0; i < count; ++i) {
          const double wanted = rank == root ? Expected<double>(ReduceOperation::kSum, world, i)
                                             : Value<double>(rank, i);
          if (data[i] != wanted) return Internal(StrCat("element ", i));
        }
        return OkStatus();
      });
    }
  }
}

TEST_P(Collectives, ReduceScatterAndAllGatherPutRunsInRankOrder) {
  for (const size_t count : {0, 1, 7, 5000, 200000}) {
    OnAll([&](int rank, Outcome& outcome) {
      std::vector<int64_t> input(count * world), own(count), gathered(count * world, -1);
      for (size_t i = 0; i < input.size(); ++i) input[i] = Value<int64_t>(rank, i) << 33;
      const std::vector<int64_t> before = input;
      WEIR_RETURN_IF_ERROR(all[rank]->ReduceScatter(Bytes(input), Bytes(own), ElementType::kInt64,
                                                    ReduceOperation::kSum, outcome.Done()));
      WEIR_RETURN_IF_ERROR(outcome.Wait());
      EXPECT_EQ(input, before);
      for (size_t i = 0; i < count; ++i) {
        const int64_t sum = Expected<int64_t>(ReduceOperation::kSum, world, rank * count + i);
        if (own[i] != sum << 33) return Internal(StrCat("element ", i));
      }
      Outcome second;
      WEIR_RETURN_IF_ERROR(all[rank]->AllGather(Bytes(own), Bytes(gathered), second.Done()));
      WEIR_RETURN_IF_ERROR(second.Wait());
      for (size_t i = 0; i < gathered.size(); ++i) {
        const int64_t sum = Expected<int64_t>(ReduceOperation::kSum, world, i);
        if (gathered[i] != sum << 33) return Internal(StrCat("gathered ", i));
      }
      return OkStatus();
    });
  }
}

TEST_P(Collectives, AveragesReachTheRootAndTheOwnersAlone) {
  constexpr size_t kCount = 1000;
  const auto average = [&](size_t i) {
    return Expected<double>(ReduceOperation::kAverage, world, i) / world;
  };
  OnAll([&](int rank, Outcome& outcome) {
    std::vector<double> data(kCount), input(kCount * world), own(kCount);
    for (size_t i = 0; i < kCount; ++i) data[i] = Value<double>(rank, i);
    for (size_t i = 0; i < input.size(); ++i) input[i] = Value<double>(rank, i);
    WEIR_RETURN_IF_ERROR(all[rank]->Reduce(Bytes(data), ElementType::kFloat64,
                                           ReduceOperation::kAverage, world - 1, outcome.Done()));
    WEIR_RETURN_IF_ERROR(outcome.Wait());
    for (size_t i = 0; i < kCount; ++i) {
      const double wanted = rank == world - 1 ? average(i) : Value<double>(rank, i);
      if (data[i] != wanted) return Internal(StrCat("reduced element ", i));
    }
    Outcome second;
    WEIR_RETURN_IF_ERROR(all[rank]->ReduceScatter(Bytes(input), Bytes(own), ElementType::kFloat64,
                                                  ReduceOperation::kAverage, second.Done()));
    WEIR_RETURN_IF_ERROR(second.Wait());
    for (size_t i = 0; i < kCount; ++i) {
      if (own[i] != average(rank * kCount + i)) return Internal(StrCat("own element ", i));
    }
    return OkStatus();
  });
}

TEST_P(Collectives, AllToAllWithUnlikeSizes) {
  // Rank a sends rank b (a + 1) * (b + 2) * scale numbers, which say a, b and their place.
  for (const size_t scale : {0, 1, 30000}) {
    OnAll([&](int rank, Outcome& outcome) {
      std::vector<std::vector<uint32_t>> outgoing(world), incoming(world);
      std::vector<std::span<const std::byte>> from(world);
      std::vector<std::span<std::byte>> to(world);
      const auto word = [](int a, int b, size_t i) {
        return static_cast<uint32_t>(a << 28 | b << 24 | (i & 0xFFFFFF));
      };
      for (int peer = 0; peer < world; ++peer) {
        outgoing[peer].resize((rank + 1) * (peer + 2) * scale);
        for (size_t i = 0; i < outgoing[peer].size(); ++i) outgoing[peer][i] = word(rank, peer, i);
        incoming[peer].resize((peer + 1) * (rank + 2) * scale);
        from[peer] = Bytes(outgoing[peer]);
        to[peer] = Bytes(incoming[peer]);
      }
      WEIR_RETURN_IF_ERROR(all[rank]->AllToAll(from, to, outcome.Done()));
      WEIR_RETURN_IF_ERROR(outcome.Wait());
      for (int peer = 0; peer < world; ++peer) {
        for (size_t i = 0; i < incoming[peer].size(); ++i) {
          if (incoming[peer][i] != word(peer, rank, i)) return Internal(StrCat("element ", i));
        }
      }
      return OkStatus();
    });
  }
}

TEST_P(Collectives, BarrierWaitsForTheLast) {
  std::atomic<int> arrived = 0;
  for (int round = 0; round < 20; ++round) {
    OnAll([&](int rank, Outcome& outcome) {
      if (rank == round % world) std::this_thread::yield();
      ++arrived;
      WEIR_RETURN_IF_ERROR(all[rank]->Barrier(outcome.Done()));
      WEIR_RETURN_IF_ERROR(outcome.Wait());
      EXPECT_GE(arrived.load(), (round + 1) * world);
      return OkStatus();
    });
  }
}

TEST_P(Collectives, ManyQueuedOperationsEndInOrder) {
  constexpr int kCount = 100;
  RunRanks(world, [&](int rank) {
    std::vector<std::vector<int32_t>> data(kCount, std::vector<int32_t>(50, 1));
    std::vector<Outcome> outcomes(kCount);
    for (int k = 0; k < kCount; ++k) {
      ASSERT_TRUE(all[rank]
                      ->AllReduce(Bytes(data[k]), ElementType::kInt32, ReduceOperation::kSum,
                                  outcomes[k].Done())
                      .ok());
    }
    EXPECT_TRUE(outcomes[kCount - 1].Wait().ok());
    for (Outcome& outcome : outcomes) EXPECT_TRUE(outcome.done());
    for (const auto& values : data) EXPECT_EQ(values, std::vector<int32_t>(50, world));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives,
                         ::testing::Combine(::testing::Values("auto", "tcp"),
                                            ::testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& info) {
                           return StrCat(std::get<0>(info.param), std::get<1>(info.param));
                         });

TEST(CommunicatorTest, RanksOfOneHostSumWithoutSendingThePayload) {
  for (const bool shared : {true, false}) {
    Communicators all = MakeCommunicators(3, shared ? "auto" : "tcp");
    ASSERT_EQ(all.size(), 3u);
    constexpr size_t kCount = 1 << 18;
    RunRanks(3, [&](int rank) {
      Communicator& own = *all[static_cast<size_t>(rank)];
      const uint64_t before = own.bytes_sent();
      CheckAllReduce<float>(ElementType::kFloat32, own, rank, 3, kCount);
      const double share = static_cast<double>(own.bytes_sent() - before) /
                           static_cast<double>(std::size(kOperations) * kCount * sizeof(float));
      if (shared) {
        EXPECT_LT(share, 0.01);  // messages that say when
      } else {
        EXPECT_GT(share, 1.3);  // 2 (N-1)/N
      }
    });
  }
}

TEST(CommunicatorTest, UnlikeOperationsFailOnBothSides) {
  Communicators all = MakeCommunicators(2);
  ASSERT_EQ(all.size(), 2u);
  std::vector<float> data(8);
  std::vector<Outcome> outcomes(2);
  ASSERT_TRUE(
      all[0]
          ->AllReduce(Bytes(data), ElementType::kFloat32, ReduceOperation::kSum, outcomes[0].Done())
          .ok());
  std::vector<float> other(8);
  ASSERT_TRUE(all[1]
                  ->AllReduce(Bytes(other), ElementType::kFloat32, ReduceOperation::kMax,
                              outcomes[1].Done())
                  .ok());
  std::string texts;
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = outcomes[rank].Wait();
    texts += Message(status);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), AllOf(HasSubstr("all-reduce"), HasSubstr("rank")));
  }
  EXPECT_THAT(texts, HasSubstr("unlike collectives"));  // who met it first says so to the other
  Outcome later;
  ASSERT_TRUE(all[0]->Barrier(later.Done()).ok());
  EXPECT_FALSE(later.Wait().ok());
}

TEST(CommunicatorTest, MissingRankIsNamedOnTheOthers) {
  Communicators all = MakeCommunicators(3, "auto", 0.3);
  ASSERT_EQ(all.size(), 3u);
  RunRanks(2, [&](int rank) {
    Outcome outcome;
    ASSERT_TRUE(all[rank]->Barrier(outcome.Done()).ok());
    const Status status = outcome.Wait();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(Message(status), HasSubstr("rank 2"));
  });
}

TEST(CommunicatorTest, WrongArgumentsAreRefusedAtOnce) {
  CommunicatorOptions options;
  EXPECT_EQ(Communicator::Create(options).status().code(), StatusCode::kInvalidArgument);
  options.job = "j";
  options.transport = "pigeon";
  EXPECT_EQ(Communicator::Create(options).status().code(), StatusCode::kNotFound);
  options.transport = "tcp";
  options.world = 100000;
  EXPECT_EQ(Communicator::Create(options).status().code(), StatusCode::kInvalidArgument);

  Communicators all = MakeCommunicators(2);
  ASSERT_EQ(all.size(), 2u);
  std::vector<float> data(4);
  const auto never = [](const Status&, int) { ADD_FAILURE() << "was refused, yet called"; };
  Communicator& own = *all[0];
  const auto invalid = [](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  };
  invalid(own.Broadcast(Bytes(data), 2, never));
  invalid(own.AllReduce(Bytes(data).first(3), ElementType::kFloat32, ReduceOperation::kSum, never));
  invalid(own.AllReduce(Bytes(data).subspan(1, 4), ElementType::kFloat32, ReduceOperation::kSum,
                        never));
  invalid(own.AllReduce(Bytes(data), ElementType::kInt32, ReduceOperation::kAverage, never));
  invalid(own.AllGather(Bytes(data), Bytes(data), never));
  invalid(own.ReduceScatter(Bytes(data), Bytes(data), ElementType::kFloat32, ReduceOperation::kSum,
                            never));
  invalid(own.AllToAll({}, {}, never));
  invalid(own.Send(Bytes(data), 0, 0, never));
  invalid(own.Send(Bytes(data), kAnyRank, 0, never));
  invalid(own.Receive(Bytes(data), 2, 0, never));
  own.Close();
  EXPECT_EQ(own.Barrier(never).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace weir::testing
