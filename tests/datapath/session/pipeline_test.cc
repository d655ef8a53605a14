// Several threads that encode: operations overlap there, go on in order, and come to the same bits.

#include "datapath/session/pipeline.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::RandomGradients;
using testing::SessionWorld;
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
  Pipeline pipeline({.encode =
                         [&](Operation& op) {
                           MutexLock lock(mutex);
                           const TimePoint deadline = RealClock().Now() + kLong;
                           // The first is the last one to be encoded of those that the workers
                           // hold.
                           while (op.index == 0 && encoded < 2) {
                             if (!changed.WaitUntil(mutex, deadline)) break;
                           }
                           if (op.index == 0) first_waited = encoded >= 2;
                           ++encoded;
                           changed.NotifyAll();
                         },
                     .network = [&](Operation* op) { moved.push_back(op->index); },
                     .decode = [&](Operation& op) { decoded.push_back(op.index); }},
                    3);
  for (Operation& op : operations) ASSERT_TRUE(pipeline.Submit(&op).ok());
  pipeline.Drain(nullptr);
  EXPECT_TRUE(first_waited) << "others were not encoded while the first one was";
  const std::vector<uint64_t> in_order = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(moved, in_order);
  EXPECT_EQ(decoded, in_order);
}

// What three steps of five buckets deliver, and the residuals after them.
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
      {.codec = "nominated_top_k", .collective = "ar_topk_union", .ratio = 0.1},
  };
  for (const Choice& choice : choices) {
    SCOPED_TRACE(StrCat(choice.codec, " ", choice.collective));
    EXPECT_EQ(Deliver(1, choice), Deliver(3, choice));
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
