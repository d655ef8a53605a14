// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything known of one thing, for people: a line a field with its unit, a table for what
// repeats.

#include <google/protobuf/message.h>

#include <string>

namespace weir::cli {

/// Text of any message of the API. Units follow from the fields' names (`_s`, `_bytes_per_s`,
/// `_unix_s`, `_bytes`), so a new field needs no line here. Fields that hold nothing are left out;
/// of what repeats the first 32 are shown, with the number of the rest; of long texts the size.
/// now_unix_s: this machine's time. Pure.
std::string DescriptionOf(const google::protobuf::Message& message, double now_unix_s);

}  // namespace weir::cli
