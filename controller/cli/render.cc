// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/render.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "controller/messages/json.h"
#include "datapath/base/check.h"

namespace weir::cli {
namespace {

// Display width: bytes that do not continue a UTF-8 sequence.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

StatusOr<Output> ParseOutput(std::string_view name) {
  if (name == "table") return Output::kTable;
  if (name == "json") return Output::kJson;
  if (name == "yaml") return Output::kYaml;
  return InvalidArgument(StrCat("unknown output '", name, "'; valid: table, json, yaml"));
}

std::string Render(const google::protobuf::Message& message, Output output) {
  WEIR_CHECK(output != Output::kTable);
  std::string json = ToPrettyJson(message);
  while (!json.empty() && json.back() == '\n') json.pop_back();
  if (output == Output::kJson) return json + "\n";
  // YAML contains JSON: parse it as YAML and print it in block style.
  YAML::Node node = YAML::Load(json);
  YAML::Emitter emitter;
  emitter.SetMapFormat(YAML::Block);
  emitter.SetSeqFormat(YAML::Block);
  const auto emit = [&](const auto& self, const YAML::Node& part) -> void {
    if (part.IsMap()) {
      emitter << (part.size() == 0 ? YAML::Flow : YAML::Block) << YAML::BeginMap;
      for (const auto& entry : part) {
        emitter << YAML::Key << entry.first.as<std::string>() << YAML::Value;
        self(self, entry.second);
      }
      emitter << YAML::EndMap;
    } else if (part.IsSequence()) {
      emitter << (part.size() == 0 ? YAML::Flow : YAML::Block) << YAML::BeginSeq;
      for (const auto& entry : part) self(self, entry);
      emitter << YAML::EndSeq;
    } else if (part.Tag() == "!") {  // was a quoted string
      emitter << YAML::DoubleQuoted << part.Scalar();
    } else {
      emitter << part;
    }
  };
  emit(emit, node);
  return std::string(emitter.c_str()) + "\n";
}

std::string Render(const Table& table) {
  std::vector<size_t> widths(table.header.size(), 0);
  const auto measure = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  };
  measure(table.header);
  for (const auto& row : table.rows) measure(row);
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - Width(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append(table.header);
  for (const auto& row : table.rows) append(row);
  return text;
}

std::string OrDash(double value, std::string (*format)(double)) {
  return value == 0 ? "-" : format(value);
}

std::string TimeText(double unix_s) {
  const auto seconds = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%SZ", &parts);
  return text.data();
}

std::string Since(double unix_s, double now_unix_s) {
  return unix_s > 0 ? AgeText(std::max(0.0, now_unix_s - unix_s)) : "-";
}

}  // namespace weir::cli
