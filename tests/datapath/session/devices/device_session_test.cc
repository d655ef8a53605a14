// SPDX-License-Identifier: Apache-2.0
// Buckets on devices. Jobs in which none, some and all ranks have a device get the same bits, for
// every codec over every collective. Built for the host, each gradient is written by a stream that
// begins as late as it may, and its memory is freed as soon as the operation has ended, so a
// sanitizer sees work that comes too early or too late.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "datapath/codec/measure/codec_timing.h"
#include "datapath/cuda/device.h"
#include "datapath/cuda/device_codec.h"
#include "datapath/cuda/memory.h"
#include "tests/datapath/session/devices/device_bucket.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using testing::BytesOf;
using testing::DeviceGradient;
using testing::OnHost;
using testing::RandomGradients;
using testing::SessionWorld;
using testing::UniformPlan;

constexpr int kWorld = 3;
constexpr size_t kElements = 3000;

/// A job of which the ranks in `devices` have one.
class Job {
 public:
  Job(std::set<int> devices, Dtype dtype = Dtype::kFloat32, double timeout_s = 20)
      : devices_(std::move(devices)),
        dtype_(dtype),
        world_({.world = kWorld,
                .transport = "inproc",
                .operation_timeout_s = timeout_s,
                .compare_every_steps = 2,
                .job = "devices"}) {
    world_.Up();
    key_ = world_.Define({{"matrix", 2560, 64}, {"vector", kElements - 2560}}, dtype);
  }

  void Switch(const Choice& choice) {
    const Plan plan = UniformPlan(++version_, choice);
    for (auto& session : world_.sessions) session->OnCommand(PlanOffer{plan.version, "n", plan});
    for (auto& port : world_.ports) {
      ASSERT_FALSE(port->All<PlanAck>().empty());
      ASSERT_EQ(port->All<PlanAck>().back().version, plan.version);
    }
    world_.sessions[0]->OnCommand(PlanArm{plan.version});
  }

  /// Runs a step and returns what the ranks got; `skipped` is whether it was skipped.
  std::vector<std::vector<std::byte>> Step(const std::vector<std::vector<float>>& gradients,
                                           bool* skipped = nullptr, double scale = 1.0 / kWorld) {
    std::vector<DeviceGradient> buckets;
    for (int rank = 0; rank < kWorld; ++rank) {
      buckets.emplace_back(BytesOf(gradients[rank], dtype_), devices_.contains(rank));
    }
    world_.Begin();
    for (int rank = 0; rank < kWorld; ++rank) {
      const Status queued = world_.sessions[rank]->AllReduce(key_, buckets[rank].data(), scale,
                                                             nullptr, buckets[rank].place());
      EXPECT_TRUE(queued.ok()) << ToString(queued);
    }
    const bool was_skipped = world_.End();
    if (skipped != nullptr) *skipped = was_skipped;
    std::vector<std::vector<std::byte>> got;
    for (DeviceGradient& bucket : buckets) got.push_back(bucket.Take());
    return got;
  }

  SessionWorld& world() { return world_; }
  uint64_t key() const { return key_; }

 private:
  const std::set<int> devices_;
  const Dtype dtype_;
  SessionWorld world_;
  uint64_t key_ = 0;
  uint64_t version_ = 0;
};

std::vector<std::vector<float>> GradientsOf(int step) {
  auto gradients = RandomGradients(kWorld, kElements, 100 + static_cast<uint64_t>(step));
  for (auto& gradient : gradients) {
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= i % 7 == 0 ? 10.0f : 0.1f;
  }
  return gradients;
}

/// Whether a session encodes with the codec on a device.
bool RunsOnDevice(const std::string& name) { return cuda::FindDeviceCodec(name) != nullptr; }

/// One codec over the first collective of each form that carries it, so that each way is taken.
std::vector<Choice> Choices() {
  std::vector<Choice> choices;
  std::set<std::pair<std::string, std::string>> seen;
  for (const Choice& choice : testing::CompatibleChoices(kWorld)) {
    const Collective& collective = **Collectives().Find(choice.collective);
    if (!collective.Traits().lease_mode.empty()) continue;
    if (seen.emplace(choice.codec, collective.Traits().form).second) choices.push_back(choice);
  }
  return choices;
}

/// Whether jobs with and without devices may deliver other bits, which are the same for all ranks
/// of a job: norms of thc differ in their last bits, and a rank's factors of power_sgd more.
bool HasOwnBits(const Choice& choice) {
  return choice.codec.starts_with("thc") || choice.codec == "power_sgd";
}

