// SPDX-License-Identifier: Apache-2.0
// Gradients on devices: where codecs run, what they take there, and what copies and links between
// devices cost.

#include <gtest/gtest.h>

#include "controller/model/cost_model.h"
#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

constexpr double kOut = 1 / 10e9, kIn = 1 / 8e9;

GradientDevices Device(bool linked = false) {
  return {.copy_out_s_per_byte = kOut, .copy_in_s_per_byte = kIn, .known = true, .linked = linked};
}

CodecModel OnDevice(CodecModel codec) {
  codec.on_device = true;
  codec.encode = {0, 4e-9, 0, 1e-9};
  codec.decode = {0, 2e-9, 0, 1e-9};
  codec.device_encode = {0, 4e-11, 0, 1e-11};
  codec.device_decode = {0, 2e-11, 0, 1e-11};
  return codec;
}

CollectiveModel OnDevices(CollectiveModel collective) {
  collective.exchange.on_devices = true;
  return collective;
}

TEST(DevicePlaceTest, ADeviceNeedsGradientsCodecFormAndNoAggregator) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-4, 1e8);
  const CodecModel codec = OnDevice(test::Lanes("fp16", 16, true));
  CollectiveModel ring = OnDevices(test::Collective("ring", "lanes"));
  EXPECT_EQ(PlaceOf(snapshot, codec, ring), CodecPlace::kUnknown);
  snapshot.devices = Device();
  EXPECT_EQ(PlaceOf(snapshot, codec, ring), CodecPlace::kDevice);
  EXPECT_EQ(PlaceOf(snapshot, test::Lanes("fp16", 16, true), ring), CodecPlace::kHost);
  EXPECT_EQ(PlaceOf(snapshot, test::Lanes("identity", 32, false), ring), CodecPlace::kNowhere);
  EXPECT_EQ(PlaceOf(snapshot, codec, test::Collective("ring", "lanes")), CodecPlace::kHost);
  ring.needs_lease = true;
  EXPECT_EQ(PlaceOf(snapshot, codec, ring), CodecPlace::kHost);
}

TEST(DevicePlaceTest, CodecsTakeTheTimeOfTheirPlaceAndNameTheirCopies) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-4, 1e8);
  snapshot.devices = Device();
  snapshot.codec_parallelism = 0.5;
  BucketModel bucket;
  bucket.elements = 1000000;
  const CodecModel codec = OnDevice(test::Lanes("fp16", 16, true));
  const CollectiveModel ring = test::Collectives()[0];
  const BucketCost there = PredictBucket(snapshot, bucket, codec, OnDevices(ring), 1);
  EXPECT_EQ(there.place, CodecPlace::kDevice);
  EXPECT_DOUBLE_EQ(there.encode_fixed_s, 4e-5) << "a device does not share the host's cores";
  EXPECT_DOUBLE_EQ(there.decode_s, 2e-5);
  EXPECT_DOUBLE_EQ(there.copies_s, 0);
  const BucketCost here = PredictBucket(snapshot, bucket, codec, ring, 1);
  EXPECT_EQ(here.place, CodecPlace::kHost);
  EXPECT_DOUBLE_EQ(here.encode_fixed_s, 2 * 4e-3);
  EXPECT_DOUBLE_EQ(here.copies_s, 4e6 * (kOut + kIn));
  EXPECT_DOUBLE_EQ(here.network_fixed_s, there.network_fixed_s);
  EXPECT_EQ(PlaceText(here.place, here.copies_s), "on the host (copies 900 us)");
  EXPECT_EQ(PlaceText(there.place, there.copies_s), "on the GPU");
  EXPECT_EQ(PlaceText(CodecPlace::kUnknown, 1), "");
}

