// SPDX-License-Identifier: Apache-2.0
// Several encode threads: operations overlap there, move in order, and give the same bits.

#include "datapath/session/pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::RandomGradients;
using testing::SessionWorld;
using testing::SumOver;
using testing::UniformPlan;

constexpr Duration kLong = std::chrono::seconds(20);

TEST(PipelineTest, WorkersEncodeAtOnceAndOperationsGoOnInOrder) {
  constexpr int kOperations = 8;
  std::vector<Operation> operations(kOperations);
  for (int i = 0; i < kOperations; ++i) operations[i].index = i;
  Mutex mutex;
  CondVar changed;
  int encoded = 0;
  bool first_waited = true;
  std::vector<uint64_t> moved, decoded;
  Pipeline pipeline({.prepare =
                         [&](Operation& op) {
                           MutexLock lock(mutex);
                           const TimePoint deadline = RealClock().Now() + kLong;
                           // The first is the last one to be prepared of those that the workers
                           // hold.
                           while (op.index == 0 && encoded < 2) {
                             if (!changed.WaitUntil(mutex, deadline)) break;
                           }
                           if (op.index == 0) first_waited = encoded >= 2;
                           ++encoded;
                           changed.NotifyAll();
                         },
                     .move =
                         [&](std::span<Operation* const> ops, int) {
                           for (const Operation* const op : ops) moved.push_back(op->index);
                           return ReadyCount();
                         },
                     .decode = [&](Operation& op) { decoded.push_back(op.index); },
                     .nudged = [] {}},
                    3);
  for (Operation& op : operations) ASSERT_TRUE(pipeline.Submit(&op).ok());
  pipeline.Drain(nullptr);
  EXPECT_TRUE(first_waited) << "others were not encoded while the first one was";
  const std::vector<uint64_t> in_order = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(moved, in_order);
  EXPECT_EQ(decoded, in_order);
}

// A rank's operations, each with a given number of parts. The first part may join those of others,
// or the first two are like sums of a node: in the first all ranks send to rank 0, and in the
// second it sends to all.
struct Script {
  std::vector<int> parts;
  std::vector<bool> joins, of_node = std::vector<bool>(parts.size());
};

// A model of the network. Ranks wait for each other only as a part requires.
class Meetings {
 public:
  Meetings(int ranks, Script script) : ranks_(ranks), script_(std::move(script)), moved(ranks) {}

  /// The implementation of Stages::move for the pipelines.
  ReadyCount Move(int rank, const std::vector<uint64_t>& ops, int part, int ready) {
    MutexLock lock(mutex_);
    moved[rank].push_back(ops);
    std::map<int, int>& said = said_[{ops, part}];
    said[rank] = std::min(ready, kReadyOperationsMax);
    changed_.NotifyAll();
    const bool of_node = script_.of_node[ops[0]] && part <= 2;
    const bool to_first = of_node && part == 1, from_first = of_node && part == 2;
    std::vector<int> heard = {rank};
    if (from_first) heard.push_back(0);
    if (!of_node || (to_first && rank == 0)) {
      for (int other = 0; other < ranks_; ++other) heard.push_back(other);
    }
    const TimePoint deadline = RealClock().Now() + kLong;
    ReadyCount least{.count = kReadyOperationsMax, .everywhere = !to_first};
    for (const int other : heard) {
      while (!said.contains(other) && changed_.WaitUntil(mutex_, deadline)) {
      }
      if (!said.contains(other)) {
        ADD_FAILURE() << "rank " << rank << " waits for rank " << other << " in operation "
                      << ops[0];
        return {};
      }
      least.count = std::min(least.count, said[other]);
    }
    return least;
  }
  const Script& script() const { return script_; }

 private:
  const int ranks_;
  const Script script_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<std::vector<uint64_t>, int>, std::map<int, int>> said_;

 public:
  // The indices of the operations of each part, by rank. Call it once the pipelines are drained.
  std::vector<std::vector<std::vector<uint64_t>>> moved;
};

class ScriptedRank {
 public:
  ScriptedRank(Meetings& meetings, int rank, int workers,
               std::function<void(const Operation&, int part)> compute)
      : script_(meetings.script()),
        operations_(script_.parts.size()),
        prepared_(script_.parts.size()),
        pipeline_({.prepare =
                       [this, compute](Operation& op) {
                         compute(op, ++prepared_[op.index]);
                         op.joins = prepared_[op.index] == 1 && script_.joins[op.index];
                       },
                   .move =
                       [this, &meetings, rank](std::span<Operation* const> ops, int ready) {
                         std::vector<uint64_t> indices;
                         for (Operation* const op : ops) {
                           indices.push_back(op->index);
                           op->more = prepared_[op->index] < script_.parts[op->index];
                         }
                         return meetings.Move(rank, indices, prepared_[indices[0]], ready);
                       },
                   .decode = [this](Operation&) { ++decoded_; },
                   .nudged = [] {}},
                  workers) {
    for (size_t i = 0; i < operations_.size(); ++i) operations_[i].index = i;
  }
  ~ScriptedRank() { Finish(); }

