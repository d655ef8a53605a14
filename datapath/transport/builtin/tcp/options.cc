// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/tcp/options.h"

#include "datapath/transport/options.h"

namespace weir::tcp {

std::span<const TransportOption> Options() {
  static const TransportOption options[] = {
      {.key = "connections",
       .expected = "1..16",
       .meaning = "connections per pair of ranks, equal on all ranks",
       .parse =
           [](std::string_view value, TransportOptions* options) {
             const auto count = ParseCount(value, 1, kConnectionsMax);
             if (count) options->connections = static_cast<int>(*count);
             return count.has_value();
           }},
      {.key = "pacing",
       .expected = "bytes per second with unit K, M, G, Ki, Mi, Gi or none, 0 for no limit",
       .meaning = "the most that the kernel sends to one peer",
       .parse =
           [](std::string_view value, TransportOptions* options) {
             const auto rate = ParseBytes(value);
             if (rate) options->pacing_bytes_per_s = *rate;
             return rate.has_value();
           }},
      {.key = "zero_copy",
       .expected = "bytes with unit K, M, G, Ki, Mi, Gi or none, 0 for never",
       .meaning = "the smallest frame that leaves from the caller's memory without a copy",
       .parse =
           [](std::string_view value, TransportOptions* options) {
             const auto bytes = ParseBytes(value);
             if (bytes) options->zero_copy_bytes_min = *bytes;
             return bytes.has_value();
           }},
      {.key = "congestion",
       .expected = "a congestion control of the kernel",
       .meaning = "instead of the system's, and within a host instead of reno",
       .parse =
           [](std::string_view value, TransportOptions* options) {
             options->congestion_control = value;  // the kernel knows which there are
             return !value.empty();
           }},
      kBusyPollOption,
  };
  return options;
}

}  // namespace weir::tcp
