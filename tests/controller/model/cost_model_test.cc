// SPDX-License-Identifier: Apache-2.0
#include "controller/model/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

/// The formulas of the published method: 4-byte values and 4-byte indices, binomial tree and
/// broadcast, Bruck all-gather, no software cost.
struct Published {
  int world;
  double alpha_s, beta;

  double Seconds(const std::string& kind, double model_bytes, double ratio) const {
    CodecModel codec = test::Selecting("topk", "opaque", 64, false);
    CollectiveModel collective = test::Collective(kind, "opaque");
    double elements = model_bytes / 4;
    if (kind == "all_gather") {
      collective.latency.log2_n = 1;
      collective.payload.n_minus_1 = 1;
    } else if (kind == "art_ring") {
      codec.kept_bits = 32;
      collective.latency.n_minus_1 = 2;
      collective.latency.log2_n = 1;
      collective.payload.n_minus_1_over_n = 2;
      collective.payload.log2_n = 1;
    } else if (kind == "art_tree") {
      codec.kept_bits = 32;
      collective.latency.log2_n = 3;
      collective.payload.log2_n = 3;
    } else {
      codec = test::Lanes("dense", 32, false);
      test::SetForm("lanes", &collective);
      if (kind == "ring") {
        collective.latency.n_minus_1 = 2;
        collective.payload.n_minus_1_over_n = 2;
      } else {
        collective.latency.log2_n = 2;
        collective.payload.log2_n = 2;
      }
    }
    Snapshot snapshot;
    snapshot.world = world;
    snapshot.reduce_s_per_byte = 0;
    BucketModel bucket;
    bucket.elements = static_cast<uint64_t>(elements);
    return PredictBucket(snapshot, bucket, codec, collective, ratio).NetworkSeconds(alpha_s, beta);
  }
};

TEST(CostModelTest, WorldFunctionRoundsTheLogarithmUp) {
  WorldFunctionModel f{1, 10, 100, 1000, 10000};
  EXPECT_DOUBLE_EQ(f.At(1), 1 + 10000);
  EXPECT_DOUBLE_EQ(f.At(4), 1 + 30 + 75 + 2000 + 40000);
  EXPECT_DOUBLE_EQ(f.At(5), 1 + 40 + 80 + 3000 + 50000);
  f = {};
  f.constant = -1;
  EXPECT_EQ(f.At(4), 0);
}

struct TableRow {
  const char* model;
  double model_bytes, gbps, ratio, all_gather_ms, ring_ms, tree_ms;
};

TEST(CostModelTest, ReproducesThePublishedTableVI) {
  // N = 8, 1 ms. Model sizes fitted from the table itself, as parameters x 4 bytes.
  const std::vector<TableRow> rows = {
      {"ResNet50", 102.2e6, 1, 0.1, 1148, 405.5, 745},
      {"ResNet50", 102.2e6, 1, 0.01, 126.5, 58.8, 83.7},
      {"ResNet50", 102.2e6, 1, 0.001, 14.35, 21, 16.1},
      {"ResNet50", 102.2e6, 5, 0.1, 232, 94.7, 156.2},
      {"ResNet50", 102.2e6, 10, 0.1, 115.1, 52.9, 83.4},
      {"ResNet50", 102.2e6, 10, 0.01, 14.35, 20.3, 15.9},
      {"AlexNet", 244.4e6, 1, 0.1, 2718.7, 964.4, 1778},
      {"AlexNet", 244.4e6, 1, 0.01, 282.7, 111.8, 186.8},
      {"AlexNet", 244.4e6, 5, 0.1, 544.5, 200.4, 354.8},
      {"AlexNet", 244.4e6, 10, 0.1, 271.8, 106.8, 180.4},
      {"AlexNet", 244.4e6, 10, 0.01, 32.73, 25.2, 25.8},
      {"ResNet18", 46.8e6, 1, 0.1, 526.3, 194.7, 345.6},
      {"ResNet18", 46.8e6, 10, 0.001, 3.28, 16.7, 9.0},
  };
  std::vector<double> errors;
  for (const TableRow& row : rows) {
    const Published network{8, 1e-3, 8 / (row.gbps * 1e9)};
    const double predicted[] = {network.Seconds("all_gather", row.model_bytes, row.ratio) * 1e3,
                                network.Seconds("art_ring", row.model_bytes, row.ratio) * 1e3,
                                network.Seconds("art_tree", row.model_bytes, row.ratio) * 1e3};
    const double printed[] = {row.all_gather_ms, row.ring_ms, row.tree_ms};
    for (int i = 0; i < 3; ++i) {
      const double error = std::fabs(predicted[i] / printed[i] - 1);
      EXPECT_LT(error, 0.125) << row.model << " " << row.gbps << " Gbps " << row.ratio << " column "
                              << i << ": " << predicted[i] << " against " << printed[i];
      errors.push_back(error);
    }
    // The same collective wins.
    EXPECT_EQ(std::min_element(predicted, predicted + 3) - predicted,
              std::min_element(printed, printed + 3) - printed)
        << row.model << " " << row.gbps << " " << row.ratio;
  }
  std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.03);
}

