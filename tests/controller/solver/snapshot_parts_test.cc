// SPDX-License-Identifier: Apache-2.0
// Snapshots without the tables that they share with others.

#include "controller/solver/snapshot_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/solver/solver.h"
#include "tests/controller/support/model_fixture.h"

namespace weir {
namespace {

Snapshot Some() { return test::MakeSnapshot(4, 1e-3, 1e8); }

TEST(SnapshotPartsTest, OmittedTablesAreRestoredToTheByte) {
  const Snapshot first = Some();
  Snapshot second = first;
  second.step = 99;
  second.codecs[1].encode.per_element_s = 1.0 / 3;
  second.codecs[0].bits = 7;
  second.collectives[0].lease_why_not = "no \"aggregator\" has a slot";
  const std::string text = SerializeSnapshot(second);
  const std::string known = SplitSnapshot(SerializeSnapshot(first), "").tables;
  const SnapshotParts parts = SplitSnapshot(text, known);
  EXPECT_LT(parts.rest.size(), text.size() - known.size() / 2);
  EXPECT_LT(parts.least.size(), parts.rest.size());
  EXPECT_EQ(*WithTables(parts.rest, known), text);
  EXPECT_EQ(*WithTables(parts.least, parts.tables), text);
  EXPECT_EQ(SplitSnapshot(text, parts.tables).rest, parts.least);
}

TEST(SnapshotPartsTest, OtherTablesAreReplacedAsAWhole) {
  const std::string text = SerializeSnapshot(Some());
  Snapshot fewer = Some();
  fewer.codecs.pop_back();
  fewer.collectives.clear();
  for (const std::string& known :
       {SplitSnapshot(SerializeSnapshot(fewer), "").tables, std::string("{}")}) {
    EXPECT_EQ(*WithTables(SplitSnapshot(text, known).rest, known), text) << known;
  }
}

TEST(SnapshotPartsTest, DifferencesThatDoNotFitAreDataLoss) {
  const std::string tables = SplitSnapshot(SerializeSnapshot(Some()), "").tables;
  for (const char* rest : {"", "[]", "{\"codecs\":7}", "{\"codecs\":{\"9999\":[1]}}",
                           "{\"codecs\":{\"x\":[1]}}", "{\"codecs\":[1,2]}"}) {
    EXPECT_EQ(WithTables(rest, tables).status().code(), StatusCode::kDataLoss) << rest;
  }
  EXPECT_EQ(WithTables("{}", "").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace weir
