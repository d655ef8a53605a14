// SPDX-License-Identifier: Apache-2.0
#include "controller/solver/explain.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(ExplainTest, NumbersReadWell) {
  EXPECT_EQ(SecondsText(3.4), "3.4 s");
  EXPECT_EQ(SecondsText(0.21), "0.21 s");
  EXPECT_EQ(SecondsText(0.0213), "21 ms");
  EXPECT_EQ(SecondsText(85e-6), "85 us");
  EXPECT_EQ(BandwidthText(6.2e6), "6.2 MB/s");
  EXPECT_EQ(BandwidthText(1.19e8), "119 MB/s");
  EXPECT_EQ(BandwidthText(1.25e9), "1.2 GB/s");
  EXPECT_EQ(NumberText(0.41), "0.41");
  EXPECT_EQ(NumberText(0), "0");
}

TEST(ExplainTest, DigestCoversEveryField) {
  Decision base;
  base.chosen.label = "a";
  base.front.resize(1);
  const std::string digest = DigestOf(base);
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_EQ(digest, DigestOf(base));
  const auto differs = [&](auto change) {
    Decision other = base;
    change(other);
    return DigestOf(other) != digest;
  };
  EXPECT_TRUE(differs([](Decision& d) { d.switched = true; }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.label = "b"; }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.choices.push_back({}); }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.step_s = 1e-300; }));
  EXPECT_TRUE(differs([](Decision& d) { d.chosen.step_deviation_s = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.incumbent.gain = 0.5; }));
  EXPECT_TRUE(differs([](Decision& d) { d.dense.exposed_s = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.top.resize(1); }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].communication_s = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].excluded_by = "x"; }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].feasible = false; }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].dense = true; }));
  EXPECT_TRUE(differs([](Decision& d) { d.front[0].objective = 1; }));
  EXPECT_TRUE(differs([](Decision& d) { d.binding_constraint = "x"; }));
  EXPECT_TRUE(differs([](Decision& d) { d.reason = "x"; }));
}

}  // namespace
}  // namespace weir