/// Residuals of `from` in place of those of `to`.
void CopyState(Job& from, Job& to) {
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(to.world().sessions[rank]->ImportState(from.world().Export(rank)).ok());
  }
}

void ExpectSameBits(Dtype dtype, const std::vector<Choice>& choices, int steps_each) {
  Job none({}, dtype), some({0, 2}, dtype), all({0, 1, 2}, dtype);
  int step = 0;
  bool own_before = false;
  for (const Choice& choice : choices) {
    SCOPED_TRACE(StrCat(choice.codec, " over ", choice.collective));
    for (Job* const job : {&none, &some, &all}) job->Switch(choice);
    for (int i = 0; i < steps_each; ++i, ++step) {
      // The first step carries the announcement, and runs the plan before.
      const bool own_bits = i == 0 ? own_before : HasOwnBits(choice);
      const auto gradients = GradientsOf(step);
      const auto expected = none.Step(gradients);
      for (Job* const job : {&some, &all}) {
        const auto got = job->Step(gradients);
        for (int rank = 0; rank < kWorld; ++rank) {
          ASSERT_TRUE(got[rank] == (own_bits ? got[0] : expected[rank]))
              << "rank " << rank << ", step " << step << (job == &some ? ", mixed" : "");
        }
        if (own_bits && !HasOwnBits(choice)) CopyState(none, *job);
      }
    }
    own_before = HasOwnBits(choice);
    if (own_before) continue;
    for (int rank = 0; rank < kWorld; ++rank) {
      const auto residuals = none.world().ExportResiduals(rank);
      ASSERT_TRUE(residuals == some.world().ExportResiduals(rank)) << rank;
      ASSERT_TRUE(residuals == all.world().ExportResiduals(rank)) << rank;
    }
  }
}

TEST(DeviceSessionTest, EveryCodecGivesTheBitsOfTheHostWhileThePlanChanges) {
  ExpectSameBits(Dtype::kFloat32, Choices(), 3);
}

std::vector<Choice> FewChoices() {
  return {{.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.05},
          {.codec = "qsgd", .collective = "ring"},
          {.codec = "identity", .collective = "ring"},
          {.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.05, .bits = 4},
          {.codec = "fp16", .collective = "ring"}};
}

TEST(DeviceSessionTest, Float16) { ExpectSameBits(Dtype::kFloat16, FewChoices(), 3); }
TEST(DeviceSessionTest, Brain16) { ExpectSameBits(Dtype::kBrain16, FewChoices(), 3); }

class EncodedDeviceSessionTest : public ::testing::TestWithParam<Choice> {};

