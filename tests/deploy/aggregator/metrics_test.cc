// SPDX-License-Identifier: Apache-2.0
// The /metrics page for made-up statuses.
#include "deploy/aggregator/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(AggregatorMetricsTest, ACertificateHasMetrics) {
  EXPECT_THAT(MetricsText("1.0", {}, {}, std::nullopt), Not(HasSubstr("weir_tls_")));
  const TlsHealth tls{.renewed = false, .refused = 2, .certificate_end_unix_s = 86400};
  const std::string text = MetricsText("1.0", {}, {}, tls);
  EXPECT_THAT(text, HasSubstr("\nweir_tls_last_reload_successful 0\n"));
  EXPECT_THAT(text, HasSubstr("\nweir_tls_reload_failures_total 2\n"));
  EXPECT_THAT(text, HasSubstr("\nweir_tls_certificate_expiry_timestamp_seconds 86400\n"));
}

}  // namespace
}  // namespace weir::aggregation
