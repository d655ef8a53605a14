// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parses JSON from others. Size and depth are bounded before parsing, no exception escapes, and
// every error has the path of its key. Accepts what proto3's JSON mapping produces (64-bit integers
// as decimal strings, defaults left out, null for a default).

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "datapath/base/status.h"

namespace weir {

/// The deepest nesting of containers. A bound is needed because nlohmann::json copies and prints
/// recursively.
inline constexpr int kJsonDepthMax = 32;

/// Parses `text` of at most `bytes_max` bytes. kInvalidArgument states the cause: too long, too
/// deep, not JSON (with the offset), or a duplicate key. Thread-safe, O(n).
StatusOr<nlohmann::json> ParseJson(std::string_view text, size_t bytes_max);

/// Writes a document. Invalid UTF-8 is replaced, because names come from users.
std::string DumpJson(const nlohmann::json& document);

/// The longest prefix of at most `bytes_max` bytes that cuts no character of UTF-8. Thread-safe.
std::string_view Utf8Prefix(std::string_view text, size_t bytes_max);

/// The JSON form of a 64-bit integer: a number below 2^53, or else a decimal string.
nlohmann::json JsonUint64(uint64_t value);
/// The JSON form of a double. proto3 writes "NaN", "Infinity" and "-Infinity" as strings.
nlohmann::json JsonDouble(double value);
/// 16 lower-case hexadecimal digits.
std::string Hex64(uint64_t value);
/// Parses exactly 16 hexadecimal digits; kInvalidArgument otherwise.
StatusOr<uint64_t> ParseHex64(std::string_view text);

/// The fields of a JSON object. An absent or null field leaves the output unchanged. For a wrong
/// type or range every getter returns kInvalidArgument "<path>.<key>: expected ..., found ...".
class ObjectReader {
 public:
  /// `value` must outlive the reader. Errors use `path` as its name.
  static StatusOr<ObjectReader> Make(const nlohmann::json& value, std::string path);

  Status String(const char* key, size_t bytes_max, std::string* out);
  Status Uint64(const char* key, uint64_t* out);
  Status Uint32(const char* key, uint32_t* out);
  Status Double(const char* key, double* out);
  Status Boolean(const char* key, bool* out);
  /// The value of the field, or a null pointer if it is absent. For nested objects and arrays.
  const nlohmann::json* Find(const char* key);
  /// The same, but kInvalidArgument unless it is an array of at most `count_max` elements.
  StatusOr<const nlohmann::json*> FindArray(const char* key, size_t count_max);

  /// kInvalidArgument with the name of a key that no getter has requested.
  Status RejectUnknown() const;
  std::string PathOf(std::string_view key) const;

 private:
  ObjectReader(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}
  Status Wrong(const char* key, std::string_view expected, const nlohmann::json& found) const;

  const nlohmann::json* value_;
  std::string path_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace weir
