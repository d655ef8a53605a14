// SPDX-License-Identifier: Apache-2.0
#pragma once
// Output of weirctl: messages as JSON or YAML, rows as a table.

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

#include "controller/model/format.h"
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

/// A number for people, by one of controller/model/format.h; "-" where it is zero: not known.
std::string OrDash(double value, std::string (*format)(double));
/// "2026-11-27 09:34:48Z".
std::string TimeText(double unix_s);
/// How long ago, "-" where it never was. unix_s: then. now_unix_s: of the same clock.
std::string Since(double unix_s, double now_unix_s);

}  // namespace weir::cli
