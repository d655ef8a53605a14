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

TEST(ProbeSchedulerTest, TimeOfProbesIsCountedAndBounded) {
  ProbeScheduler probes;
  const ProbeScheduler::LinkOffer offer = {
      .iperf = true, .interval_s = 1, .bytes_wanted = 1 << 20, .duty_max = 0.01};
  double now_s = 1000;
  probes.OfferLink("a", "b", offer);
  for (const auto& route : probes.Next(now_s)) probes.OnResult(route.id, 0, now_s);
  int ran = 0;
  for (; now_s < 1300; now_s += 0.1) {
    probes.OnTrainingBytes(1ull << 30, 0.005);
    for (const auto& probe : probes.Next(now_s)) {
      if (probe.method != "iperf3") continue;
      ++ran;
      now_s += 0.1;
      probes.OnResult(probe.id, 300'000, now_s);
    }
  }
  EXPECT_NEAR(ran, 30, 3) << "one of 0.1 s in 10 s";
  const ProbeUse use = probes.UseBetween({"a", "b", "c"});
  EXPECT_EQ(use.bytes, 300'000u * static_cast<uint64_t>(ran));
  EXPECT_NEAR(use.seconds, 0.1 * ran, 1e-6);
  EXPECT_NEAR(probes.spent_s(), use.seconds, 1e-6);
  EXPECT_EQ(probes.UseBetween({"a", "c"}).bytes, 0u);
}

}  // namespace
}  // namespace weir
