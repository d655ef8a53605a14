// SPDX-License-Identifier: Apache-2.0
// Shares from the linear programme against a closed form, a search and sums over messages.

#include "controller/model/shard_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "datapath/base/random.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

std::vector<double> LinksOfHosts(const std::vector<double>& bandwidths) {
  const size_t n = bandwidths.size();
  std::vector<double> links(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      if (i != j) links[i * n + j] = 1 / std::min(bandwidths[i], bandwidths[j]);
    }
  }
  return links;
}

/// The definition over again: every rank sends to every other, message by message.
double SecondsByMessages(const ShardNetwork& network, const std::vector<double>& node_shares) {
  std::vector<int> node_of;
  for (size_t node = 0; node < network.ranks.size(); ++node) {
    node_of.insert(node_of.end(), static_cast<size_t>(network.ranks[node]), static_cast<int>(node));
  }
  const size_t nodes = network.ranks.size(), ranks = node_of.size();
  const auto link = [&](size_t a, size_t b) { return network.s_per_byte[a * nodes + b]; };
  double phases[2] = {0, 0}, both = 0;
  std::vector<std::vector<double>> bytes[2];
  for (const bool sums : {false, true}) {
    bytes[sums].assign(nodes, std::vector<double>(nodes));
    for (size_t from = 0; from < ranks; ++from) {
      for (size_t to = 0; to < ranks; ++to) {
        const auto a = static_cast<size_t>(node_of[from]), b = static_cast<size_t>(node_of[to]);
        if (a == b) continue;
        const size_t owner = sums ? a : b;
        bytes[sums][a][b] += node_shares[owner] / network.ranks[owner];
      }
    }
  }
  for (size_t a = 0; a < nodes; ++a) {
    double best_out = std::numeric_limits<double>::max(), best_in = best_out;
    for (size_t b = 0; b < nodes; ++b) {
      if (a == b) continue;
      best_out = std::min(best_out, link(a, b));
      best_in = std::min(best_in, link(b, a));
      for (const bool sums : {false, true}) {
        phases[sums] = std::max(phases[sums], bytes[sums][a][b] * link(a, b));
      }
      both = std::max(both, (bytes[0][a][b] + bytes[1][a][b]) * link(a, b));
    }
    double out[2] = {0, 0}, in[2] = {0, 0};
    for (const bool sums : {false, true}) {
      for (size_t b = 0; b < nodes; ++b) {
        out[sums] += bytes[sums][a][b] * best_out;
        in[sums] += bytes[sums][b][a] * best_in;
      }
      phases[sums] = std::max({phases[sums], out[sums], in[sums]});
    }
    both = std::max({both, out[0] + out[1], in[0] + in[1]});
  }
  const double h = network.unpipelined;
  return (1 - h) * both + h * (phases[0] + phases[1]);
}

TEST(ShardSharesTest, HostsAloneHaveAClosedForm) {
  for (const std::vector<double>& bandwidths :
       {std::vector<double>{1, 10, 10, 10}, std::vector<double>{5, 10, 10},
        std::vector<double>{9, 10, 10, 4, 7}, std::vector<double>{1, 1, 10, 10},
        std::vector<double>{3, 3, 3}}) {
    const size_t n = bandwidths.size();
    const std::vector<double> links = LinksOfHosts(bandwidths);
    const std::vector<int> ranks(n, 1);
    const ShardNetwork network{links, ranks, 0};
    const auto shares = BestShardShares(network);
    ASSERT_TRUE(shares.ok()) << ToString(shares.status());
    double sum = 0;
    for (const double bandwidth : bandwidths) sum += bandwidth;
    const double slowest = *std::min_element(bandwidths.begin(), bandwidths.end());
    const double expected = std::max(1 / slowest, 2.0 * static_cast<double>(n - 1) / sum);
    EXPECT_NEAR(ShardSecondsPerByte(network, *shares), expected, 2e-3 * expected);
  }
}

TEST(ShardSharesTest, NoSharesOfASearchAreFaster) {
  Random random(11);
  for (int round = 0; round < 40; ++round) {
    std::vector<double> links(9);
    for (double& cost : links) cost = 1e-9 * std::exp(3 * random.Uniform());
    const std::vector<int> ranks = {1 + round % 2, 1, 1 + round % 3};
    const ShardNetwork network{links, ranks, (round % 5) / 4.0};
    const auto shares = BestShardShares(network);
    ASSERT_TRUE(shares.ok()) << ToString(shares.status());
    const double found = ShardSecondsPerByte(network, *shares);
    EXPECT_NEAR(found, SecondsByMessages(network, *shares), 1e-9 * found);
    double best = std::numeric_limits<double>::max();
    constexpr int kSteps = 100;
    for (int a = 0; a <= kSteps; ++a) {
      for (int b = 0; a + b <= kSteps; ++b) {
        best = std::min(best, SecondsByMessages(network, {1.0 * a / kSteps, 1.0 * b / kSteps,
                                                          1.0 * (kSteps - a - b) / kSteps}));
      }
    }
    EXPECT_LE(found, 1.0011 * best) << round;
    EXPECT_GE(found, 0.9 * best) << round;
  }
}

