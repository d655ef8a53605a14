// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/peer_spread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "datapath/base/status.h"

namespace weir {
namespace {

std::string SpreadNode(int index) { return StrCat("node-", index); }

PeerSpread SpreadOf(int nodes) {
  PeerSpread spread;
  for (int i = 0; i < nodes; ++i) spread.AddNode(SpreadNode(i));
  spread.TakeChanged(1'000'000);
  return spread;
}

TEST(PeerSpreadTest, EveryNodeIsMeasuredByAsManyAsItMeasures) {
  const PeerSpread spread = SpreadOf(1000);
  std::map<std::string, size_t> measured_by;
  for (int i = 0; i < 1000; ++i) {
    const auto peers = spread.PeersOf(SpreadNode(i));
    EXPECT_EQ(peers.size(), PeerSpread::kFleetPeers);
    EXPECT_THAT(peers, testing::Not(testing::Contains(SpreadNode(i))));
    for (const std::string& peer : peers) ++measured_by[peer];
  }
  EXPECT_EQ(measured_by.size(), 1000u);
  for (const auto& [node, count] : measured_by) EXPECT_EQ(count, PeerSpread::kFleetPeers) << node;
}

TEST(PeerSpreadTest, InASmallFleetEveryoneMeasuresEveryone) {
  const PeerSpread spread = SpreadOf(5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(spread.PeersOf(SpreadNode(i)).size(), 4u);
  EXPECT_TRUE(SpreadOf(1).PeersOf(SpreadNode(0)).empty());
}

// The lists that change are those that the brute-force comparison finds, and no more than a
// constant.
TEST(PeerSpreadTest, AChangeConcernsItsNeighboursOnly) {
  for (const int nodes : {3, 9, 10, 200, 2000}) {
    PeerSpread spread = SpreadOf(nodes);
    for (const bool joins : {true, false}) {
      std::map<std::string, std::vector<std::string>> before;
      for (int i = 0; i <= nodes; ++i) before[SpreadNode(i)] = spread.PeersOf(SpreadNode(i));
      if (joins) {
        spread.AddNode(SpreadNode(nodes));
      } else {
        spread.RemoveNode(SpreadNode(nodes));
      }
      const auto told = spread.TakeChanged(1'000'000);
      EXPECT_LE(told.size(), PeerSpread::kFleetPeers + 1);
      for (int i = 0; i < nodes; ++i) {
        if (spread.PeersOf(SpreadNode(i)) != before[SpreadNode(i)]) {
          EXPECT_THAT(told, testing::Contains(SpreadNode(i))) << nodes << " nodes";
        }
      }
    }
  }
}

TEST(PeerSpreadTest, NodesOfAJobMeasureEachOther) {
  PeerSpread spread = SpreadOf(500);
  for (int i = 0; i < 20; ++i) spread.AddToJob("j", SpreadNode(i * 20));
  EXPECT_EQ(spread.TakeChanged(1000).size(), 20u);
  const auto peers = spread.PeersOf(SpreadNode(40));
  for (int i = 0; i < 20; ++i) {
    if (i == 2) continue;
    EXPECT_THAT(peers, testing::Contains(SpreadNode(i * 20)));
  }
  EXPECT_LE(peers.size(), 19 + PeerSpread::kFleetPeers);
  EXPECT_THAT(spread.JobsOf(SpreadNode(40)), testing::ElementsAre("j"));

  spread.RemoveNode(SpreadNode(60));
  EXPECT_THAT(spread.JobPeersOf("j", SpreadNode(40)),
              testing::Not(testing::Contains(SpreadNode(60))));
  EXPECT_TRUE(spread.JobsOf(SpreadNode(60)).empty());
  spread.RemoveJob("j");
  EXPECT_TRUE(spread.JobPeersOf("j", SpreadNode(40)).empty());
  EXPECT_EQ(spread.PeersOf(SpreadNode(40)).size(), PeerSpread::kFleetPeers);
}

TEST(PeerSpreadTest, ALargeJobIsBoundedToo) {
  PeerSpread spread = SpreadOf(300);
  for (int i = 0; i < 300; ++i) spread.AddToJob("j", SpreadNode(i));
  std::map<std::string, size_t> measured_by;
  for (int i = 0; i < 300; ++i) {
    for (const auto& peer : spread.JobPeersOf("j", SpreadNode(i))) ++measured_by[peer];
  }
  for (const auto& [node, count] : measured_by) EXPECT_EQ(count, PeerSpread::kJobPeers) << node;
}

TEST(PeerSpreadTest, ListsAreTakenInPartsAndOnlyOfConnectedNodes) {
  PeerSpread spread = SpreadOf(100);
  spread.MarkAll();
  EXPECT_EQ(spread.TakeChanged(30).size(), 30u);
  spread.RemoveNode(SpreadNode(99));
  size_t rest = 0;
  while (spread.changed()) rest += spread.TakeChanged(30).size();
  EXPECT_GE(rest, 69u);
  EXPECT_LE(rest, 69u + PeerSpread::kFleetPeers);
}

}  // namespace
}  // namespace weir
