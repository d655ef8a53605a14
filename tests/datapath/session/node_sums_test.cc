// SPDX-License-Identifier: Apache-2.0
// Sums of nodes that are encoded once, in whole sessions: nothing is lost, all ranks have the same
// bits, and residuals survive changes of the choice and checkpoints.

#include <cmath>
#include <limits>

#include "tests/datapath/session/account.h"

namespace weir {
namespace {

using testing::Account;
using testing::Owed;
using testing::RandomGradients;
using testing::ServerElements;
using Gradients = std::vector<std::vector<float>>;

Choice Ordered(const char* collective, const char* codec, double ratio = 0.1) {
  Choice choice;
  choice.codec = codec;
  choice.ratio = ratio;
  choice.collective = collective;
  return choice;
}

/// An account of a job whose ranks are on the given nodes.
struct NodeAccount {
  NodeAccount(const std::vector<int>& nodes, size_t elements)
      : factory(testing::MakeInprocFactory({.nodes = nodes})),
        account(static_cast<int>(nodes.size()), elements, factory.get()) {}
  std::unique_ptr<TransportFactory> factory;
  Account account;
};

const std::vector<int> kEven = {0, 0, 2, 2}, kUneven = {0, 0, 2};

struct Order {
  const char *collective, *codec;
};
class NodeOrderTest : public ::testing::TestWithParam<Order> {
 protected:
  Choice choice() const { return Ordered(GetParam().collective, GetParam().codec); }
};

TEST_P(NodeOrderTest, WhatIsNotDeliveredIsOwed) {
  for (const std::vector<int>& nodes : {kEven, kUneven, {0}, {0, 0, 0}, {0, 1}, {0, 1, 0, 1}}) {
    for (const size_t elements : {size_t{7}, size_t{40}, size_t{3001}}) {
      SCOPED_TRACE(StrCat(nodes.size(), " ranks, ", elements, " elements"));
      NodeAccount job(nodes, elements);
      // It leaves residuals, which the lossy codecs after it take over.
      job.account.Switch(Ordered("sparse_all_gather", "top_k"));
      job.account.Step(100);
      job.account.Switch(choice());
      for (uint64_t step = 0; step < 5; ++step) job.account.Step(step);
      job.account.ExpectBalance(3e-4);
    }
  }
}

TEST_P(NodeOrderTest, ASkippedStepChangesNoResidual) {
  for (const std::vector<int>& nodes : {kEven, kUneven}) {
    const int world = static_cast<int>(nodes.size());
    for (int poisoned = 0; poisoned < world; ++poisoned) {
      NodeAccount job(nodes, 500);
      job.account.Switch(choice());
      for (uint64_t step = 0; step < 3; ++step) job.account.Step(step);
      std::vector<std::vector<std::byte>> before;
      for (int rank = 0; rank < world; ++rank) {
        before.push_back(job.account.job.ExportResiduals(rank));
      }
      Gradients data = RandomGradients(world, 500, 9);
      data[poisoned][poisoned * 100] = std::numeric_limits<float>::quiet_NaN();
      job.account.job.Begin();
      job.account.job.AllReduce(job.account.key, data);
      EXPECT_TRUE(job.account.job.End());
      for (int rank = 0; rank < world; ++rank) {
        EXPECT_TRUE(std::isnan(data[rank][0]));
        EXPECT_EQ(job.account.job.ExportResiduals(rank), before[rank]);
      }
      job.account.Step(10);
    }
  }
}

TEST_P(NodeOrderTest, ASumThatOverflowsWithinANodeIsSkippedEverywhere) {
  NodeAccount job(kUneven, 300);
  job.account.Switch(choice());
  Gradients data(3, std::vector<float>(300));
  data[0][200] = data[1][200] = 3e38f;  // each is finite, the sum is not
  job.account.job.Begin();
  job.account.job.AllReduce(job.account.key, data);
  EXPECT_TRUE(job.account.job.End());
  for (const auto& gradient : data) EXPECT_TRUE(std::isnan(gradient[0]));
}

TEST_P(NodeOrderTest, OtherOrdersAndDenseTakeAlongWhatIsOwed) {
  for (const std::vector<int>& nodes : {kEven, kUneven}) {
    NodeAccount job(nodes, 900);
    job.account.Switch(Ordered("node_all_gather", "top_k"));
    for (uint64_t seed = 0;
         const char* next : {"node_shards", "reencode", "node_sums", "node_all_gather"}) {
      job.account.Switch(choice());
      job.account.Step(++seed);
      job.account.Switch(Ordered(next, GetParam().codec));
      job.account.Step(++seed);
      job.account.Step(++seed);
    }
    job.account.ExpectBalance(5e-4);
    job.account.Switch(choice());
    job.account.Step(50);
    job.account.Switch(DenseChoice());
    job.account.Step(51);
    job.account.ExpectBalance(5e-4);
    for (int rank = 0; rank < static_cast<int>(nodes.size()); ++rank) {
      EXPECT_EQ(ServerElements(job.account.job, rank, job.account.parameters), 0u);
    }
  }
}

TEST_P(NodeOrderTest, ACheckpointGoesOn) {
  for (const std::vector<int>& nodes : {kEven, kUneven}) {
    NodeAccount job(nodes, 900), later(nodes, 900);
    job.account.Switch(Ordered("node_all_gather", "top_k"));
    job.account.Step(7);
    job.account.Switch(choice());
    for (uint64_t step = 0; step < 4; ++step) job.account.Step(step);
    later.account.Switch(choice());
    for (int rank = 0; rank < static_cast<int>(nodes.size()); ++rank) {
      const auto state = job.account.job.Export(rank);
      ASSERT_TRUE(later.account.job.sessions[rank]->ImportState(state).ok());
      EXPECT_EQ(later.account.job.ExportResiduals(rank), job.account.job.ExportResiduals(rank));
    }
    later.account.out.assign(900, 0);
    later.account.in = Owed(later.account.job, later.account.parameters);
    later.account.Step(30);
    later.account.ExpectBalance(3e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Orders, NodeOrderTest,
    ::testing::Values(Order{"node_sums", "top_k"}, Order{"node_sums", "qsgd_bucketed"},
                      Order{"node_shards", "top_k"}, Order{"node_shards", "qsgd_bucketed"},
                      Order{"node_shards", "ef_signsgd"}, Order{"node_all_gather", "top_k"},
                      Order{"node_all_gather", "qsgd_bucketed"}),
    [](const auto& info) {
      return std::string(info.param.collective) + "_" + std::string(info.param.codec);
    });

// Only ranks that encode have residuals: equal parts on even nodes, and all of it on the first
// ranks otherwise.
TEST(NodeSumsSessionTest, WhatTheEncodingLostIsOwedByWhoeverEncoded) {
  struct Case {
    const char* collective;
    std::vector<int> nodes;
    std::vector<size_t> held;  // upper bound of the elements with a residual, by rank
  };
  for (const Case& one :
       {Case{"node_shards", kEven, {464, 464, 464, 464}},
        Case{"node_shards", kUneven, {900, 0, 900}}, Case{"node_sums", kEven, {900, 0, 900, 0}}}) {
    NodeAccount job(one.nodes, 900);
    job.account.Switch(Ordered(one.collective, "top_k"));
    for (uint64_t step = 0; step < 2; ++step) job.account.Step(step);
    for (size_t rank = 0; rank < one.nodes.size(); ++rank) {
      const size_t held =
          ServerElements(job.account.job, static_cast<int>(rank), job.account.parameters);
      EXPECT_LE(held, one.held[rank]) << one.collective << " rank " << rank;
      EXPECT_GE(held, one.held[rank] * 8 / 10) << one.collective << " rank " << rank;
    }
  }
}

// One encoding for a node loses less than one for each rank.
TEST(NodeSumsSessionTest, TheSumIsEncodedAndNotItsParts) {
  for (const char* collective : {"node_sums", "node_shards"}) {
    NodeAccount job({0, 0}, 640);
    job.account.Switch(Ordered(collective, "top_k", 0.5));
    Gradients data(2, std::vector<float>(640));
    // Each rank's largest elements cancel in the sum; what is left of the second half is kept.
    for (size_t i = 0; i < 640; ++i) {
      const bool cancels = i % 2 == 0;
      data[0][i] = cancels ? 100.0f : 1.0f;
      data[1][i] = cancels ? -100.0f : 1.0f;
    }
    const std::vector<float> sum = job.account.Run(data);
    for (size_t i = 0; i < 640; ++i) ASSERT_NEAR(sum[i], i % 2 == 0 ? 0 : 2, 0.02) << i;
  }
}

}  // namespace
}  // namespace weir