  void Submit(size_t index) { EXPECT_TRUE(pipeline_.Submit(&operations_[index]).ok()); }
  int decoded() const { return decoded_.load(); }
  void Finish() { pipeline_.Drain(nullptr); }

 private:
  const Script script_;
  std::vector<Operation> operations_;
  std::vector<int> prepared_;
  std::atomic<int> decoded_ = 0;
  Pipeline pipeline_;
};

Script RandomScript(size_t operations, uint64_t seed) {
  Random random(seed);
  Script script;
  for (size_t i = 0; i < operations; ++i) {
    const uint64_t kind = random.Below(4);
    script.joins.push_back(kind == 1);
    script.of_node.push_back(kind == 2);
    script.parts.push_back(kind == 0 ? 1 : 2 + static_cast<int>(random.Below(2)));
  }
  return script;
}

TEST(PipelineTest, RanksMoveTheSamePartsInTheSameOrderWhateverTheirTimes) {
  constexpr int kRanks = 3;
  constexpr size_t kOperations = 40;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    Meetings meetings(kRanks, RandomScript(kOperations, seed));
    std::vector<std::thread> callers;
    for (int rank = 0; rank < kRanks; ++rank) {
      callers.emplace_back([&, rank] {
        ScriptedRank job(meetings, rank, 1 + rank, [&](const Operation& op, int part) {
          Random delay(MixSeed(seed, 64 * op.index + static_cast<uint64_t>(8 * part + rank)));
          std::this_thread::sleep_for(std::chrono::microseconds(delay.Below(300)));
        });
        Random own(MixSeed(seed, static_cast<uint64_t>(rank)));
        for (size_t i = 0; i < kOperations; ++i) {
          job.Submit(i);
          // Some callers wait for the operations that they submitted before they submit more.
          if (own.Below(8) != 0) continue;
          const TimePoint deadline = RealClock().Now() + kLong;
          while (job.decoded() <= static_cast<int>(i) && RealClock().Now() < deadline) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
          }
        }
        job.Finish();
        EXPECT_EQ(job.decoded(), static_cast<int>(kOperations));
      });
    }
    for (std::thread& caller : callers) caller.join();
    std::vector<int> moved(kOperations);
    for (const auto& part : meetings.moved[0]) {
      for (const uint64_t index : part) ++moved[index];
    }
    EXPECT_EQ(moved, meetings.script().parts);
    for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(meetings.moved[rank], meetings.moved[0]);
    if (HasFailure()) break;
  }
}

// Preparing the first operation's second part takes until others have moved and are prepared again.
TEST(PipelineTest, OthersMoveWhileTheNextPartIsPrepared) {
  Mutex mutex;
  CondVar changed;
  int prepared_again = 0;
  bool last_begun = false, first_again = false, in_time = true;
  const Script script{.parts = {2, 2, 2, 1, 1}, .joins = {false, true, true, false, false}};
  Meetings alone(1, script);
  ScriptedRank job(alone, 0, 2, [&](const Operation& op, int part) {
    MutexLock lock(mutex);
    const TimePoint deadline = RealClock().Now() + kLong;
    const auto await = [&](const auto& condition) WEIR_REQUIRES(mutex) {
      while (!condition() && changed.WaitUntil(mutex, deadline)) {
      }
      in_time = in_time && condition();
    };
    if (op.index == 4) last_begun = true;
    if (op.index == 0 && part == 2) first_again = true;
    if (op.index > 0 && part == 2) ++prepared_again;
    changed.NotifyAll();
    // One worker is busy with it while the other prepares all but the last, which waits until it
    // has moved.
    if (op.index == 0 && part == 1) await([&] { return last_begun; });
    if (op.index == 4) await([&] { return first_again; });
    if (op.index == 0 && part == 2) await([&] { return prepared_again == 2; });
  });
  for (size_t i = 0; i < script.parts.size(); ++i) job.Submit(i);
  job.Finish();
  EXPECT_TRUE(in_time);
  std::vector<std::vector<uint64_t>> moved = alone.moved[0];
  std::erase(moved, std::vector<uint64_t>{4});
  // Maxima go first, in one message.
  const std::vector<std::vector<uint64_t>> expected = {{0}, {1, 2}, {3}, {0}, {1}, {2}};
  EXPECT_EQ(moved, expected);
}

