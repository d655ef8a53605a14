// SPDX-License-Identifier: Apache-2.0
#pragma once
// The messages between controller and aggregator: conversion between the aggregator's JSON and
// structs. It uses no sockets.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "controller/job/job_plan.h"
#include "controller/job/lease_ask.h"
#include "datapath/base/status.h"

namespace weir {

/// The address of an aggregator's control interface.
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

/// The body of POST /v1/leases. Only a client that knows `owner` can renew or end the lease; empty:
/// the aggregator makes a secret.
std::string LeaseAskJson(const LeaseAsk& ask, const std::string& owner = "");

// Answers. Numbers are bounded and texts cut, unknown keys ignored: an aggregator may be newer.
// kDataLoss: not JSON, or without what is needed (says which).

/// GET /v1/capacity.
Status ReadCapacity(std::string_view json, AggregatorReport* out);
/// GET /v1/leases: at most 4096 leases of at most 64 workers.
Status ReadLeases(std::string_view json, AggregatorReport* out);
/// POST /v1/leases, for the collective and aggregator of `ask`.
StatusOr<SlotGrant> ReadGrant(std::string_view json, const LeaseAsk& ask);
/// The message of a refusal, or the body's beginning.
std::string ReadRefusal(std::string_view json);

}  // namespace weir