TEST(CostModelTest, PrintedDigitsOfResNet50At1Gbps) {
  const Published network{8, 1e-3, 8e-9};
  EXPECT_NEAR(network.Seconds("all_gather", 102.2e6, 0.1) * 1e3, 1148.0, 1.5);
  EXPECT_NEAR(network.Seconds("art_ring", 102.2e6, 0.1) * 1e3, 405.5, 1.0);
  // The tree has three levels each way: 9 c M beta.
  EXPECT_NEAR(network.Seconds("art_tree", 102.2e6, 0.1) * 1e3, 745.0, 1.0);
}

struct CrossoverRow {
  int world;
  double ring_over_tree, ring_over_gather, tree_over_gather;
};

TEST(CostModelTest, CrossoversAreWhereTheTotalsMeet) {
  // Multiples of c * M at which the bandwidth-delay product makes two collectives equal.
  const CrossoverRow rows[] = {{4, 1.25, 0.417, 0},
                               {8, 0.531, 0.661, 0.833},
                               {16, 0.278, 0.804, 2.25},
                               {64, 0.088, 0.937, 9.0}};
  const double model = 1e8, ratio = 0.01, beta = 1e-9;
  for (const CrossoverRow& row : rows) {
    const auto difference = [&](const char* a, const char* b, double coefficient) {
      const Published at{row.world, coefficient * ratio * model * beta, beta};
      return at.Seconds(a, model, ratio) - at.Seconds(b, model, ratio);
    };
    const auto meets = [&](const char* cheap_below, const char* other, double coefficient) {
      EXPECT_LT(difference(cheap_below, other, coefficient * 0.97), 0)
          << row.world << " " << cheap_below << " " << other;
      EXPECT_GT(difference(cheap_below, other, coefficient * 1.03), 0)
          << row.world << " " << cheap_below << " " << other;
    };
    meets("art_ring", "art_tree", row.ring_over_tree);
    meets("art_ring", "all_gather", row.ring_over_gather);
    if (row.tree_over_gather > 0) meets("art_tree", "all_gather", row.tree_over_gather);
  }
  // At most 4 ranks the gather always beats the tree.
  for (const double alpha : {1e-6, 1e-3, 1.0}) {
    const Published at{4, alpha, beta};
    EXPECT_LE(at.Seconds("all_gather", model, ratio),
              at.Seconds("art_tree", model, ratio) * (1 + 1e-12));
  }
}

TEST(CostModelTest, GainFollowsTheMeasuredCurve) {
  BucketModel bucket;
  bucket.gain_ratios = {1, 0.1, 0.01};
  bucket.gains = {1, 0.8, 0.4};
  const CodecModel top_k = test::Selecting("top_k", "opaque", 16, true);
  const CollectiveModel gather = test::Collective("g", "opaque");
  EXPECT_DOUBLE_EQ(PredictGain(top_k, gather, bucket, 1, 4), 1);
  EXPECT_DOUBLE_EQ(PredictGain(top_k, gather, bucket, 0.1, 4), 0.8);
  EXPECT_NEAR(PredictGain(top_k, gather, bucket, std::sqrt(0.001), 4), 0.6, 1e-9);
  EXPECT_NEAR(PredictGain(top_k, gather, bucket, 0.001, 4), 0.04, 1e-9);
  CollectiveModel star = gather;
  star.gain_scale = 0.5;
  EXPECT_DOUBLE_EQ(PredictGain(top_k, star, bucket, 0.1, 4), 0.4);
}

