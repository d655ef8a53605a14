// SPDX-License-Identifier: Apache-2.0
#pragma once
// The JSON form of the messages between rank and agent. Ranks are not trusted: depth and size are
// checked before parsing.

#include <string>
#include <string_view>

#include "datapath/base/status.h"
#include "weir/v1/rank.pb.h"

namespace weir::agent {

/// The deepest nesting of objects and arrays that is parsed (proto/WIRE.md section 2).
inline constexpr int kJsonDepthMax = 32;

/// Parses a RankMessage; unknown fields are ignored. kDataLoss states the cause: the text is not
/// UTF-8 JSON of the message, nested too deeply, or longer than a socket frame may be. A message of
/// a kind that this version does not know has no body. Thread-safe.
StatusOr<v1::RankMessage> ParseRankMessage(std::string_view json);

/// Writes the command with the field names of the .proto. Thread-safe.
StatusOr<std::string> FormatRankCommand(const v1::RankCommand& command);

/// kDataLoss when objects and arrays are nested more deeply than `depth_max`. Brackets in strings
/// do not count.
Status CheckJsonDepth(std::string_view json, int depth_max);

/// The string in the field "token_proof" of the JSON object; kDataLoss when there is none.
StatusOr<std::string> ParseTokenProof(std::string_view json);

}  // namespace weir::agent
