// SPDX-License-Identifier: Apache-2.0
// Gradients on devices, from sessions to the text of a decision: ranks say what their device offers
// and where they have encoded, in their own messages; the controller's model learns by place, and
// explains where a candidate would encode. The host's memory stands in for devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/messages/explain.h"
#include "controller/messages/json.h"
#include "controller/messages/mapping.h"
#include "controller/model/job_model.h"
#include "controller/solver/solver.h"
#include "datapath/agent_link/agent_protocol.h"
#include "tests/datapath/session/devices/device_bucket.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using ::testing::AnyOf;
using testing::DeviceGradient;
using ::testing::HasSubstr;

constexpr int kWorld = 2;
constexpr size_t kElements = 200'000;

class DevicePlaceIntegrationTest : public ::testing::Test {
 protected:
  DevicePlaceIntegrationTest()
      : job_({.world = kWorld,
              .transport = "inproc",
              .compare_every_steps = 0,
              .adjust =
                  [](int, SessionOptions* options) {
                    options->device = *cuda::FindDevice(0);
                    options->measure_codecs = true;
                  }}),
        model_("job", kWorld, clock_) {
    key_ = job_.Up().Define({{"w", kElements}});
    for (int rank = 0; rank < kWorld; ++rank) {
      for (const RankMessage& message : job_.sessions[rank]->Greeting()) Tell(rank, message);
    }
    LinkObservation link{.source_node = "node0", .target_node = "node1", .method = "iperf3"};
    link.rtt_s = 2e-4;
    link.bandwidth_bytes_per_s = 1e7;
    for (int i = 0; i < 5; ++i) {
      model_.OnLink(link);
      std::swap(link.source_node, link.target_node);
    }
  }

  /// Passes a rank's message to the model as the agent and the controller's service do.
  void Tell(int rank, const RankMessage& said) {
    v1::RankMessage message;
    ASSERT_TRUE(FromJson(EncodeRankMessage(said), &message).ok());
    if (message.has_hello()) {
      const RankGreeting hello = ToModel(message.hello());
      model_.SetRankNode(rank, "node" + std::to_string(rank));
      model_.SetGradientDevice(rank, hello.gradient_device);
      model_.SetCapabilities(rank, CodecsOf(hello.capabilities, kWorld),
                             hello.capabilities.collectives);
    } else if (message.has_buckets() && rank == 0) {
      model_.SetBuckets(*DefinitionsOf(ToModel(message.buckets())));
    } else if (message.has_step()) {
      model_.OnStep(ToModel(rank, message.step()));
    }
  }

  void Switch(const Choice& choice) {
    const Plan plan = testing::UniformPlan(++version_, choice);
    for (auto& session : job_.sessions) session->OnCommand(PlanOffer{plan.version, "n", plan});
    job_.sessions[0]->OnCommand(PlanArm{plan.version});
    Steps(1);
  }

  void Steps(int count) {
    for (int step = 0; step < count; ++step) {
      const auto gradients = testing::RandomGradients(kWorld, kElements, ++seed_);
      std::vector<DeviceGradient> buckets;
      for (const auto& each : gradients) {
        buckets.emplace_back(testing::BytesOf(each, Dtype::kFloat32), true);
      }
      job_.Begin();
      for (int rank = 0; rank < kWorld; ++rank) {
        ASSERT_TRUE(job_.sessions[rank]
                        ->AllReduce(key_, buckets[rank].data(), 0.5, nullptr, buckets[rank].place())
                        .ok());
      }
      EXPECT_FALSE(job_.End());
    }
    for (int rank = 0; rank < kWorld; ++rank) {
      for (const RankMessage& message : job_.ports[rank]->Take()) Tell(rank, message);
    }
  }

  FakeClock clock_;
  testing::SessionWorld job_;
  JobModel model_;
  uint64_t key_ = 0, version_ = 0, seed_ = 0;
};

TEST_F(DevicePlaceIntegrationTest, TelemetryBecomesCurvesByPlaceAndWordsOfADecision) {
  Steps(12);
  const auto before = model_.MakeSnapshot("start");
  ASSERT_TRUE(before.ok()) << ToString(before.status());
  EXPECT_TRUE(before->devices.known);
  EXPECT_GT(before->devices.copy_out_s_per_byte, 0);
  EXPECT_FALSE(before->devices.linked);
  const CodecModel declared = *FindCodec(before->codecs, "top_k", 0);
  EXPECT_TRUE(declared.on_device);
  EXPECT_FALSE(FindCodec(before->codecs, "eden", 0)->on_device);

  Switch({.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.01});  // on the device
  Steps(6);
  const CodecModel there = *FindCodec(model_.MakeSnapshot("periodic")->codecs, "top_k", 0);
  EXPECT_NE(there.device_encode, declared.device_encode);
  EXPECT_EQ(there.encode, declared.encode);
  Switch({.codec = "top_k", .collective = "reencode", .ratio = 0.01});  // on the host
  Steps(6);
  auto snapshot = model_.MakeSnapshot("periodic");
  ASSERT_TRUE(snapshot.ok()) << ToString(snapshot.status());
  const CodecModel both = *FindCodec(snapshot->codecs, "top_k", 0);
  EXPECT_NE(both.encode, declared.encode);

  Policy policy;
  policy.codecs = {"identity", "top_k"};
  policy.collectives = {"ring", "sparse_all_gather"};
  snapshot->bandwidth_bytes_per_s = {1e6, 1e4, 0};  // so slow that compression pays
  const auto decision = Decide(*snapshot, policy);
  ASSERT_TRUE(decision.ok()) << ToString(decision.status());
  v1::Explanation explanation = ToProto(DescribeInputs(*snapshot, {}));
  *explanation.mutable_decision() = ToProto(RecordOf(*decision, /*largest=*/0));
  AddWords(explanation.mutable_decision());
  const std::string text = ExplainText(explanation);
  EXPECT_THAT(text, HasSubstr("  on the GPU\n"));
  EXPECT_THAT(text, HasSubstr("  not encoded (copies "));
  // A first plan may be dense until compression is better with more confidence.
  EXPECT_THAT(text, AnyOf(HasSubstr(", encoded on the GPU, predicts"),
                          HasSubstr(", not encoded (copies ")));
}

}  // namespace
}  // namespace weir