TEST(DevicePlaceTest, SumsOfNodesMoveBetweenLinkedDevicesOrThroughTheHost) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-4, 1e8);
  snapshot.memory = {{0, 0, 2, 2}, 1e-5, 1e-9, 2e-5, 1e-11};
  BucketModel bucket;
  bucket.elements = 1000000;
  const CodecModel codec = OnDevice(test::Selecting("top_k", "opaque", 16, true));
  const CollectiveModel shards = OnDevices(test::NodeSums("node_shards"));
  const auto cost = [&](const CollectiveModel& collective) {
    return PredictBucket(snapshot, bucket, codec, collective, 0.1);
  };
  CollectiveModel of_host = shards;
  of_host.exchange.on_devices = false;
  snapshot.devices = Device(true);
  const double host_s = cost(of_host).network_fixed_s;
  const BucketCost linked = cost(shards);
  EXPECT_EQ(linked.copies_s, 0);
  snapshot.devices = Device(false);
  const BucketCost staged = cost(shards);
  // All of the bucket and half of it go to the host, all comes back.
  EXPECT_DOUBLE_EQ(staged.copies_s, 4e6 * (1.5 * kOut + kIn));
  // Two latencies, and 2 (p-1)/p of the elements.
  const double within_s = 2 * (1e-5 - 2e-5) + 4e6 * (1e-9 - 1e-11);
  EXPECT_NEAR(staged.network_fixed_s - linked.network_fixed_s, within_s + staged.copies_s, 1e-12);
  EXPECT_GT(host_s, linked.network_fixed_s);
  snapshot.memory.lowest_ranks = {0, 1, 2, 3};
  EXPECT_EQ(cost(shards).copies_s, 0) << "a rank alone on its node moves only payloads";
}

TEST(DevicePlaceTest, SumsOfTheFrameworkAreNeitherEncodedNorCopied) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-4, 1e8);
  snapshot.devices = Device();
  BucketModel bucket;
  bucket.elements = 1000000;
  CodecModel dense = test::Lanes("identity", 32, false);
  dense.encode = dense.decode = {0, 4 * kOut, 0, 0};
  const BucketCost ours = PredictBucket(snapshot, bucket, dense, test::Collectives()[0], 1);
  EXPECT_DOUBLE_EQ(ours.encode_fixed_s, 4e6 * kOut);
  EXPECT_GT(ours.copies_s, 0);
  const BucketCost theirs = PredictBucket(snapshot, bucket, dense, test::ByCaller(), 1);
  EXPECT_EQ(theirs.encode_fixed_s + theirs.decode_s + theirs.copies_s + theirs.codec_deviation_s,
            0);
  EXPECT_EQ(PlaceText(theirs.place, theirs.copies_s), "not encoded");
}

class DeviceJobTest : public ::testing::Test {
 protected:
  DeviceJobTest() : job_({}, clock_) {
    codecs_ = test::Codecs();
    codecs_[1] = OnDevice(codecs_[1]);
    collectives_ = test::Collectives();
    collectives_[0].exchange.on_devices = true;  // the tree has no such form
    collectives_.push_back(test::ByCaller());
    for (int rank = 0; rank < 4; ++rank) {
      job_.model().SetCapabilities(rank, codecs_, collectives_);
      job_.model().SetGradientDevice(rank, Device(true));
    }
    for (int i = 0; i < 5; ++i) job_.Step({2e-4, 1.19e8});
  }

  /// All ranks encode in so many seconds there; rank 0 in `place`.
  void Encode(const std::string& collective, CodecPlace place, double seconds) {
    ++step_;
    for (int rank = 0; rank < 4; ++rank) {
      StepObservation report;
      report.rank = rank;
      report.step = step_;
      report.step_s = 0.2;
      BucketObservation bucket;
      bucket.bucket = "bucket1";
      bucket.codec = "fp16";
      bucket.collective = collective;
      bucket.network_s = 0.05;
      bucket.encode_s = bucket.decode_s = seconds;
      bucket.payload_bytes = 2000000;
      bucket.encoded_on = rank == 0 ? place : CodecPlace::kDevice;
      if (place != CodecPlace::kDevice && !mixed_) bucket.encoded_on = place;
      report.buckets = {bucket};
      job_.model().OnStep(report);
    }
  }

