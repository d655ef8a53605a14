// SPDX-License-Identifier: Apache-2.0
#pragma once
// Output of weirctl: messages as JSON or YAML, rows as a table.

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir::cli {

enum class Output { kTable, kJson, kYaml };

/// kInvalidArgument lists the valid names.
StatusOr<Output> ParseOutput(std::string_view name);

/// Multi-line JSON or YAML of `message` (proto3 JSON names); Output::kTable is a caller's bug.
std::string Render(const google::protobuf::Message& message, Output output);

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

/// Columns padded to their widest cell, two spaces apart, no trailing blanks.
std::string Render(const Table& table);

// Numbers for people; "-" for zero or unknown.
std::string Seconds(double seconds);
std::string Rate(double bytes_per_second);
std::string Bytes(double bytes);
std::string Figure(double value);
std::string Age(double seconds);

}  // namespace weir::cli
