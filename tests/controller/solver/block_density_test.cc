// SPDX-License-Identifier: Apache-2.0
// Decisions about collectives that leave out blocks of zeros.

#include <gtest/gtest.h>

#include "controller/model/block_density.h"
#include "controller/solver/explain.h"
#include "controller/solver/solver.h"
#include "tests/controller/support/lossless.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

constexpr int kRanks = 8;

Snapshot WithBlockMesh(double own, Measured union_of) {
  Snapshot snapshot = test::MakeSnapshot(kRanks, 1e-5, 1e8, 4);
  CollectiveModel mesh = test::Collective("block_mesh", "lanes");
  mesh.latency.constant = 2;
  mesh.payload.n_minus_1_over_n = 2;
  mesh.reduce.n_minus_1_over_n = 1;
  mesh.overhead_s = 3e-3;  // looking for zeros takes time
  mesh.block_elements = 256;
  mesh.own_block_share = mesh.union_block_share = 0.5;
  snapshot.collectives.push_back(mesh);
  for (BucketModel& bucket : snapshot.buckets) bucket.block_densities = {{256, own, union_of}};
  return snapshot;
}

TEST(BlockDensityDecisionTest, FlipsWithTheDensityOfTheUnion) {
  // Each rank holds few blocks; whether skipping the others pays depends on where they are.
  const Decision same = test::Lossless(WithBlockMesh(0.1, {0.1, 0.001, 0}));
  EXPECT_EQ(same.chosen.label, "dense over block_mesh") << ReasonText(same.facts);
  const Decision everywhere = test::Lossless(WithBlockMesh(1, {1, 0.001, 0}));
  EXPECT_NE(everywhere.chosen.choices[0].collective, "block_mesh") << ReasonText(everywhere.facts);
  // Between the two extremes the choice changes exactly once.
  std::string before = "block_mesh";
  int turns = 0;
  for (double own = 0.02; own <= 1; own += 0.02) {
    const Decision decision =
        test::Lossless(WithBlockMesh(own, {IndependentUnion(own, kRanks), 0.001, 0}));
    const bool mesh = decision.chosen.choices[0].collective == "block_mesh";
    turns += mesh != (before == "block_mesh");
    before = mesh ? "block_mesh" : "another";
  }
  EXPECT_EQ(turns, 1);
  EXPECT_EQ(before, "another");
}

TEST(BlockDensityDecisionTest, SnapshotsKeepDensities) {
  const Snapshot snapshot = WithBlockMesh(0.125, {0.25, 0.5, 3});
  const auto again = ParseSnapshot(SerializeSnapshot(snapshot));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, snapshot);
}

}  // namespace
}  // namespace weir