TEST(CostModelTest, GainOfEveryErrorModel) {
  BucketModel bucket;
  bucket.peak_over_rms = 10;
  const CollectiveModel ring = test::Collective("ring", "lanes");
  const auto codecs = test::Codecs();
  EXPECT_EQ(PredictGain(codecs[0], ring, bucket, 1, 4), 1);
  EXPECT_DOUBLE_EQ(PredictGain(codecs[1], ring, bucket, 1, 4), 1 - 3.67e-8);
  EXPECT_DOUBLE_EQ(PredictGain(codecs[4], ring, bucket, 0.03, 4), 0.03);
  const double step = 10 / (127.0 / 4);
  EXPECT_DOUBLE_EQ(PredictGain(codecs[5], ring, bucket, 1, 4), 1 - step * step / 6);
  CodecModel random_sums = codecs[1];
  random_sums.relative_error_squared = 0.1;
  random_sums.sum_error_squared = 0.07;
  EXPECT_DOUBLE_EQ(PredictGain(random_sums, ring, bucket, 1, 1), 0.9);  // nothing is added
  EXPECT_DOUBLE_EQ(PredictGain(random_sums, ring, bucket, 1, 2), 0.9 - 0.07);
  // Sums of 2, 3 and 4 ranks, each of that share of the whole's energy.
  EXPECT_DOUBLE_EQ(PredictGain(random_sums, ring, bucket, 1, 4), 0.9 - 0.07 * (0.5 + 0.75 + 1));
  EXPECT_EQ(PredictGain(random_sums, ring, bucket, 1, 1000), 0);
  // Without a curve, exponential magnitudes: r (1 + L + L^2/2).
  const double depth = std::log(100);
  EXPECT_NEAR(PredictGain(codecs[2], ring, BucketModel{}, 0.01, 4),
              0.01 * (1 + depth + depth * depth / 2), 1e-12);
}

TEST(CostModelTest, MeasuredStructureRaisesTheGainOfUniformSelection) {
  const CollectiveModel ring = test::Collective("ring", "lanes");
  CodecModel low_rank = test::Codecs()[4];
  ASSERT_EQ(low_rank.error_model, "uniform_selection");
  const auto gain = [&](double ratio) {
    return PredictGain(low_rank, ring, BucketModel{}, ratio, 4);
  };
  low_rank.uniform_loss = 1.2;  // noise of a measurement: never below the model
  EXPECT_DOUBLE_EQ(gain(0.03), 0.03);
  low_rank.uniform_loss = 0.2;
  EXPECT_NEAR(gain(0.05), 1 - 0.2 * 0.95, 1e-12);
  EXPECT_NEAR(gain(0.01), gain(0.05) / 5, 1e-12);
  EXPECT_NEAR(gain(1), 1, 1e-12);
  for (double ratio = 0.01; ratio < 1; ratio += 0.01) EXPECT_LT(gain(ratio), gain(ratio + 0.01));
}

TEST(CostModelTest, PayloadCountsTheEntropyOfPositions) {
  const CodecModel top_k = test::Selecting("top_k", "opaque", 16, true);
  // H(0.01) = 0.0808 bits per element: 8.08 bits per kept index.
  EXPECT_NEAR(PredictWireBytes(top_k, 1e6, 0.01).payload, 1e6 * (0.16 + 0.0808) / 8, 20);
  EXPECT_EQ(PredictWireBytes(top_k, 1e6, 0.01).index, 0);
  const CodecModel shared = test::Selecting("s", "shared_index", 32, true);
  EXPECT_NEAR(PredictWireBytes(shared, 1e6, 0.01).payload, 1e6 * 0.32 / 8, 1e-6);
  EXPECT_NEAR(PredictWireBytes(shared, 1e6, 0.01).index, 1e6 * 0.0808 / 8, 10);
  CodecModel scaled = top_k;
  scaled.payload_scale = 1.5;
  EXPECT_DOUBLE_EQ(PredictWireBytes(scaled, 1e6, 0.01).payload,
                   1.5 * PredictWireBytes(top_k, 1e6, 0.01).payload);
}

TEST(CostModelTest, BandwidthIsCappedByWindowAndHost) {
  Snapshot snapshot = test::MakeSnapshot(4, 0.05, 1e9);
  EXPECT_DOUBLE_EQ(EffectiveBandwidth(snapshot, NetworkOf(snapshot)), 1e9);
  snapshot.window_bytes = 4e6;
  EXPECT_DOUBLE_EQ(EffectiveBandwidth(snapshot, NetworkOf(snapshot)), 4e7);
  snapshot.host_bandwidth_bytes_per_s = 1e7;
  EXPECT_DOUBLE_EQ(EffectiveBandwidth(snapshot, NetworkOf(snapshot)), 1e7);
}

