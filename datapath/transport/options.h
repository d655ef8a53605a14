// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parses a transport and its options from text, such as "tcp:connections=4,pacing=100M". Each
// transport lists its options in its traits.

#include <cstdint>
#include <optional>
#include <string_view>

#include "datapath/transport/transport.h"

namespace weir {

/// Finds the transport that `text` names, NAME[:KEY=VALUE[,KEY=VALUE...]], and writes the values
/// into `options`, whose other members do not change. The transport lives as long as Transports().
/// kNotFound: there is no such transport, or it has no option with such a key; lists the valid
/// ones. kInvalidArgument: a key without a value, given twice, or with a value that is not valid;
/// names the key, what was expected and what was found. `options` is unchanged after an error.
/// Thread-safe.
StatusOr<const TransportFactory*> ParseTransport(std::string_view text, TransportOptions* options);

/// Parsers of options' values, for the tables of transports. They return nullopt for other texts.
/// An integer in decimal digits, min..max.
std::optional<uint64_t> ParseCount(std::string_view text, uint64_t min, uint64_t max);
/// An integer, times 1000, 1000^2 or 1000^3 if K, M or G follows, 1024^n if Ki, Mi or Gi.
std::optional<uint64_t> ParseBytes(std::string_view text);
/// An integer with us, ms or s, up to a minute; or 0.
std::optional<Duration> ParseDuration(std::string_view text);

/// Options that more than one transport takes: `busy_poll`, and `nccl` of sessions.
extern const TransportOption kBusyPollOption, kNcclOption;

}  // namespace weir
