// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace weir {
namespace {

using nlohmann::json;

constexpr uint64_t kExactInDouble = uint64_t{1} << 53;

// Computes the depth of containers by a scan that distinguishes only strings and brackets. It may
// be wrong for malformed input, which the parser then refuses.
int Depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_text = false;
      }
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

std::string Excerpt(const json& value) {
  std::string text = DumpJson(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool ParseDecimal(std::string_view text, uint64_t* out) {
  if (text.empty() || text.size() > 20) return false;
  uint64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
    const uint64_t digit = static_cast<uint64_t>(c - '0');
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / 10) return false;
    value = value * 10 + digit;
  }
  *out = value;
  return true;
}

bool ToUint64(const json& value, uint64_t* out) {
  if (value.is_number_unsigned()) {
    *out = value.get<uint64_t>();
    return true;
  }
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(number >= 0) || number > static_cast<double>(kExactInDouble)) return false;
    if (number != std::floor(number)) return false;
    *out = static_cast<uint64_t>(number);
    return true;
  }
  if (value.is_string()) return ParseDecimal(value.get_ref<const std::string&>(), out);
  return false;  // negative integers included
}

// Records the keys of every open object while the parser runs.
class DuplicateKeys {
 public:
  bool operator()(int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      if (!open_.empty()) open_.pop_back();
    } else if (event == json::parse_event_t::key && !open_.empty() && parsed.is_string()) {
      if (!open_.back().insert(parsed.get<std::string>()).second && duplicate_.empty()) {
        duplicate_ = parsed.get<std::string>();
      }
    }
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string duplicate_;
};

}  // namespace

StatusOr<json> ParseJson(std::string_view text, size_t bytes_max) {
  if (text.size() > bytes_max) {
    return InvalidArgument(
        StrCat("json text: expected at most ", bytes_max, " bytes, found ", text.size()));
  }
  const int depth = Depth(text);
  if (depth > kJsonDepthMax) {
    return InvalidArgument(
        StrCat("json text: expected at most ", kJsonDepthMax, " nested containers, found ", depth));
  }
  DuplicateKeys duplicates;
  try {
    json document = json::parse(text.begin(), text.end(), std::ref(duplicates), true);
    if (!duplicates.duplicate().empty()) {
      return InvalidArgument(StrCat("json text: duplicate key '", duplicates.duplicate(), "'"));
    }
    return document;
  } catch (const json::parse_error& error) {
    return InvalidArgument(StrCat("json text: malformed at byte ", error.byte));
  } catch (const json::exception& error) {  // e.g. a number beyond every type
    return InvalidArgument(StrCat("json text: ", error.what()));
  }
}

std::string DumpJson(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string_view Utf8Prefix(std::string_view text, size_t bytes_max) {
  size_t size = std::min(text.size(), bytes_max);
  const auto continues = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (size > 0 && continues(size)) --size;
  return text.substr(0, size);
}

json JsonUint64(uint64_t value) {
  if (value < kExactInDouble) return value;
  return std::to_string(value);
}

json JsonDouble(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

std::string Hex64(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

StatusOr<uint64_t> ParseHex64(std::string_view text) {
  uint64_t value = 0;
  bool good = text.size() == 16;
  for (char c : text) {
    int digit = -1;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit < 0) good = false;
    value = value << 4 | static_cast<uint64_t>(digit & 15);
  }
  if (!good) {
    return InvalidArgument(
        StrCat("expected 16 hexadecimal digits, found '", text.substr(0, 40), "'"));
  }
  return value;
}

StatusOr<ObjectReader> ObjectReader::Make(const json& value, std::string path) {
  if (!value.is_object()) {
    return InvalidArgument(StrCat(path, ": expected an object, found ", Excerpt(value)));
  }
  return ObjectReader(value, std::move(path));
}

std::string ObjectReader::PathOf(std::string_view key) const { return StrCat(path_, ".", key); }

Status ObjectReader::Wrong(const char* key, std::string_view expected, const json& found) const {
  return InvalidArgument(StrCat(PathOf(key), ": expected ", expected, ", found ", Excerpt(found)));
}

const json* ObjectReader::Find(const char* key) {
  asked_.insert(key);
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) return nullptr;
  return &*it;
}

Status ObjectReader::String(const char* key, size_t bytes_max, std::string* out) {
  const json* value = Find(key);
  if (value == nullptr) return OkStatus();
  if (!value->is_string()) return Wrong(key, "a text", *value);
  const std::string& text = value->get_ref<const std::string&>();
  if (text.size() > bytes_max) {
    return Wrong(key, StrCat("a text of at most ", bytes_max, " bytes"), *value);
  }
  *out = text;
  return OkStatus();
}

Status ObjectReader::Uint64(const char* key, uint64_t* out) {
  const json* value = Find(key);
  if (value == nullptr) return OkStatus();
  if (!ToUint64(*value, out)) return Wrong(key, "an unsigned 64-bit integer", *value);
  return OkStatus();
}

Status ObjectReader::Uint32(const char* key, uint32_t* out) {
  const json* value = Find(key);
  if (value == nullptr) return OkStatus();
  uint64_t wide = 0;
  if (!ToUint64(*value, &wide) || wide > std::numeric_limits<uint32_t>::max()) {
    return Wrong(key, "an unsigned 32-bit integer", *value);
  }
  *out = static_cast<uint32_t>(wide);
  return OkStatus();
}

Status ObjectReader::Double(const char* key, double* out) {
  const json* value = Find(key);
  if (value == nullptr) return OkStatus();
  if (!value->is_number()) return Wrong(key, "a number", *value);
  *out = value->get<double>();
  return OkStatus();
}

Status ObjectReader::Boolean(const char* key, bool* out) {
  const json* value = Find(key);
  if (value == nullptr) return OkStatus();
  if (!value->is_boolean()) return Wrong(key, "true or false", *value);
  *out = value->get<bool>();
  return OkStatus();
}

StatusOr<const json*> ObjectReader::FindArray(const char* key, size_t count_max) {
  const json* value = Find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) return Wrong(key, "an array", *value);
  if (value->size() > count_max) {
    return InvalidArgument(
        StrCat(PathOf(key), ": expected at most ", count_max, " elements, found ", value->size()));
  }
  return value;
}

Status ObjectReader::RejectUnknown() const {
  for (const auto& [key, value] : value_->items()) {
    if (asked_.count(key) == 0) {
      std::string known;
      for (const auto& name : asked_) known += (known.empty() ? "" : ", ") + name;
      return InvalidArgument(StrCat(PathOf(key), ": unknown key; valid: ", known));
    }
  }
  return OkStatus();
}

}  // namespace weir