TEST(CostModelTest, OpaquePayloadsAreDecodedOncePerRank) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-3, 1e8);
  CodecModel codec = test::Selecting("top_k", "opaque", 16, true);
  codec.decode.per_kept_s = 1e-6;
  const auto cost =
      PredictBucket(snapshot, snapshot.buckets[0], codec, test::Collective("g", "opaque"), 0.01);
  EXPECT_NEAR(cost.decode_s, 4 * 25000 * 1e-6, 1e-9);
}

TEST(CostModelTest, SharedMetadataPrecedesEncoding) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-3, 1e8);
  snapshot.metadata_overhead_s = 5e-4;
  CodecModel codec = test::Lanes("q", 8, true);
  codec.shared_metadata = true;
  const auto ring = test::Collectives()[0];
  const auto with = PredictBucket(snapshot, snapshot.buckets[0], codec, ring, 1);
  codec.shared_metadata = false;
  const auto without = PredictBucket(snapshot, snapshot.buckets[0], codec, ring, 1);
  EXPECT_NEAR(with.EncodeSeconds(1e-3) - without.EncodeSeconds(1e-3), 5e-4 + 4e-3, 1e-12);
}

TEST(CostModelTest, MetadataOfBlocksCrossesTheLink) {
  Snapshot snapshot = test::MakeSnapshot(4, 1e-3, 1e8);
  CodecModel codec = test::Lanes("q", 8, true);
  codec.shared_metadata = true;
  const auto ring = test::Collectives()[0];
  const auto bytes = [&](double elements, double block) {
    codec.shared_block = block;
    BucketModel bucket = snapshot.buckets[0];
    bucket.elements = elements;
    return PredictBucket(snapshot, bucket, codec, ring, 1).network_beta_bytes;
  };
  // Few go from each rank to the three others, many around.
  EXPECT_NEAR(bytes(1e6, 1024) - bytes(1e6, 0), 3 * 4 * 977, 1e-6);
  EXPECT_NEAR(bytes(1e8, 1024) - bytes(1e8, 0), 1.5 * 4 * 97657, 1e-6);
}

TEST(CostModelTest, AWorldOfOneNeedsNoNetwork) {
  Snapshot snapshot = test::MakeSnapshot(1, 0, 0);
  for (const auto& codec : test::Codecs()) {
    for (const auto& collective : test::Collectives()) {
      const auto cost = PredictBucket(snapshot, snapshot.buckets[0], codec, collective, 0.1);
      EXPECT_EQ(cost.NetworkSeconds(1, 1), 0);
    }
  }
}

TEST(CostModelTest, CompatibilityChecksFormAndWorld) {
  const auto codecs = test::Codecs();
  const auto collectives = test::Collectives();
  EXPECT_TRUE(Compatible(codecs[0], collectives[0], 4));
  EXPECT_FALSE(Compatible(codecs[2], collectives[0], 4));
  CollectiveModel small = collectives[0];
  small.world_min = 3;
  small.world_max = 5;
  EXPECT_FALSE(Compatible(codecs[0], small, 2));
  EXPECT_TRUE(Compatible(codecs[0], small, 5));
  EXPECT_FALSE(Compatible(codecs[0], small, 6));
}

TEST(CostModelTest, RegionsDecodeTwiceEncodeOnceMoreAndLoseTwice) {
  const Snapshot snapshot = test::MakeSnapshot(8, 1e-3, 1e8);
  CodecModel codec = test::Selecting("top_k", "opaque", 16, true);
  codec.encode.per_element_s = 2e-9;
  codec.decode.per_element_s = 1e-9;
  CollectiveModel gather = test::Collective("g", "opaque"),
                  regions = test::Collective("r", "regions");
  gather.latency.constant = 1;
  gather.payload.n_minus_1 = 1;
  regions.latency.constant = 2;
  regions.payload.n_minus_1_over_n = 2;
  BucketModel bucket;
  bucket.elements = 1000000;
  const BucketCost all = PredictBucket(snapshot, bucket, codec, gather, 0.01);
  const BucketCost twice = PredictBucket(snapshot, bucket, codec, regions, 0.01);
  EXPECT_DOUBLE_EQ(twice.gain, all.gain * all.gain);
  EXPECT_DOUBLE_EQ(twice.encode_fixed_s, all.encode_fixed_s);
  EXPECT_DOUBLE_EQ(twice.decode_s, all.decode_s / 8);
  EXPECT_NEAR(twice.network_fixed_s - all.network_fixed_s,
              all.encode_fixed_s / 8 + all.decode_s / 8, 1e-12);
  EXPECT_NEAR(twice.network_beta_bytes, all.network_beta_bytes * 2 / 8, 1e-9);
  // A round trip of the calibration: what a rank measures per operation gives back single times.
  const CodecWork work = WorkOf(codec, regions, 8);
  EXPECT_DOUBLE_EQ(work.MeanEncodes(), 1.125);
  EXPECT_DOUBLE_EQ(work.MeanDecodes(), 2);
  EXPECT_DOUBLE_EQ(WorkOf(codec, gather, 8).decodes, 8);
}