TEST_P(EncodedDeviceSessionTest, NanSkipsTheStepAndKeepsTheResidual) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBrain16}) {
    Job job({0, 1}, dtype);
    job.Switch(GetParam());
    for (int step = 0; step < 3; ++step) job.Step(GradientsOf(step));
    std::vector<std::vector<std::byte>> before;
    for (int rank = 0; rank < kWorld; ++rank) {
      before.push_back(job.world().ExportResiduals(rank));
    }
    auto gradients = GradientsOf(3);
    gradients[1][17] = std::numeric_limits<float>::quiet_NaN();
    bool skipped = false;
    const auto got = job.Step(gradients, &skipped);
    EXPECT_TRUE(skipped);
    const std::vector<float> nan(kElements, std::numeric_limits<float>::quiet_NaN());
    for (int rank = 0; rank < kWorld; ++rank) {
      EXPECT_TRUE(got[rank] == BytesOf(nan, dtype)) << rank;
      EXPECT_TRUE(before[rank] == job.world().ExportResiduals(rank)) << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, EncodedDeviceSessionTest,
    ::testing::Values(Choice{.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.05},
                      Choice{.codec = "qsgd", .collective = "ring"},
                      Choice{.codec = "thc_uniform", .collective = "ring"}),
    [](const auto& info) { return info.param.codec; });

TEST(DeviceSessionTest, ASumThatThe16BitsCannotHoldArrivesAsNan) {
  Job job({0, 1}, Dtype::kFloat16);
  job.Switch({.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.05});
  job.Step(GradientsOf(0));
  auto gradients = GradientsOf(1);
  for (auto& gradient : gradients) gradient[5] = 30000;
  bool skipped = false;
  const std::vector<float> nan(kElements, std::numeric_limits<float>::quiet_NaN());
  for (const auto& got : job.Step(gradients, &skipped, 1)) {
    EXPECT_TRUE(got == BytesOf(nan, Dtype::kFloat16));
  }
  EXPECT_TRUE(skipped);
  EXPECT_FALSE(job.Step(gradients, &skipped).front().empty());
  EXPECT_FALSE(skipped) << "a third of the sum fits";
}

TEST(DeviceSessionTest, MeasurementsAreThoseOfTheHost) {
  Job host({}), device({0, 1, 2});
  std::vector<StepReport> reports;
  for (Job* const job : {&host, &device}) {
    job->Switch({.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.05});
    for (int step = 0; step < 4; ++step) job->Step(GradientsOf(step));
    job->world().Begin();  // sends the report of the last step
    const auto all = job->world().ports[1]->All<StepReport>();
    ASSERT_FALSE(all.empty());
    reports.push_back(all.back());
    job->world().End();
  }
  ASSERT_EQ(reports[0].gains.size(), 1u);
  ASSERT_EQ(reports[1].gains.size(), 1u);
  EXPECT_EQ(reports[0].codec_losses.size(), reports[1].codec_losses.size());
  for (size_t i = 0; i < reports[0].gains[0].gains.size(); ++i) {
    EXPECT_NEAR(reports[0].gains[0].gains[i], reports[1].gains[0].gains[i], 1e-9);
  }
  EXPECT_NEAR(reports[0].buckets[0].gain, reports[1].buckets[0].gain, 1e-5);
  EXPECT_GT(reports[1].buckets[0].residual_ratio, 0);
  EXPECT_NEAR(reports[0].buckets[0].residual_ratio, reports[1].buckets[0].residual_ratio, 1e-5);
  EXPECT_EQ(reports[0].buckets[0].payload_bytes, reports[1].buckets[0].payload_bytes);
  EXPECT_EQ(reports[0].buckets[0].encoded_on, EncodedOn::kHost);
  EXPECT_EQ(reports[1].buckets[0].encoded_on, EncodedOn::kDevice);
}

TEST(DeviceSessionTest, EveryDeviceCodecRunsOnTheDeviceAndOthersAreStaged) {
  Job job({1});
  for (const Choice& choice : Choices()) {
    SCOPED_TRACE(StrCat(choice.codec, " over ", choice.collective));
    job.Switch(choice);
    job.Step(GradientsOf(0));  // carries the announcement
    job.Step(GradientsOf(1));  // adds an aggregate residual, on the host
    job.Step(GradientsOf(2));
    job.world().Begin();
    const auto sample = job.world().ports[1]->All<StepReport>().back().buckets.at(0);
    job.world().End();
    ASSERT_EQ(sample.codec, choice.codec);
    const std::string& form = (*Collectives().Find(choice.collective))->Traits().form;
    const bool there = RunsOnDevice(choice.codec) &&
                       (form == "opaque" || form == "lanes" || form.starts_with("node_"));
    EXPECT_EQ(sample.encoded_on, there                        ? EncodedOn::kDevice
                                 : choice.codec == "identity" ? EncodedOn::kNowhere
                                                              : EncodedOn::kHost);
  }
}

TEST(DeviceSessionTest, TimesOfCodecsAreMeasuredThereOrWithTheCopies) {
  const DeviceCodecTimings timings = MeasureCodecsOn(**cuda::FindDevice(0), 1 << 14);
  EXPECT_GT(timings.copy_out_s_per_byte, 0);
  EXPECT_GT(timings.copy_in_s_per_byte, 0);
  EXPECT_EQ(timings.on_host.size(), CodecTimings().size());
  for (const auto& [name, timing] : timings.on_host) {
    EXPECT_NEAR(timing.encode.per_element_s - CodecTimings().at(name).encode.per_element_s,
                4 * timings.copy_out_s_per_byte, 1e-15)
        << name;
    EXPECT_NEAR(timing.decode.per_element_s - CodecTimings().at(name).decode.per_element_s,
                4 * timings.copy_in_s_per_byte, 1e-15)
        << name;
  }
  EXPECT_EQ(timings.on_device.size(), std::ranges::count_if(CodecTimings(), [](const auto& entry) {
              return RunsOnDevice(entry.first);
            }));
  for (const auto& [name, timing] : timings.on_device) {
    EXPECT_TRUE(RunsOnDevice(name)) << name;
    EXPECT_GT(timing.encode.per_element_s + timing.encode.per_kept_s, 0) << name;
  }
}

TEST(DeviceSessionTest, AStateFromTheHostContinuesOnADeviceAndBack) {
  const Choice choice{.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.05};
  Job first({0, 1, 2}), second({}), reference({});
  for (Job* const job : {&first, &reference}) {
    job->Switch(choice);
    for (int step = 0; step < 4; ++step) job->Step(GradientsOf(step));
  }
  second.Switch(choice);
  for (int step = 0; step < 4; ++step) second.Step(GradientsOf(50 + step));
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(second.world().sessions[rank]->ImportState(first.world().Export(rank)).ok());
  }
  for (int step = 4; step < 7; ++step) {
    const auto expected = reference.Step(GradientsOf(step));
    EXPECT_TRUE(first.Step(GradientsOf(step)) == expected) << "exporting changes nothing";
    EXPECT_TRUE(second.Step(GradientsOf(step)) == expected);
  }
  for (Job* const job : {&first, &reference}) {
    for (auto& session : job->world().sessions) ASSERT_TRUE(session->ScaleState(0.5).ok());
  }
  EXPECT_TRUE(first.Step(GradientsOf(7)) == reference.Step(GradientsOf(7)));
}

