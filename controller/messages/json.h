// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages as proto3 JSON: field names as written, default values present, 64-bit integers as
// strings.

#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace google::protobuf {
class Message;
}

namespace weir {

/// One line. Numbers that are not finite appear as "NaN" or "Infinity"; mapping.h removes them
/// before.
std::string ToJson(const google::protobuf::Message& message);
/// ToJson without fields that have their default value, for the store.
std::string ToCompactJson(const google::protobuf::Message& message);
/// ToJson over several lines, for people.
std::string ToPrettyJson(const google::protobuf::Message& message);
/// The object `json` without its member `name`, which is not parsed: for large members that nobody
/// asks for. Members of members stay; so does all of a text that is no object. O(n).
std::string WithoutMember(std::string_view json, std::string_view name);
/// Strict: unknown fields, wrong types and trailing text are kInvalidArgument; so is nesting deeper
/// than 64, checked before parsing.
Status FromJson(std::string_view json, google::protobuf::Message* message);

}  // namespace weir