// While nothing is delivered, payloads stay within the bound that plans assume, which is tight.
TEST(PipelineTest, NoMoreOperationsAreUnderWayThanPlansCountPayloads) {
  for (const int workers : {1, 3}) {
    SCOPED_TRACE(workers);
    const size_t bound = kPayloadsPastEncodingMax + static_cast<size_t>(workers);
    std::vector<Operation> operations(3 * bound);
    Mutex mutex;
    CondVar changed;
    size_t under_way = 0, most = 0;
    Pipeline pipeline(
        {.prepare =
             [&](Operation&) {
               MutexLock lock(mutex);
               most = std::max(most, ++under_way);
               changed.NotifyAll();
             },
         .move = [&](std::span<Operation* const>,
                     int ready) { return ReadyCount{.count = ready, .everywhere = true}; },
         .decode =
             [&](Operation& op) {
               MutexLock lock(mutex);
               const auto await = [&](size_t count, Duration long_enough) WEIR_REQUIRES(mutex) {
                 const TimePoint deadline = RealClock().Now() + long_enough;
                 while (most < count && changed.WaitUntil(mutex, deadline)) {
                 }
               };
               if (&op == &operations.front()) {
                 await(bound, kLong);
                 await(bound + 1, std::chrono::milliseconds(100));
               }
               --under_way;
             },
         .nudged = [] {}},
        workers);
    for (Operation& op : operations) ASSERT_TRUE(pipeline.Submit(&op).ok());
    pipeline.Drain(nullptr);
    EXPECT_EQ(most, bound);
  }
}

// Returns what three steps of five buckets deliver, and the residuals after them.
std::vector<std::vector<std::byte>> Deliver(int workers, const Choice& choice) {
  constexpr int kWorld = 3;
  constexpr int kBuckets = 5;
  SessionWorld job({.world = kWorld, .transport = "inproc", .encode_workers = workers, .job = "j"});
  job.Up();
  std::vector<uint64_t> keys;
  std::vector<size_t> sizes;
  for (int b = 0; b < kBuckets; ++b) {
    sizes.push_back(900 + 777 * static_cast<size_t>(b));
    keys.push_back(job.Define({{StrCat("p", b), sizes.back()}}));
  }
  job.Switch(UniformPlan(3, choice), keys[0], sizes[0]);
  std::vector<std::vector<std::byte>> found;
  for (int step = 0; step < 3; ++step) {
    std::vector<std::vector<std::vector<float>>> data;
    for (int b = 0; b < kBuckets; ++b) {
      data.push_back(RandomGradients(kWorld, sizes[b], static_cast<uint64_t>(10 * step + b)));
    }
    job.Begin();
    for (int b = 0; b < kBuckets; ++b) job.AllReduce(keys[b], data[b]);
    EXPECT_FALSE(job.End());
    for (const auto& bucket : data) {
      const auto bytes = std::as_bytes(std::span(bucket[0]));
      found.emplace_back(bytes.begin(), bytes.end());
    }
  }
  EXPECT_EQ(job.sessions[0]->ActivePlan()->version, 3u);
  for (int rank = 0; rank < kWorld; ++rank) found.push_back(job.Export(rank));
  return found;
}

TEST(PipelineTest, ThreeWorkersComeToTheBitsOfOne) {
  const Choice choices[] = {
      {.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.1},
      {.codec = "qsgd", .collective = "ring"},
      {.codec = "fp16", .collective = "ring"},
      {.codec = "top_k:memory=ef21", .collective = "sparse_all_gather", .ratio = 0.1},
      {.codec = "arc_top_k", .collective = "ring", .ratio = 0.25},
      {.codec = "top_k", .collective = "reencode", .ratio = 0.1},
      {.codec = "top_k", .collective = "node_shards", .ratio = 0.1},
      {.codec = "power_sgd", .collective = "ring", .ratio = 0.1},
      {.codec = "thc", .collective = "ring"},
      {.codec = "nominated_top_k", .collective = "ar_topk_union", .ratio = 0.1},
  };
  for (const Choice& choice : choices) {
    SCOPED_TRACE(StrCat(choice.codec, " ", choice.collective));
    EXPECT_EQ(Deliver(1, choice), Deliver(3, choice));
  }
}

TEST(PipelineTest, HalfPrecisionDeliversGradientsOfAnyScale) {
  // As under loss scaling: 10^7 times and 10^-7 times gradients of a usual magnitude.
  SessionWorld job({.world = 4});
  job.Up();
  const uint64_t key = job.Define({{"p", 5000}});
  job.Switch(UniformPlan(1, {.codec = "fp16", .collective = "ring"}), key, 5000);
  for (const float scale : {1e7f, 1e-7f}) {
    auto data = RandomGradients(4, 5000, 7);
    for (auto& gradient : data) {
      for (float& value : gradient) value *= scale;
    }
    const std::vector<double> expected = SumOver(data);
    job.Begin();
    job.AllReduce(key, data);
    EXPECT_FALSE(job.End());
    double error = 0, energy = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(data[0][i] - expected[i], 2);
      energy += std::pow(expected[i], 2);
    }
    EXPECT_LT(error / energy, 1e-6) << scale;
    for (const auto& gradient : data) EXPECT_EQ(gradient, data[0]);
  }
}

TEST(PipelineTest, NumbersOfWorkersThatCannotBeAreRefused) {
  for (const int workers : {-1, 0, kEncodeWorkersMax + 1}) {
    SessionOptions options;
    options.job = "j";
    options.encode_workers = workers;
    const Status status = Session::CheckOptions(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << workers;
    EXPECT_NE(Message(status).find("encode_workers: expected 1..16"), std::string::npos);
  }
}

}  // namespace
}  // namespace weir
