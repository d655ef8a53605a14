// SPDX-License-Identifier: Apache-2.0
#include "agent/nccl_bridge.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <fstream>

namespace weir::agent {
namespace {

v1::NcclReport Report(const std::string& json) {
  v1::NcclReport report;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &report).ok()) << json;
  return report;
}

v1::NcclReport Profile(uint64_t operations, double wire_s, const std::string& function = "reduce",
                       int size_class = 22) {
  return Report(StrCat(R"({"profile": {"communicator": "00000000000000aa", "rank": 1, "sums": [
      {"function": ")",
                       function, R"(", "size_class": )", size_class, R"(, "operations": )",
                       operations, R"(, "sent": {"bytes": )", 10 * operations, R"(, "wire_s": )",
                       wire_s, R"(}, "received": {"own_gpu_s": 0.5}}]}})"));
}

TEST(NcclBridgeTest, SumsTheIncreasesOfAllProcesses) {
  NcclBridge bridge("");
  EXPECT_TRUE(bridge.OnReport(1, Profile(4, 1.5)));
  EXPECT_FALSE(bridge.OnReport(1, Profile(6, 2.0)));
  EXPECT_TRUE(bridge.OnReport(2, Profile(1, 0.25)));
  bridge.Forget(2);
  EXPECT_TRUE(bridge.OnReport(2, Profile(1, 0.25)));
  const NcclSnapshot snapshot = bridge.Snapshot();
  ASSERT_EQ(snapshot.totals.size(), 1u);
  const NcclTotals& totals = snapshot.totals.at({1, 2});
  EXPECT_EQ(totals.operations, 8u);
  EXPECT_EQ(totals.sent_bytes, 80u);
  EXPECT_DOUBLE_EQ(totals.wait_s[2], 2.5);
  EXPECT_DOUBLE_EQ(totals.wait_s[0], 1.5);
  EXPECT_FALSE(snapshot.table.has_value());
}

TEST(NcclBridgeTest, ASummaryIsOfAllFunctionsAndSizes) {
  NcclBridge bridge("");
  EXPECT_FALSE(bridge.Summary().has_value());
  bridge.OnReport(1, Profile(4, 1.5));
  bridge.OnReport(2, Profile(2, 0.5, "all_reduce", 10));
  bridge.OnReport(2, Report(R"({"tuners": [{"communicator": "a", "calls": 7, "steered": 3}]})"));
  const auto summary = bridge.Summary();
  ASSERT_TRUE(summary.has_value());
  EXPECT_EQ(summary->communicators(), 1u);
  EXPECT_EQ(summary->steered_calls(), 3u);
  EXPECT_EQ(summary->sampled_operations(), 6u);
  EXPECT_EQ(summary->sampled_sent_bytes(), 60u);
  EXPECT_DOUBLE_EQ(summary->wire_s(), 2);
  EXPECT_DOUBLE_EQ(summary->own_gpu_s(), 1);
}

TEST(NcclBridgeTest, TheControllersTableIsForNodesWithoutAFile) {
  v1::NcclTable ring;
  ring.add_rules()->set_algorithm("ring");
  const v1::NcclTable none;
  NcclBridge bridge("");
  EXPECT_TRUE(bridge.OnReport(1, Report("{}")));
  EXPECT_EQ(bridge.TableFor(1), nullptr);
  EXPECT_TRUE(bridge.OnControllerTable(none));
  EXPECT_EQ(bridge.TableFor(1), nullptr) << "it may have a file of its own";
  EXPECT_TRUE(bridge.OnControllerTable(ring));
  EXPECT_FALSE(bridge.OnControllerTable(ring));
  ASSERT_NE(bridge.TableFor(1), nullptr);
  EXPECT_EQ(bridge.TableFor(1)->rules(0).algorithm(), "ring");
  EXPECT_EQ(bridge.TableFor(2), nullptr) << "nobody there";
  EXPECT_EQ(bridge.Snapshot().table_source, "controller");
  EXPECT_FALSE(bridge.Snapshot().table.has_value()) << "that is of a file";
  bridge.OnReport(1, Report(R"({"table_error": "unknown key"})"));
  EXPECT_EQ(bridge.Summary()->table_source(), "controller");
  EXPECT_EQ(bridge.Summary()->refusing(), 1u);
  // Processes keep what they were told, so the end of a table must be told, also to those that a
  // former agent told, and to those that only now say that they were told.
  EXPECT_TRUE(bridge.OnControllerTable(none));
  EXPECT_EQ(bridge.Snapshot().table_source, "");
  EXPECT_EQ(bridge.TableFor(1), nullptr);
  EXPECT_TRUE(bridge.OnReport(1, Report(R"({"agent_steers": true})")));
  ASSERT_NE(bridge.TableFor(1), nullptr);
  EXPECT_EQ(bridge.TableFor(1)->rules_size(), 0);
  EXPECT_FALSE(bridge.OnReport(1, Report(R"({"agent_steers": true})")));
  EXPECT_FALSE(bridge.OnReport(1, Profile(4, 1.5)));
  EXPECT_FALSE(bridge.OnReport(1, Report("{}")));
  EXPECT_EQ(bridge.TableFor(1), nullptr);

  NcclBridge with_file("/nonexistent/table");
  EXPECT_FALSE(with_file.OnControllerTable(ring));
  EXPECT_EQ(with_file.table(), nullptr);
}

