// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/json.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

namespace weir {
namespace {

constexpr int kDepthMax = 64;

struct Form {
  bool pretty = false, whole = true;
};

std::string Print(const google::protobuf::Message& message, Form form) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = form.whole;
  options.add_whitespace = form.pretty;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  return json;
}

bool TooDeep(std::string_view json) {
  int depth = 0;
  bool text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (text) {
      if (c == '\\') ++i;
      if (c == '"') text = false;
    } else if (c == '"') {
      text = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDepthMax) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message) { return Print(message, {}); }
std::string ToCompactJson(const google::protobuf::Message& message) {
  return Print(message, {.whole = false});
}
std::string ToPrettyJson(const google::protobuf::Message& message) {
  return Print(message, {.pretty = true});
}

std::string WithoutMember(std::string_view json, std::string_view name) {
  int depth = 0;
  // The begin of the member that is being read, with the comma before it, and that of its key.
  size_t member = 0, key_begin = 0;
  bool text = false, wanted = false, first = true;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (text) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        text = false;
      }
      continue;
    }
    if (c == '"') {
      text = true;
      if (depth == 1) key_begin = i;
    } else if (c == '{' || c == '[') {
      if (++depth == 1) member = i + 1;
    } else if (c == ':' && depth == 1) {
      const std::string_view key = json.substr(key_begin, i - key_begin);
      wanted = key.starts_with(StrCat("\"", name, "\""));
    } else if ((c == ',' && depth == 1) || ((c == '}' || c == ']') && --depth == 0)) {
      if (wanted) {
        // The comma after the first member goes with it; other members take the comma before them.
        const size_t end = first && c == ',' ? i + 1 : i;
        return StrCat(std::string(json.substr(0, member)), std::string(json.substr(end)));
      }
      member = i;
      first = false;
    }
  }
  return std::string(json);
}

Status FromJson(std::string_view json, google::protobuf::Message* message) {
  if (TooDeep(json)) return InvalidArgument(StrCat("JSON nests deeper than ", kDepthMax));
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), message);
  if (!status.ok()) {
    return InvalidArgument(StrCat("not a ", message->GetTypeName(), ": ",
                                  std::string(status.message().data(), status.message().size())));
  }
  return OkStatus();
}

}  // namespace weir