TEST(ShardSharesTest, EqualLinksGiveEvenShares) {
  for (const int nodes : {1, 2, 3, 8, 17}) {
    const auto count = static_cast<size_t>(nodes);
    const std::vector<double> links(count * count, 3e-9);
    const std::vector<int> ranks(count, 2);
    for (const double unpipelined : {0.0, 0.1, 1.0}) {
      const auto shares = BestShardShares({links, ranks, unpipelined});
      ASSERT_TRUE(shares.ok()) << ToString(shares.status());
      for (const double share : *shares) EXPECT_NEAR(share, 1.0 / nodes, 1e-9);
    }
  }
}

TEST(ShardSharesTest, PhasesThatDoNotOverlapLeaveNothingToGain) {
  const std::vector<double> links = LinksOfHosts({1, 10, 10, 10});
  const std::vector<int> ranks(4, 1);
  const std::vector<double> even(4, 0.25);
  double last = 0;
  for (const double unpipelined : {0.0, 1.0 / 16, 0.25, 0.5}) {
    const ShardNetwork network{links, ranks, unpipelined};
    const auto shares = BestShardShares(network);
    ASSERT_TRUE(shares.ok());
    const double seconds = ShardSecondsPerByte(network, *shares);
    EXPECT_GT(seconds, last);
    EXPECT_NEAR(seconds, 1 + unpipelined, 2e-3) << "one payload, and a segment of another";
    EXPECT_DOUBLE_EQ(ShardSecondsPerByte(network, even), 1.5);
    last = seconds;
  }
  const auto shares = BestShardShares({links, ranks, 1});
  ASSERT_TRUE(shares.ok());
  for (const double share : *shares) EXPECT_NEAR(share, 0.25, 1e-3);
}

TEST(ShardSharesTest, AnAlmostBrokenLinkIsLeftAlone) {
  // Between 1 and 2 nothing moves when neither owns anything.
  std::vector<double> links(16, 1);
  links[1 * 4 + 2] = links[2 * 4 + 1] = 1000;
  const std::vector<int> ranks(4, 1);
  const auto shares = BestShardShares({links, ranks, 0});
  ASSERT_TRUE(shares.ok());
  EXPECT_LT((*shares)[1] + (*shares)[2], 0.01);
  EXPECT_NEAR((*shares)[0], (*shares)[3], 0.01);
}

TEST(ShardSharesTest, ScalesOfSecondsDoNotMatterAndAnswersRepeat) {
  std::vector<double> links = LinksOfHosts({2, 10, 9, 7});
  const std::vector<int> ranks = {1, 2, 1, 1};
  const auto shares = BestShardShares({links, ranks, 0.1});
  ASSERT_TRUE(shares.ok());
  EXPECT_EQ(*BestShardShares({links, ranks, 0.1}), *shares);
  for (double& cost : links) cost *= 1e-10;
  const auto small = BestShardShares({links, ranks, 0.1});
  ASSERT_TRUE(small.ok());
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR((*small)[i], (*shares)[i], 1e-6);
}

TEST(ShardSharesTest, LinksWithoutCostGiveEvenShares) {
  const std::vector<double> links(9, 0);
  const std::vector<int> ranks = {1, 2, 1};
  EXPECT_EQ(*BestShardShares({links, ranks, 0}), (std::vector<double>{0.25, 0.5, 0.25}));
}

TEST(ShardSharesTest, InputThatMakesNoSenseIsRefused) {
  std::vector<double> links(9, 1);
  std::vector<int> ranks(3, 1);
  const auto says = [&](double unpipelined = 0) {
    const auto shares = BestShardShares({links, ranks, unpipelined});
    EXPECT_EQ(shares.status().code(), StatusCode::kInvalidArgument);
    return Message(shares.status());
  };
  EXPECT_THAT(says(1.5), HasSubstr("expected an unpipelined share of 0 to 1, found 1.5"));
  links[5] = -1;
  EXPECT_THAT(says(), HasSubstr("from node 1 to node 2, found -1"));
  links[5] = std::nan("");
  EXPECT_THAT(says(), HasSubstr("from node 1 to node 2, found nan"));
  links[5] = 1;
  ranks[1] = 0;
  EXPECT_THAT(says(), HasSubstr("at least 1 rank on node 1, found 0"));
  ranks = {1, 1};
  EXPECT_THAT(says(), HasSubstr("expected 4 costs of links, found 9"));
  ranks.clear();
  EXPECT_THAT(says(), HasSubstr("expected 1 to 64 nodes, found 0"));
}

}  // namespace
}  // namespace weir