TEST(NcclBridgeTest, HostileValuesNeitherShrinkNorSpoilSums) {
  NcclBridge bridge("");
  bridge.OnReport(1, Profile(5, 1, "anything", 4000000));
  v1::NcclReport report = Profile(3, -7, "anything", 4000000);
  bridge.OnReport(1, report);
  for (const double bad : {NAN, INFINITY}) {
    report.mutable_profile()->mutable_sums(0)->mutable_sent()->set_wire_s(bad);
    bridge.OnReport(1, report);
  }
  for (int i = 0; i < 1000; ++i) {
    report.mutable_profile()->set_communicator(StrCat(i));
    bridge.OnReport(1, report);
  }
  const NcclTotals totals = bridge.Snapshot().totals.at({6, 3});
  EXPECT_DOUBLE_EQ(totals.wait_s[2], 1);
  EXPECT_TRUE(std::isfinite(totals.wait_s[0]));
}

TEST(NcclBridgeTest, CountsCallsAndObstacles) {
  NcclBridge bridge("");
  const char* first = R"({"tuners": [
      {"communicator": "a", "calls": 10, "steered": 4, "refused": 1},
      {"communicator": "a", "calls": 10, "steered": 4, "obstacle": "not all ranks share memory"}]})";
  bridge.OnReport(1, Report(first));
  bridge.OnReport(1, Report(first));  // nothing has changed
  bridge.OnReport(2, Report(R"({"tuners": [{"communicator": "a", "calls": 7}],
                               "table_error": "table.rules[0]"})"));
  const NcclSnapshot snapshot = bridge.Snapshot();
  EXPECT_EQ(snapshot.calls, 27u);
  EXPECT_EQ(snapshot.steered_calls, 8u);
  EXPECT_EQ(snapshot.refused_calls, 1u);
  EXPECT_EQ(snapshot.communicators, 3u);
  EXPECT_EQ(snapshot.obstructed, 1u);
  EXPECT_EQ(snapshot.refusing, 1u);
}

TEST(NcclBridgeTest, AChangedFileIsANewTableAndABadOneLeavesIt) {
  const std::string good =
      R"({"rules": [{"function": "reduce", "algorithm": "ring", "protocol": "ll"}]})";
  const std::string path = testing::TempDir() + StrCat("weir-nccl-table-", getpid());
  std::ofstream(path) << good;
  NcclBridge bridge(path);
  EXPECT_TRUE(bridge.Reload());
  EXPECT_FALSE(bridge.Reload());
  ASSERT_NE(bridge.table(), nullptr);
  EXPECT_EQ(bridge.table()->rules(0).algorithm(), "ring");
  for (const std::string& bad :
       {std::string("{"), std::string(R"({"rule": []})"), std::string(300 << 10, ' '),
        std::string(R"({"rules": [{"channels": "x"}]})"), std::string()}) {
    std::ofstream(path) << bad;
    EXPECT_FALSE(bridge.Reload()) << bad.substr(0, 40);
    ASSERT_NE(bridge.table(), nullptr);
    EXPECT_EQ(bridge.table()->rules_size(), 1);
    EXPECT_EQ(bridge.Snapshot().table, false);
  }
  std::ofstream(path) << good;
  EXPECT_FALSE(bridge.Reload());  // as before
  EXPECT_EQ(bridge.Snapshot().table, true);
  std::ofstream(path) << R"({"rules": []})";
  EXPECT_TRUE(bridge.Reload());
  EXPECT_EQ(bridge.table()->rules_size(), 0);
  unlink(path.c_str());
}

}  // namespace
}  // namespace weir::agent