  CodecModel Learnt() {
    const auto snapshot = job_.model().MakeSnapshot("periodic");
    EXPECT_TRUE(snapshot.ok()) << ToString(snapshot.status());
    return *FindCodec(snapshot->codecs, "fp16", 0);
  }
  static double Of(const CodecModel::Time& time) { return CodecSeconds(time, 1e6, 0); }

  FakeClock clock_;
  test::SimulatedJob job_;
  std::vector<CodecModel> codecs_;
  std::vector<CollectiveModel> collectives_;
  uint64_t step_ = 100;
  bool mixed_ = false;
};

TEST_F(DeviceJobTest, CurvesAreLearntByPlace) {
  EXPECT_DOUBLE_EQ(Of(Learnt().device_encode), 4e-5) << "as declared";
  for (int i = 0; i < 20; ++i) {
    Encode("ring", CodecPlace::kDevice, 2e-4);
    Encode("tree", CodecPlace::kHost, 8e-3);
  }
  const CodecModel learnt = Learnt();
  EXPECT_NEAR(Of(learnt.device_encode), 2e-4, 2e-5);
  EXPECT_NEAR(Of(learnt.device_decode), 2e-4, 2e-5);
  EXPECT_NEAR(Of(learnt.encode), 8e-3, 4e-4);
  EXPECT_NEAR(Of(learnt.decode), 8e-3, 4e-4);
}

TEST_F(DeviceJobTest, SumsOfTheFrameworkSayNothingOfCodecs) {
  for (int i = 0; i < 20; ++i) Encode("framework", CodecPlace::kHost, 1);
  EXPECT_DOUBLE_EQ(Of(Learnt().encode), 4e-3) << "as declared";
  EXPECT_DOUBLE_EQ(Of(Learnt().device_decode), 2e-5);
}

TEST_F(DeviceJobTest, WhatSomeRanksEncodeOnTheHostSaysNothingOfDevices) {
  mixed_ = true;
  for (int i = 0; i < 20; ++i) Encode("ring", CodecPlace::kHost, 8e-3);
  EXPECT_DOUBLE_EQ(Of(Learnt().device_encode), 4e-5);
  EXPECT_NEAR(Of(Learnt().encode), 8e-3, 4e-4);
}

TEST_F(DeviceJobTest, GradientsAreOnDevicesWhereThoseOfAllRanksAre) {
  auto snapshot = job_.model().MakeSnapshot("periodic");
  EXPECT_EQ(snapshot->devices, Device(true));
  GradientDevices slow = Device();
  slow.copy_in_s_per_byte = 1e-9;
  job_.model().SetGradientDevice(2, slow);
  snapshot = job_.model().MakeSnapshot("periodic");
  EXPECT_EQ(snapshot->devices.copy_in_s_per_byte, 1e-9);
  EXPECT_FALSE(snapshot->devices.linked);
  job_.model().SetGradientDevice(3, {});
  EXPECT_EQ(job_.model().MakeSnapshot("periodic")->devices, GradientDevices{});
}

TEST_F(DeviceJobTest, ACodecThatOneRankRunsOnTheHostIsThereForNobody) {
  codecs_[1] = test::Codecs()[1];
  job_.model().SetCapabilities(2, codecs_, collectives_);
  EXPECT_FALSE(Learnt().on_device);
}

TEST_F(DeviceJobTest, LinksBetweenDevicesAreLearnt) {
  EXPECT_EQ(job_.model().MakeSnapshot("periodic")->memory.device_s_per_byte, 0);
  StepObservation report;
  report.device_link_bytes = 4e8;
  report.device_link_s = 4e-3;
  for (uint64_t i = 0; i < 30; ++i) {
    report.step = 200 + i;
    job_.model().OnStep(report);
  }
  EXPECT_NEAR(job_.model().MakeSnapshot("periodic")->memory.device_s_per_byte, 1e-11, 1e-13);
  SharedMemory memory;
  memory.device_s_per_byte = 1e-11;
  NodeLayout layout = LayoutOf(memory);
  EXPECT_EQ(BetweenDevices(layout).s_per_byte, 1e-11);
  EXPECT_EQ(BetweenDevices(layout).latency_s, kDeviceLatencyS);
}

}  // namespace
}  // namespace weir
