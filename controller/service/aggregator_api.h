#pragma once
// What the controller and an aggregator say to each other: the aggregator's JSON as messages and
// back. Knows no sockets.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"
#include "weir/v1/admin.pb.h"
#include "weir/v1/plan.pb.h"

namespace weir {

/// Where an aggregator's control interface is.
struct AggregatorAddress {
  std::string name;
  std::string url;  // "https://host:port"
  bool operator==(const AggregatorAddress&) const = default;
};

/// Parses "NAME=http(s)://HOST:PORT", HOST a name, an IPv4 address or one of IPv6 in brackets.
/// kInvalidArgument says what was expected and found. Thread-safe.
StatusOr<AggregatorAddress> ParseAggregator(std::string_view text);

/// The host of a URL that ParseAggregator accepted, without brackets.
std::string HostOf(const AggregatorAddress& address);

/// What indices of mode "table" stand for.
struct LeaseTable {
  uint32_t sum_bits = 0;
  std::vector<uint32_t> levels;
};

/// What an operator says of leases.
struct LeaseWish {
  // Mode "table": how many workers are enough, once a round has waited so long; zeros: all.
  uint32_t quorum = 0, cutoff_ms = 0;
  bool checked = true;  // packets carry a checksum
};

/// What a job asks of an aggregator.
struct LeaseAsk {
  std::string aggregator;
  std::string job;  // of the controller
  uint64_t id = 0;  // of this ask, for its answer
  std::string collective;
  std::string mode;                  // "sum", "sparse" or "table"
  std::vector<std::string> workers;  // addresses in rank order
  uint32_t slots = 0, lanes = 0;
  uint32_t columns = 0;  // mode "sparse": blocks per packet
  LeaseTable table = {};
  LeaseWish wish = {};
};

/// Who holds a job's lease of that mode (empty: "sum"): a job has one of each at most, and leases
/// of different modes do not end each other.
std::string LeaseOwner(const std::string& job, const std::string& mode);

/// The name of `job` at aggregators, which take 1 to 128 letters, digits, '.', '_' and '-': itself,
/// or what is left of it and a hash of all of it. Two jobs never share one, but for a collision of
/// 64 bits.
std::string LeaseJobName(const std::string& job);

/// The body of POST /v1/leases. Only who knows `owner` can renew or end the lease; empty: the
/// aggregator makes one up.
std::string LeaseAskJson(const LeaseAsk& ask, const std::string& owner = "");

// Answers. Numbers are bounded and texts cut, unknown keys ignored: an aggregator may be newer.
// kDataLoss: not JSON, or without what is needed (says which).

/// GET /v1/capacity.
Status ReadCapacity(std::string_view json, v1::Aggregator* out);
/// GET /v1/leases: at most 4096 leases of at most 64 workers.
Status ReadLeases(std::string_view json, v1::Aggregator* out);
/// POST /v1/leases, for the collective and aggregator of `ask`.
StatusOr<v1::AggregatorLease> ReadGrant(std::string_view json, const LeaseAsk& ask);
/// The message of a refusal, or the body's beginning.
std::string ReadRefusal(std::string_view json);

}  // namespace weir
