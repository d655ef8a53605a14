// SPDX-License-Identifier: Apache-2.0
// The difference of two JSON values of the same shape is an object that has the members, or the
// numbers of the elements, that differ; anything else is replaced as a whole. See snapshot_parts.h.

#include "controller/solver/snapshot_parts.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace weir {
namespace {

using Json = nlohmann::json;
constexpr const char* kTables[] = {"codecs", "collectives"};

Json Parse(std::string_view text) {
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool SameShape(const Json& a, const Json& b) {
  if (a.is_array()) return b.is_array() && a.size() == b.size();
  if (!a.is_object() || !b.is_object() || a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    if (!b.contains(key)) return false;
  }
  return true;
}

/// The difference that turns `from` into `to`; null if they are equal. A replaced value is in an
/// array of its own.
Json Difference(const Json& from, const Json& to) {
  if (from == to) return nullptr;
  if (!SameShape(from, to)) return Json::array({to});
  Json changed = Json::object();
  for (const auto& [key, value] : to.items()) {
    const Json& before = from.is_array() ? from[std::stoul(key)] : from[key];
    if (Json inner = Difference(before, value); !inner.is_null()) changed[key] = std::move(inner);
  }
  return changed;
}

std::optional<size_t> IndexOf(const std::string& key, size_t size) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (error != std::errc() || end != key.data() + key.size() || index >= size) return std::nullopt;
  return index;
}

/// Returns false if the difference does not fit.
bool Apply(const Json& difference, Json* value) {
  if (difference.is_null()) return true;
  if (difference.is_array()) {
    if (difference.size() != 1) return false;
    *value = difference[0];
    return true;
  }
  if (!difference.is_object() || !(value->is_array() || value->is_object())) return false;
  for (const auto& [key, inner] : difference.items()) {
    Json* at = nullptr;
    if (value->is_array()) {
      const auto index = IndexOf(key, value->size());
      if (index.has_value()) at = &(*value)[*index];
    } else if (value->contains(key)) {
      at = &(*value)[key];
    }
    if (at == nullptr || !Apply(inner, at)) return false;
  }
  return true;
}

}  // namespace

SnapshotParts SplitSnapshot(std::string_view snapshot, std::string_view known) {
  Json rest = Parse(snapshot);
  if (!rest.is_object()) return {"{}", std::string(snapshot), std::string(snapshot)};
  Json tables = Json::object();
  for (const char* name : kTables) {
    if (const auto table = rest.find(name); table != rest.end()) {
      tables[name] = std::exchange(*table, nullptr);
    }
  }
  SnapshotParts parts{Dump(tables), Dump(rest), ""};
  if (known == parts.tables) {
    parts.rest = parts.least;
    return parts;
  }
  const Json base = Parse(known);
  if (!base.is_object()) {
    parts.rest = snapshot;
    return parts;
  }
  for (const auto& [name, table] : tables.items()) {
    rest[name] = Difference(base.value(name, Json()), table);
  }
  parts.rest = Dump(rest);
  return parts;
}

StatusOr<std::string> WithTables(std::string_view rest, std::string_view tables) {
  Json whole = Parse(rest);
  const Json known = Parse(tables);
  if (!whole.is_object() || !known.is_object()) {
    return DataLoss("the stored inputs of the decision are not two JSON objects");
  }
  for (const char* name : kTables) {
    if (!whole.contains(name)) continue;
    Json table = known.value(name, Json());
    if (!Apply(whole[name], &table)) {
      return DataLoss(StrCat("the stored ", name, " of the decision are no difference from those ",
                             "that it names"));
    }
    whole[name] = std::move(table);
  }
  return Dump(whole);
}

}  // namespace weir
