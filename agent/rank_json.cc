// SPDX-License-Identifier: Apache-2.0
#include "agent/rank_json.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "datapath/wire/socket_frame.h"

namespace weir::agent {
namespace {

// Messages of the parser quote the input, and a hostile one must not fill the log.
std::string Shorten(std::string text) {
  constexpr size_t kMessageBytesMax = 200;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = ' ';
  }
  if (text.size() > kMessageBytesMax) text = text.substr(0, kMessageBytesMax) + "...";
  return text;
}

}  // namespace

Status CheckJsonDepth(std::string_view json, int depth_max) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > depth_max) {
        return DataLoss(StrCat("JSON nested deeper than ", depth_max, " at offset ", i));
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return OkStatus();
}

StatusOr<v1::RankMessage> ParseRankMessage(std::string_view json) {
  if (json.size() > kSocketFrameBytesMax) {
    return DataLoss(StrCat("message of ", json.size(), " bytes, at most ", kSocketFrameBytesMax));
  }
  WEIR_RETURN_IF_ERROR(CheckJsonDepth(json, kJsonDepthMax));
  v1::RankMessage message;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), &message, options);
  if (!status.ok()) {
    return DataLoss(StrCat("not a JSON RankMessage: ", Shorten(status.message().ToString())));
  }
  return message;
}

StatusOr<std::string> FormatRankCommand(const v1::RankCommand& command) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(command, &json, options);
  if (!status.ok()) {
    return Internal(StrCat("command has no JSON form: ", Shorten(status.message().ToString())));
  }
  if (json.size() > kSocketFrameBytesMax) {
    return ResourceExhausted(
        StrCat("command of ", json.size(), " bytes, at most ", kSocketFrameBytesMax));
  }
  return json;
}

StatusOr<std::string> ParseTokenProof(std::string_view json) {
  WEIR_RETURN_IF_ERROR(CheckJsonDepth(json, kJsonDepthMax));
  const nlohmann::json parsed = nlohmann::json::parse(json, nullptr, false);
  if (!parsed.is_object()) return DataLoss("expected {\"token_proof\": ...} as the first message");
  const auto it = parsed.find("token_proof");
  if (it == parsed.end() || !it->is_string()) {
    return DataLoss("expected {\"token_proof\": ...} as the first message");
  }
  return it->get<std::string>();
}

}  // namespace weir::agent
