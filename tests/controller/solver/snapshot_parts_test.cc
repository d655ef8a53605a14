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
  const std::string text = SerializeSnapshot(second), tables = TablesOf(SerializeSnapshot(first));
  const std::string rest = WithoutTables(text, tables);
  EXPECT_LT(rest.size(), text.size() - tables.size() / 2);
  EXPECT_EQ(*WithTables(rest, tables), text);
  EXPECT_EQ(*WithTables(WithoutTables(text, TablesOf(text)), TablesOf(text)), text);
}

TEST(SnapshotPartsTest, OtherTablesAreReplacedAsAWhole) {
  const std::string text = SerializeSnapshot(Some());
  Snapshot fewer = Some();
  fewer.codecs.pop_back();
  fewer.collectives.clear();
  for (const std::string& tables : {TablesOf(SerializeSnapshot(fewer)), std::string("{}")}) {
    EXPECT_EQ(*WithTables(WithoutTables(text, tables), tables), text) << tables;
  }
}

TEST(SnapshotPartsTest, DifferencesThatDoNotFitAreDataLoss) {
  const std::string text = SerializeSnapshot(Some()), tables = TablesOf(text);
  for (const char* rest : {"", "[]", "{\"codecs\":7}", "{\"codecs\":{\"9999\":[1]}}",
                           "{\"codecs\":{\"x\":[1]}}", "{\"codecs\":[1,2]}"}) {
    EXPECT_EQ(WithTables(rest, tables).status().code(), StatusCode::kDataLoss) << rest;
  }
  EXPECT_EQ(WithTables("{}", "").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace weir