TEST(CostModelTest, WhatLosesMoreThanItSendsGainsNothingTwiceEither) {
  const Snapshot snapshot = test::MakeSnapshot(4, 1e-3, 1e8);
  CodecModel codec = test::Selecting("minmax", "opaque", 1, true);
  codec.error_model = "relative";
  codec.relative_error_squared = 5.4;
  const CollectiveModel regions = test::Collective("r", "regions"),
                        gather = test::Collective("g", "opaque");
  BucketModel bucket;
  bucket.elements = 1000000;
  EXPECT_EQ(PredictBucket(snapshot, bucket, codec, gather, 1).gain, 0);
  EXPECT_EQ(PredictBucket(snapshot, bucket, codec, regions, 1).gain, 0);
}

TEST(CostModelTest, CollectivesCarryWhatRanksSayTheirFormDoes) {
  const CollectiveModel regions = test::Collective("r", "regions");
  CodecModel codec = test::Selecting("top_k", "opaque", 16, true);
  EXPECT_TRUE(Compatible(codec, regions, 4));
  codec.opt_in = true;
  EXPECT_FALSE(Compatible(codec, regions, 4)) << "nor is it looked for there";
  codec.opt_in = false;
  codec.forms = {"opaque"};
  EXPECT_FALSE(Compatible(codec, regions, 4));
  EXPECT_TRUE(Compatible(codec, test::Collective("g", "opaque"), 4));
  EXPECT_FALSE(Compatible(codec, test::Collective("l", "lanes"), 4));
  CollectiveModel table = test::Collective("t", "table_lanes");
  codec.forms = {"lanes", "table_lanes"};
  EXPECT_FALSE(Compatible(codec, table, 4)) << "a lease would have another table";
  codec.tabled = true;
  EXPECT_TRUE(Compatible(codec, table, 4));
  EXPECT_FALSE(Compatible(test::Lanes("fp16", 16, true), regions, 4));
}

TEST(CostModelTest, CallersSumInTheJobsFormatAndReduceScatterWhatTheyShard) {
  Snapshot snapshot;
  snapshot.world = 8;
  const CodecModel dense = test::Lanes("identity", 32, false);
  BucketModel bucket;
  bucket.elements = 1'000'000;
  const double bytes = 4e6, alpha_s = 1e-4, beta = 1e-9;
  const auto seconds = [&](const CollectiveModel& collective) {
    return PredictBucket(snapshot, bucket, dense, collective, 1).NetworkSeconds(alpha_s, beta);
  };
  const CollectiveModel callers = test::ByCaller(), ring = test::Collectives()[0];
  const double all_reduce = seconds(callers), of_ring = seconds(ring);
  EXPECT_NEAR(all_reduce, 6 * alpha_s + 2 * 7.0 / 8 * bytes * beta, 1e-12);
  bucket.sharded = true;
  EXPECT_NEAR(seconds(callers), 3 * alpha_s + 7.0 / 8 * bytes * beta, 1e-12);
  bucket.element_bytes = 2;
  EXPECT_NEAR(seconds(callers), 3 * alpha_s + 7.0 / 8 * bytes / 2 * beta, 1e-12);
  bucket.sharded = false;
  EXPECT_NEAR(seconds(callers), 6 * alpha_s + 2 * 7.0 / 8 * bytes / 2 * beta, 1e-12);
  EXPECT_EQ(seconds(ring), of_ring) << "Weir's own sums are of float32, and whole";
}

TEST(CostModelTest, FloatLanesAreWhatLosslessCodecsOf32BitsMake) {
  const CollectiveModel floats = test::Collective("s", "float_lanes");
  EXPECT_TRUE(Compatible(test::Lanes("identity", 32, false), floats, 4));
  EXPECT_FALSE(Compatible(test::Lanes("fp16", 16, true), floats, 4));
  EXPECT_FALSE(Compatible(test::Lanes("rounded", 32, true), floats, 4));
  EXPECT_FALSE(Compatible(test::Lanes("narrow", 16, false), floats, 4));
  EXPECT_FALSE(Compatible(test::Selecting("top_k", "opaque", 32, true), floats, 4));
}

}  // namespace
}  // namespace weir
