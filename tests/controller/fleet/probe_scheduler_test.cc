// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/probe_scheduler.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(ProbeSchedulerTest, NoTwoProbesShareANode) {
  ProbeScheduler probes;
  const std::vector<std::string> nodes = {"a", "b", "c", "d"};
  double now = 0;
  int bandwidth_probes = 0;
  for (int round = 0; round < 200; ++round, now += 1) {
    for (const auto& source : nodes) {
      for (const auto& target : nodes) {
        if (source != target) probes.OfferLink(source, target, {true, 30, 1 << 20});
      }
    }
    probes.ForgetOtherLinks();
    probes.OnTrainingBytes(100 << 20, 0.005);
    std::set<std::string> busy;
    const auto started = probes.Next(now);
    for (const auto& probe : started) {
      EXPECT_TRUE(busy.insert(probe.source).second);
      EXPECT_TRUE(busy.insert(probe.target).second);
      bandwidth_probes += probe.method == "iperf3";
    }
    for (const auto& probe : started) {
      probes.OnResult(probe.id, probe.bytes_max, now);
      if (probe.method == "iperf3") probes.OnBandwidthSample(probe.source, probe.target, now);
    }
  }
  EXPECT_GE(bandwidth_probes, 12 * 3) << "every link is measured again and again";
  const double budget = 200.0 * (100 << 20) * 0.005 + 12 * ProbeScheduler::kInitialBytes;
  EXPECT_LE(static_cast<double>(probes.spent_bytes()), budget);
}

TEST(ProbeSchedulerTest, SilentProbeFreesItsNodesAndWithoutCreditNothingStarts) {
  ProbeScheduler probes;
  probes.OfferLink("a", "b", {true, 1, 1 << 20});
  auto route = probes.Next(1000);
  ASSERT_EQ(route.size(), 1u);
  EXPECT_EQ(route[0].method, "traceroute");
  EXPECT_TRUE(probes.Next(1001).empty()) << "both nodes are busy";
  const auto first = probes.Next(1006);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].bytes_max, ProbeScheduler::kInitialBytes);
  EXPECT_TRUE(probes.Next(1100).empty()) << "the first grant is used up and training sends nothing";
  probes.OnTrainingBytes(1ull << 30, 0.005);
  EXPECT_EQ(probes.Next(1101).size(), 1u);
}

}  // namespace
}  // namespace weir
