// SPDX-License-Identifier: Apache-2.0
// /metrics as Prometheus' own checker sees it.
#include "agent/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>

#include "datapath/base/clock.h"

namespace weir::agent {
namespace {

MetricsSnapshot Full() {
  MetricsSnapshot snapshot;
  snapshot.controller_connected = true;
  snapshot.peers = 3;
  snapshot.rtt_s = {0.003, 0.001, 0.002};
  snapshot.loss_ratio = {0, 0.5, 1};
  snapshot.bandwidth_bytes_per_s = {1e6};
  snapshot.acks = 4;
  snapshot.nccl.totals[{4, 3}] = {.operations = 2, .sent_bytes = 5, .wait_s = {0, 0, 1.5, 0}};
  snapshot.nccl.calls = 9;
  snapshot.nccl.steered_calls = 4;
  snapshot.nccl.table = true;
  snapshot.gpus.info.emplace_back().name = "Fake";
  snapshot.gpus.samples.emplace_back().utilisation = 0.5;
  snapshot.gpus.samples.back().sm_clock_hz = 1.5e9;
  snapshot.tls = TlsHealth{.renewed = false, .refused = 2, .certificate_end_unix_s = 86400};
  return snapshot;
}

TEST(MetricsTest, PromtoolFindsNoErrors) {
  if (std::system("command -v promtool > /dev/null") != 0) {
    GTEST_SKIP() << "promtool (package prometheus) is not installed";
  }
  AgentMetrics metrics("node-a", "1.2.3");
  metrics.Set(Full());
  metrics.CountRankMessage("step");
  metrics.CountProbe("iperf3", true, 1000, 0.5);
  metrics.CountLatencyProbe("udp_echo", false);
  const std::string path = testing::TempDir() + StrCat("weir-metrics-", getpid());
  std::ofstream(path) << metrics.Text();
  const std::string output = path + ".out";
  const int status =
      std::system(StrCat("promtool check metrics < ", path, " > ", output, " 2>&1").c_str());
  std::ifstream said(output);
  std::string text((std::istreambuf_iterator<char>(said)), {});
  EXPECT_EQ(status, 0) << text;
  EXPECT_EQ(text, "");
  unlink(path.c_str());
  unlink(output.c_str());
}

TEST(MetricsTest, LinksAppearAsStatisticsOverPeers) {
  AgentMetrics metrics("node-a", "1.2.3");
  metrics.Set(Full());
  const std::string text = metrics.Text();
  for (const char* line :
       {"weir_link_rtt_seconds{statistic=\"min\"} 0.001",
        "weir_link_rtt_seconds{statistic=\"median\"} 0.002",
        "weir_link_rtt_seconds{statistic=\"max\"} 0.003",
        "weir_link_probe_loss_ratio{statistic=\"max\"} 1",
        "weir_nccl_sampled_wait_seconds_total{cause=\"wire\",function="
        "\"all_reduce\",size=\"from_16MiB\"} 1.5",
        "weir_nccl_calls_total{choice=\"nccl\"} 5", "weir_nccl_table_last_reload_successful 1",
        "weir_gpu_utilization_ratio{gpu=\"0\"} 0.5",
        "weir_gpu_clock_hertz{clock=\"sm\",gpu=\"0\"} 1500000000",
        "weir_gpu_info{gpu=\"0\",name=\"Fake\"} 1",
        "weir_agent_info{node=\"node-a\",version=\"1.2.3\"} 1"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(MetricsTest, CertificatesAppearWhereThereAreAny) {
  AgentMetrics metrics("n", "v");
  metrics.Set({});
  EXPECT_EQ(metrics.Text().find("weir_tls_"), std::string::npos);
  MetricsSnapshot authorities_alone;
  authorities_alone.tls = TlsHealth{};
  metrics.Set(authorities_alone);
  EXPECT_EQ(metrics.Text().find("weir_tls_certificate_expiry"), std::string::npos);
  for (int again = 0; again < 2; ++again) metrics.Set(Full());
  for (const char* line :
       {"\nweir_tls_last_reload_successful 0\n", "\nweir_tls_reload_failures_total 2\n",
        "\nweir_tls_certificate_expiry_timestamp_seconds 86400\n"}) {
    EXPECT_NE(metrics.Text().find(line), std::string::npos) << line << metrics.Text();
  }
}

TEST(MetricsTest, CountersFollowTheirSourceAndNeverFall) {
  AgentMetrics metrics("n", "v");
  metrics.Set(Full());
  MetricsSnapshot later = Full();
  later.acks = 6;
  metrics.Set(later);
  later.acks = 1;
  metrics.Set(later);
  EXPECT_NE(metrics.Text().find("weir_agent_plan_messages_total{kind=\"ack\"} 6\n"),
            std::string::npos);
}

}  // namespace
}  // namespace weir::agent
