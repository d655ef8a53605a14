// SPDX-License-Identifier: Apache-2.0
// No order of a ring and no share of a shard without evidence that links differ, over thousands of
// steps; and both soon where they really do.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "controller/model/job_estimates.h"
#include "controller/model/plan_layout.h"
#include "datapath/base/random.h"
#include "tests/controller/support/simulated_job.h"

namespace weir {
namespace {

constexpr int kWorld = 4;
constexpr double kRate = 1e8;

/// A job on four hosts of which others use the cores, so that flows are slow at random without any
/// link being so; `slow` of the rate is what the links of `slow_node`, if any, give.
class Cluster {
 public:
  explicit Cluster(uint64_t seed, int slow_node = -1, double slow = 1)
      : random_(seed), slow_node_(slow_node), slow_(slow), job_(OptionsOf(seed), clock_) {
    std::vector<CollectiveModel> collectives = test::Collectives();
    CollectiveModel mesh = test::Collective("mesh", "lanes");
    mesh.shard_segment_bytes = 256 << 10;
    collectives.push_back(mesh);
    for (int rank = 0; rank < kWorld; ++rank) {
      job_.model().SetCapabilities(rank, test::Codecs(), collectives);
    }
  }

  void Step() {
    job_.Step({2e-4, kRate * (slow_node_ < 0 ? 1 : slow_)});
    for (int from = 0; from < kWorld; ++from) {
      for (int to = 0; to < kWorld; ++to) {
        if (from != to) Report(from, to);
      }
    }
  }

  /// The layout of the next plan for large buckets over the mesh and the ring.
  PlanLayout Layout() const {
    auto snapshot = job_.model().MakeSnapshot("periodic");
    if (!snapshot.ok()) return {};
    snapshot->buckets.resize(1);
    snapshot->buckets[0].elements = 25'000'000;
    return ChooseLayout(*snapshot).layout;
  }

 private:
  static test::SimulatedJob::Options OptionsOf(uint64_t seed) {
    test::SimulatedJob::Options options;
    options.seed = seed;
    return options;
  }

  double TrueRate(int from, int to) const {
    return kRate * (from == slow_node_ || to == slow_node_ ? slow_ : 1);
  }

  void Report(int from, int to) {
    LinkObservation link;
    link.source_node = "node" + std::to_string(from);
    link.target_node = "node" + std::to_string(to);
    // The kernel's delivery rate may be that of a small payload in a window that is not open, or on
    // a host whose cores are taken.
    link.method = "tcp_info";
    const double share =
        std::exp(-0.5 - 1.5 * std::fabs(random_.Normal()) - 1.5 * ((from + to) % 3));
    link.bandwidth_bytes_per_s = TrueRate(from, to) * share;
    job_.model().OnLink(link);
    const bool asked = job_.model().WantsLinkProbe(link.source_node, link.target_node);
    if (!asked || random_.Uniform() > 0.02) return;
    // One probe in ten meets a busy host.
    link.method = "iperf3";
    link.bandwidth_bytes_per_s = TrueRate(from, to) * std::exp(0.05 * random_.Normal());
    if (random_.Uniform() < 0.1) link.bandwidth_bytes_per_s *= 0.02 + 0.3 * random_.Uniform();
    job_.model().OnLink(link);
  }

  Random random_;
  const int slow_node_;
  const double slow_;
  FakeClock clock_;
  mutable test::SimulatedJob job_;
};

TEST(EvidenceTest, EqualLinksOfBusyHostsAreNeverToldApart) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Cluster cluster(seed);
    for (int step = 1; step <= 2000; ++step) {
      cluster.Step();
      if (step % 5 != 0) continue;
      const PlanLayout layout = cluster.Layout();
      ASSERT_TRUE(layout.ring_order.empty()) << "seed " << seed << ", step " << step;
      ASSERT_TRUE(layout.shard_shares.empty()) << "seed " << seed << ", step " << step;
    }
  }
}

TEST(EvidenceTest, AHostWithSlowLinksIsFoundByProbes) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Cluster cluster(seed, 3, 0.1);
    int step = 0;
    while (cluster.Layout().shard_shares.empty() && step < 1000) {
      cluster.Step();
      ++step;
    }
    ASSERT_LT(step, 1000) << "seed " << seed;
    EXPECT_LT(cluster.Layout().shard_shares[3], kShareUnits / 6);
  }
}

LinkEstimate Estimate(int from, int to, double rate, double relative_deviation, int windows) {
  LinkEstimate link;
  link.source_node = "node" + std::to_string(from);
  link.target_node = "node" + std::to_string(to);
  link.bandwidth_bytes_per_s = {rate, rate * relative_deviation, 1};
  link.bandwidth_windows = windows;
  return link;
}

TEST(EvidenceTest, OnlyWhatIsBeyondTheJointIntervalAndSeenTwiceDiffers) {
  const std::map<int, std::string> nodes = {{0, "node0"}, {1, "node1"}, {2, "node2"}};
  const auto cost = [&](LinkEstimate slow) {
    std::vector<LinkEstimate> links;
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        if (from != to && !(from == 0 && to == 1)) links.push_back(Estimate(from, to, 1e8, 0.1, 2));
      }
    }
    links.push_back(std::move(slow));
    return LinksBetween(nodes, 3, links).s_per_byte[1];
  };
  EXPECT_NEAR(cost(Estimate(0, 1, 5e7, 0.1, 2)), 2e-8, 1e-14);
  EXPECT_NEAR(cost(Estimate(0, 1, 5e7, 0.1, 1)), 1e-8, 1e-14) << "seen in one window";
  EXPECT_NEAR(cost(Estimate(0, 1, 5e7, 0.3, 2)), 1e-8, 1e-14) << "within the joint interval";
  EXPECT_NEAR(cost(Estimate(0, 1, 7e7, 0.1, 2)), 1e-8, 1e-14);
}

}  // namespace
}  // namespace weir
