// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/fleet/training.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "controller/messages/builtin_capabilities.h"
#include "datapath/base/status.h"

namespace weir::fleet_bench {
namespace {

constexpr double kBandwidth = 1.2e9;  // bytes a second
constexpr double kLatency = 1e-4;
constexpr std::array kRatios = {1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0};

std::string KeyOf(int bucket) {
  std::string digits = std::to_string(bucket);
  return std::string(16 - digits.size(), '0') + digits;
}

const v1::Choice* ChoiceIn(const v1::Plan& plan, int bucket) {
  for (const v1::BucketChoice& entry : plan.buckets()) {
    if (entry.bucket() == KeyOf(bucket)) return &entry.choice();
  }
  return plan.has_fallback() ? &plan.fallback() : nullptr;
}

double Noise(Random& random) { return std::exp(0.03 * random.Normal()); }

}  // namespace

v1::RankMessage Hello(const TrainingShape& shape, const std::string& job, int rank, uint64_t step,
                      const v1::Plan& plan) {
  v1::RankMessage message;
  v1::RankHello& hello = *message.mutable_hello();
  hello.set_job(job);
  hello.set_rank(static_cast<uint32_t>(rank));
  hello.set_world(static_cast<uint32_t>(shape.world));
  hello.set_pid(static_cast<uint32_t>(1000 + rank));
  hello.set_library_version("bench");
  const int node = rank / shape.ranks_per_node;
  hello.set_datapath_address(StrCat("10.9.", node / 200, ".", 1 + node % 200, ":", 20000 + rank));
  *hello.mutable_capabilities() = BuiltinCapabilities();
  hello.set_memory_group(
      static_cast<uint32_t>(1 + rank / shape.ranks_per_node * shape.ranks_per_node));
  hello.set_frame_protection(v1::FRAME_PROTECTION_CHECKED);
  hello.set_step(step);
  hello.set_active_plan_version(plan.version());
  if (plan.version() != 0) *hello.mutable_active_plan() = plan;
  return message;
}

v1::RankMessage Buckets(const TrainingShape& shape) {
  v1::RankMessage message;
  for (int b = 0; b < shape.buckets; ++b) {
    v1::Bucket& bucket = *message.mutable_buckets()->add_buckets();
    bucket.set_key(KeyOf(b));
    bucket.set_elements(shape.bucket_elements);
    bucket.set_order(static_cast<uint32_t>(b));
    bucket.set_dtype("float32");
    for (int p = 0; p < 8; ++p) bucket.add_parameters(StrCat("layers.", b, ".weight.", p));
  }
  return message;
}

v1::RankMessage Step(const TrainingShape& shape, int rank, uint64_t step, const v1::Plan& plan,
                     Random& random) {
  v1::RankMessage message;
  v1::StepReport& report = *message.mutable_step();
  const double world = shape.world;
  const double compute = 0.5 * shape.step_s * Noise(random), backward = 0.3 * shape.step_s;
  report.set_step(step);
  report.set_plan_version(plan.version());
  report.set_compute_s(compute);
  report.set_backward_s(backward);
  double free = 0;
  for (int b = 0; b < shape.buckets; ++b) {
    const v1::Choice* choice = ChoiceIn(plan, b);
    const bool ratio_given = choice != nullptr && choice->ratio() > 0 && choice->ratio() < 1;
    const double ratio = ratio_given ? choice->ratio() : 1;
    const double bytes =
        4.0 * static_cast<double>(shape.bucket_elements) * std::min(1.0, 2 * ratio);
    const double ready = backward * b / std::max(1, shape.buckets - 1);
    const double network =
        (2 * (world - 1) * kLatency + 2 * (world - 1) / world * bytes / kBandwidth) * Noise(random);
    v1::BucketSample& sample = *report.add_buckets();
    sample.set_bucket(KeyOf(b));
    sample.set_codec(choice == nullptr ? "identity" : choice->codec());
    sample.set_collective(choice == nullptr ? "ring" : choice->collective());
    sample.set_ratio(ratio);
    sample.set_ready_s(ready);
    sample.set_encode_s(ratio < 1 ? 0.004 : 0);
    sample.set_decode_s(ratio < 1 ? 0.002 : 0);
    sample.set_network_s(network);
    sample.set_payload_bytes(static_cast<uint64_t>(bytes));
    sample.set_bytes_sent(static_cast<uint64_t>(2 * bytes));
    sample.set_gain(ratio < 1 ? 0.9 : 1);
    sample.set_entry_offset_s(compute + std::max(ready, free));
    free = std::max(ready, free) + network;
  }
  const double exposed = std::max(0.0, free - backward);
  report.set_exposed_s(exposed);
  report.set_step_s(compute + backward + exposed);
  if (rank == 0) {
    report.set_has_loss(true);
    report.set_loss(2 + 8 * std::pow(1 + static_cast<double>(step), -0.2) + 0.01 * random.Normal());
  }
  v1::ArrivalSample& arrival = *report.add_arrivals();
  const int before = rank == 0 ? shape.world - 1 : rank - 1;
  arrival.set_peer_rank(static_cast<uint32_t>(before));
  arrival.set_s_per_byte(Noise(random) / kBandwidth);
  arrival.set_relative_deviation(0.05);
  arrival.set_ingress_s_per_byte(1 / kBandwidth);
  arrival.set_payload_bytes(300'000);
  arrival.set_trains(4);
  if (step % 16 != 0) return message;
  for (int b = 0; b < shape.buckets; ++b) {
    v1::GainCurve& curve = *report.add_gains();
    curve.set_bucket(KeyOf(b));
    curve.set_peak_over_rms(20);
    for (const double ratio : kRatios) {
      curve.add_ratios(ratio);
      curve.add_gains(std::pow(ratio, 0.3));
    }
  }
  return message;
}

v1::RankMessage Paths(const TrainingShape& shape, int rank, Random& random) {
  v1::RankMessage message;
  for (int peer = 0; peer < shape.world; ++peer) {
    if (peer / shape.ranks_per_node == rank / shape.ranks_per_node) continue;
    v1::PathSample& path = *message.mutable_paths()->add_paths();
    path.set_peer_rank(static_cast<uint32_t>(peer));
    path.set_medium("tcp");
    path.set_rtt_s(2 * kLatency * Noise(random));
    path.set_rtt_min_s(2 * kLatency);
    path.set_delivery_rate_bytes_per_s(kBandwidth * Noise(random));
    path.set_bytes_acked(1'000'000'000);
    path.set_busy_s(100);
    path.set_congestion_window_bytes(1'000'000);
  }
  return message;
}

}  // namespace weir::fleet_bench
