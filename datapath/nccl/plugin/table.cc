// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/table.h"

#include <xxhash.h>

#include <algorithm>

#include "datapath/base/json.h"

namespace weir::nccl::plugin {
namespace {

constexpr size_t kNameBytesMax = 32;

template <size_t n>
Status ReadName(ObjectReader& reader, const char* key, const std::string_view (&names)[n],
                int* out) {
  std::string text;
  WEIR_RETURN_IF_ERROR(reader.String(key, kNameBytesMax, &text));
  const auto* const found = std::find(std::begin(names), std::end(names), text);
  if (found != std::end(names)) {
    *out = static_cast<int>(found - std::begin(names));
    return OkStatus();
  }
  std::string valid;
  for (const std::string_view name : names) valid += StrCat(valid.empty() ? "" : ", ", name);
  return InvalidArgument(
      StrCat(reader.PathOf(key), ": expected one of ", valid, ", found '", text, "'"));
}

StatusOr<Rule> ReadRule(const nlohmann::json& value, const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(value, path));
  Rule rule;
  WEIR_RETURN_IF_ERROR(ReadName(reader, "function", kFunctionNames, &rule.function));
  WEIR_RETURN_IF_ERROR(ReadName(reader, "algorithm", kAlgorithmNames, &rule.choice.algorithm));
  WEIR_RETURN_IF_ERROR(ReadName(reader, "protocol", kProtocolNames, &rule.choice.protocol));
  uint64_t bytes_end = 0;
  uint32_t channels = 0;
  uint64_t chunk_bytes = 0;
  WEIR_RETURN_IF_ERROR(reader.Uint64("bytes_min", &rule.bytes_min));
  WEIR_RETURN_IF_ERROR(reader.Uint64("bytes_end", &bytes_end));
  WEIR_RETURN_IF_ERROR(reader.Uint64("ranks", &rule.ranks));
  WEIR_RETURN_IF_ERROR(reader.Uint32("channels", &channels));
  WEIR_RETURN_IF_ERROR(reader.Uint64("chunk_bytes", &chunk_bytes));
  WEIR_RETURN_IF_ERROR(reader.RejectUnknown());
  if (bytes_end != 0) rule.bytes_end = bytes_end;
  if (rule.bytes_end <= rule.bytes_min) {
    return InvalidArgument(StrCat(reader.PathOf("bytes_end"), ": expected more than ",
                                  rule.bytes_min, ", found ", rule.bytes_end));
  }
  if (channels > kChannelsMax) {
    return InvalidArgument(StrCat(reader.PathOf("channels"), ": expected at most ", kChannelsMax,
                                  ", found ", channels));
  }
  if (chunk_bytes % kChunkGrainBytes != 0 || chunk_bytes > kChunkBytesMax) {
    return InvalidArgument(StrCat(reader.PathOf("chunk_bytes"), ": expected a multiple of ",
                                  kChunkGrainBytes, " of at most ", kChunkBytesMax, ", found ",
                                  chunk_bytes));
  }
  rule.choice.channels = static_cast<int>(channels);
  rule.choice.chunk_bytes = chunk_bytes;
  return rule;
}

uint64_t IdentityOf(const std::vector<Rule>& rules) {
  std::string text = "weir nccl table 1";
  for (const Rule& rule : rules) {
    text += StrCat("\n", rule.function, " ", rule.bytes_min, " ", rule.bytes_end, " ", rule.ranks,
                   " ", rule.choice.algorithm, " ", rule.choice.protocol, " ", rule.choice.channels,
                   " ", rule.choice.chunk_bytes);
  }
  const uint64_t hash = XXH3_64bits(text.data(), text.size());
  return hash == 0 ? 1 : hash;
}

}  // namespace

Table::Table() : Table(std::vector<Rule>{}) {}

Table::Table(std::vector<Rule> rules) : rules_(std::move(rules)), identity_(IdentityOf(rules_)) {}

StatusOr<Table> Table::Parse(std::string_view json) {
  WEIR_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, kTableBytesMax));
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(document, "table"));
  WEIR_ASSIGN_OR_RETURN(const nlohmann::json* const entries, reader.FindArray("rules", kRulesMax));
  WEIR_RETURN_IF_ERROR(reader.RejectUnknown());
  std::vector<Rule> rules;
  if (entries != nullptr) {
    for (const nlohmann::json& entry : *entries) {
      WEIR_ASSIGN_OR_RETURN(Rule rule, ReadRule(entry, StrCat("table.rules[", rules.size(), "]")));
      rules.push_back(rule);
    }
  }
  return Table(std::move(rules));
}

std::optional<Choice> Table::Find(int function, uint64_t bytes, uint64_t ranks) const {
  for (const Rule& rule : rules_) {
    if (rule.function == function && bytes >= rule.bytes_min && bytes < rule.bytes_end &&
        (rule.ranks == 0 || rule.ranks == ranks)) {
      return rule.choice;
    }
  }
  return std::nullopt;
}

}  // namespace weir::nccl::plugin
