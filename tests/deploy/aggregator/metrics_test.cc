// SPDX-License-Identifier: Apache-2.0
// The /metrics page for made-up statuses.
#include "deploy/aggregator/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(AggregatorMetricsTest, TheKernelsPlaneHasFamiliesOfItsOwn) {
  OffloadStatus kernel;
  kernel.counters.packets.added = 7;
  kernel.counters.packets.completed = 3;
  kernel.counters.passed = 2;
  kernel.counters.handed = 9;
  kernel.counters.ring_full = 4;
  kernel.counters.unsent = 1;
  kernel.slots_granted = 64;
  kernel.leases = 2;
  const std::string text = MetricsText("1.0", {ShardStatus{}}, {}, kernel, std::nullopt);
  for (const char* line :
       {"weir_aggregator_kernel_packets_total{outcome=\"added\"} 7\n",
        "weir_aggregator_kernel_packets_total{outcome=\"completed\"} 3\n",
        "weir_aggregator_kernel_packets_total{outcome=\"passed_to_socket\"} 2\n",
        "weir_aggregator_kernel_replies_total{fate=\"handed\"} 9\n",
        "weir_aggregator_kernel_replies_total{fate=\"ring_full\"} 4\n",
        "weir_aggregator_kernel_replies_total{fate=\"unsent\"} 1\n",
        "weir_aggregator_kernel_granted_slots 64\n", "weir_aggregator_kernel_leases 2\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, HasSubstr("weir_aggregator_packets_total{shard=\"0\",outcome=\"added\"} 0\n"))
      << "what sockets met is counted apart";
}

TEST(AggregatorMetricsTest, WithoutTheKernelsPlaneThereAreNoMetricsOfIt) {
  const std::string text = MetricsText("1.0", {ShardStatus{}}, {}, std::nullopt, std::nullopt);
  EXPECT_THAT(text, Not(HasSubstr("weir_aggregator_kernel")));
}

TEST(AggregatorMetricsTest, ACertificateHasMetrics) {
  EXPECT_THAT(MetricsText("1.0", {}, {}, std::nullopt, std::nullopt), Not(HasSubstr("weir_tls_")));
  const TlsHealth tls{.renewed = false, .refused = 2, .certificate_end_unix_s = 86400};
  const std::string text = MetricsText("1.0", {}, {}, std::nullopt, tls);
  EXPECT_THAT(text, HasSubstr("\nweir_tls_last_reload_successful 0\n"));
  EXPECT_THAT(text, HasSubstr("\nweir_tls_reload_failures_total 2\n"));
  EXPECT_THAT(text, HasSubstr("\nweir_tls_certificate_expiry_timestamp_seconds 86400\n"));
}

}  // namespace
}  // namespace weir::aggregation
