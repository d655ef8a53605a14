// SPDX-License-Identifier: Apache-2.0
// From the reads of frames over simulated paths to what the controller believes: how near it is,
// how honest its interval, and how soon a change is adopted.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "controller/model/network_model.h"
#include "tests/support/simulated_path.h"

namespace weir {
namespace {

constexpr int kHosts = 4;
constexpr double kInterval90 = 1.645;

/// A ring of hosts: in each step every one receives frames from the one before.
class Ring {
 public:
  Ring(const test::PathOptions& options, double payload, uint64_t seed)
      : payload_(payload), random_(seed) {
    for (int host = 0; host < kHosts; ++host) paths_.emplace_back(options, seed * 31 + host);
    CollectiveModel ring;
    ring.name = "ring";
    ring.latency = ring.payload = {0, 1, 0, 0, 0};
    network_.SetCollectives({ring});
  }

  void SetRate(double bytes_per_s) {
    for (auto& path : paths_) path.options().bytes_per_s = bytes_per_s;
  }

  void Step() {
    now_s_ += 0.3;
    const double bytes_per_s = paths_[0].options().bytes_per_s, rtt_s = paths_[0].options().rtt_s;
    for (int host = 0; host < kHosts; ++host) {
      PeerArrivals arrivals{(host + kHosts - 1) % kHosts, {}};
      for (int frame = 0; frame < 2; ++frame) paths_[host].Send(payload_, 0.1, &arrivals.points);
      LinkObservation link;
      link.source_node = "node" + std::to_string(arrivals.peer);
      link.target_node = "node" + std::to_string(host);
      link.method = "udp_echo";
      link.rtt_s = rtt_s;
      network_.AddLink(now_s_, link);
      link.method = "tcp_info";
      link.rtt_s = 0;
      link.window_bytes = paths_[host].window_bytes();
      network_.AddLink(now_s_, link);
      for (const ArrivalSample& sample : MeasureArrivals({arrivals})) {
        network_.AddArrival(
            now_s_, link.source_node, link.target_node,
            {sample.peer, sample.s_per_byte, sample.relative_deviation, sample.ingress_s_per_byte,
             static_cast<double>(sample.payload_bytes), sample.within_burst});
      }
    }
    // Hosts that are busy make collectives take up to three times as long.
    const double quiet_s = 3 * (payload_ / bytes_per_s + rtt_s / 2);
    network_.AddStep(now_s_, {{0, 1, payload_, 0, quiet_s * (1 + 2 * random_.Uniform())}}, 0.3);
  }

  Measured belief() const { return network_.Bandwidth(now_s_); }

 private:
  const double payload_;
  Random random_;
  std::vector<test::SimulatedPath> paths_;
  NetworkModel network_{kHosts};
  double now_s_ = 0;
};

double LogError(const Measured& belief, double truth) { return std::log(belief.value / truth); }

TEST(BandwidthBeliefTest, IsNearTheTruthAndItsIntervalHonest) {
  int near = 0, covered = 0, runs = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const double rate : {6.25e6, 25e6, 62.5e6}) {
      for (const double rtt : {4e-3, 0.02, 0.05}) {
        test::PathOptions options{.bytes_per_s = rate, .rtt_s = rtt};
        options.burst_bytes = std::max(16384.0, 1e-3 * rate);
        options.window_bytes = seed % 2 == 0 ? 3e6 : 2e5;
        options.cold = seed % 3 == 0;
        options.stalls_per_s = 50;
        options.cross_share = 0.05;
        Ring ring(options, 2e5 + 1e5 * static_cast<double>(seed % 5), seed);
        for (int step = 0; step < 12; ++step) ring.Step();
        const Measured belief = ring.belief();
        const double error = LogError(belief, 0.95 * rate);
        near += std::fabs(error) <= 0.2;
        covered += std::fabs(error) <= kInterval90 * belief.deviation / belief.value;
        ++runs;
      }
    }
  }
  const double coverage = 1.0 * covered / runs, accuracy = 1.0 * near / runs;
  std::printf("%d runs: within 20 %% in %.1f %%, the 90 %% interval covers the truth in %.1f %%\n",
              runs, 100 * accuracy, 100 * coverage);
  EXPECT_GE(accuracy, 0.95);
  EXPECT_GE(coverage, 0.85);
}

TEST(BandwidthBeliefTest, ChangesAreAdoptedWithinFiveSteps) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    test::PathOptions options{.bytes_per_s = 25e6, .rtt_s = 0.02};
    options.stalls_per_s = 50;
    Ring ring(options, 3e5, seed);
    for (int step = 0; step < 15; ++step) ring.Step();
    for (const double rate : {62.5e6, 12.5e6}) {
      ring.SetRate(rate);
      int steps = 0;
      do {
        ring.Step();
      } while (++steps < 6 && std::fabs(LogError(ring.belief(), rate)) > 0.2);
      EXPECT_LE(steps, 5) << "seed " << seed << ", " << rate << " B/s";
      for (int step = 0; step < 15; ++step) ring.Step();
      EXPECT_NEAR(LogError(ring.belief(), rate), 0, 0.2) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace weir