TEST(DeviceSessionTest, AGradientThatIsNeverCompleteFailsAndNamesItsRank) {
  if (!OnHost()) GTEST_SKIP() << "the stream would end";
  Job job({0, 1, 2}, Dtype::kFloat32, 0.5);
  std::vector<DeviceGradient> buckets;
  for (int rank = 0; rank < kWorld; ++rank) {
    buckets.emplace_back(std::vector<std::byte>(kElements * 4), true);
  }
  // Each question does one of them, and there are pauses between questions.
  for (int i = 0; i < 200000; ++i) {
    ASSERT_TRUE(cuda::FillDevice(buckets[1].data(), 0, 1, buckets[1].stream()).ok());
  }
  job.world().Begin();
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(job.world()
                    .sessions[rank]
                    ->AllReduce(job.key(), buckets[rank].data(), 1, nullptr, buckets[rank].place())
                    .ok());
  }
  const StatusOr<bool> ended = job.world().sessions[1]->EndStep();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(ended.status()), ::testing::HasSubstr("device 0 of rank 1 was not complete"));
  for (const int rank : {0, 2}) {
    const StatusOr<bool> other = job.world().sessions[rank]->EndStep();
    ASSERT_FALSE(other.ok());
    EXPECT_THAT(Message(other.status()), ::testing::HasSubstr("rank 1"));
  }
}

TEST(DeviceSessionTest, ClosingDoesNotWaitForAGradient) {
  if (!OnHost()) GTEST_SKIP() << "the stream would end";
  Job job({0, 1, 2});
  DeviceGradient late(std::vector<std::byte>(kElements * 4), true);
  for (int i = 0; i < 200000; ++i) {
    ASSERT_TRUE(cuda::FillDevice(late.data(), 0, 1, late.stream()).ok());
  }
  job.world().Begin();
  ASSERT_TRUE(
      job.world().sessions[0]->AllReduce(job.key(), late.data(), 1, nullptr, late.place()).ok());
  const TimePoint begin = RealClock().Now();
  job.world().sessions[0]->Close();
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 5);
}

TEST(DeviceSessionTest, TheTimeUntilAGradientIsCompleteIsComputeTime) {
  if (!OnHost()) GTEST_SKIP() << "the stream would be faster";
  Job job({1});
  std::vector<DeviceGradient> buckets;
  for (int rank = 0; rank < kWorld; ++rank) {
    buckets.emplace_back(std::vector<std::byte>(kElements * 4), rank == 1);
  }
  for (int i = 0; i < 500; ++i) {  // at least 20 us each
    ASSERT_TRUE(cuda::FillDevice(buckets[1].data(), 0, 1, buckets[1].stream()).ok());
  }
  job.world().Begin();
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(job.world()
                    .sessions[rank]
                    ->AllReduce(job.key(), buckets[rank].data(), 1, nullptr, buckets[rank].place())
                    .ok());
  }
  job.world().End();
  job.world().Begin();
  const StepReport report = job.world().ports[1]->All<StepReport>().back();
  job.world().End();
  EXPECT_GT(report.compute_s, 0.01);
  EXPECT_LT(report.buckets.at(0).encode_s, report.compute_s / 2);
  EXPECT_LT(report.exposed_s, report.compute_s / 2);
}

TEST(DeviceSessionTest, DataMustBeAlignedToItsElements) {
  Job job({0});
  DeviceGradient bucket(std::vector<std::byte>(kElements * 4 + 4), true);
  job.world().Begin();
  const Status queued = job.world().sessions[0]->AllReduce(
      job.key(), static_cast<std::byte*>(bucket.data()) + 1, 1, nullptr, bucket.place());
  EXPECT_EQ(queued.code(), StatusCode::kInvalidArgument) << ToString(queued);
}

}  // namespace
}  // namespace weir
