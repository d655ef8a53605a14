// SPDX-License-Identifier: Apache-2.0
#pragma once
// A strict reader of YAML and JSON: every key of a document must be known, occur once, and have the
// right type and range. yaml-cpp itself keeps duplicate keys, reads 010 as eight and throws.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace YAML {
class Node;
}

namespace weir {

/// Bounds on a document, checked before and while it is parsed.
inline constexpr size_t kPolicyBytesMax = 64u << 10;
inline constexpr int kPolicyDepthMax = 16;
inline constexpr size_t kPolicyListMax = 256;

/// The interval a number must lie in, and whether its ends belong to it.
struct NumberRange {
  double min = 0, max = 1;
  bool min_open = false;
};

/// The characters that a name may contain. Its length is 1 to 128 characters in all cases.
enum class NameKind {
  kPlain,    // letters, digits and . _ - /
  kPattern,  // * and ? besides, as in the shell
  kVariant,  // : and = besides, for variants of plug-ins (datapath/base/registry.h)
};

/// One section of a document: the keys it may hold and what each does with its value. Keys that are
/// absent keep their defaults. The same declarations give the schema of a document and the values
/// that it set.
class StrictSection {
 public:
  using Reader = std::function<Status(const YAML::Node& value, const std::string& path)>;
  using Maker = std::function<nlohmann::json()>;

  /// `origin` names the file in errors and must outlive the section.
  explicit StrictSection(const std::string& origin) : origin_(origin) {}

  StrictSection& Number(const std::string& key, NumberRange range, double* out);
  StrictSection& Integer(const std::string& key, NumberRange range, int* out);
  /// As Integer, for numbers that an int does not hold, up to 2^53.
  StrictSection& Count(const std::string& key, NumberRange range, uint64_t* out);
  /// The plain word true or false.
  StrictSection& Boolean(const std::string& key, bool* out);
  /// A name, which must be one of `known` if that is given. `known` must outlive the section.
  StrictSection& Name(const std::string& key, NameKind kind, std::string* out,
                      const std::set<std::string>* known = nullptr);
  /// A list of names, none of them twice. A list of patterns has at least one.
  StrictSection& Names(const std::string& key, NameKind kind, std::vector<std::string>* out,
                       const std::set<std::string>* known = nullptr);
  /// A section of free keys of kind kPlain, at most kPolicyListMax, each with a name.
  StrictSection& Map(const std::string& key, NameKind kind,
                     std::map<std::string, std::string>* out);
  StrictSection& Section(const std::string& key, StrictSection section);
  /// A list of at most kPolicyListMax sections. `make` gives the section that reads one entry.
  template <typename Entry>
  StrictSection& Sections(const std::string& key, StrictSection (*make)(const std::string&, Entry*),
                          std::vector<Entry>* out) {
    return AddList(key, {[out] { out->clear(); }, [out] { return out->size(); },
                         [this_origin = &origin_, out, make](size_t i) {
                           if (i == out->size()) out->emplace_back();
                           return make(*this_origin, &(*out)[i]);
                         },
                         [this_origin = &origin_, make] {
                           Entry defaults;
                           return make(*this_origin, &defaults).Schema();
                         }});
  }
  /// A section that may also be written as just one name; `known` is only for the schema.
  StrictSection& NameOrSection(const std::string& key, std::string* name, StrictSection section,
                               const std::set<std::string>* known = nullptr);

  /// The meaning of the key that was added last, for the schema.
  StrictSection& Means(std::string meaning);

  /// The JSON Schema (2020-12) of the section, with the present values as defaults. Checks that
  /// concern several keys are not in it.
  nlohmann::json Schema() const;
  /// The present values by key, those of sections within.
  nlohmann::json Values() const;

  /// Reads `node`, a mapping. kInvalidArgument: "origin:line: path: expected ..., found ...".
  Status Read(const YAML::Node& node, const std::string& path) const;

 private:
  struct Key {
    Reader read;
    Maker schema;  // without default and meaning
    Maker value;
    std::string meaning = {};
  };
  // A list whose entries have any type: `at` gives the section of an entry, of a new one at the
  // end.
  struct List {
    std::function<void()> clear;
    std::function<size_t()> size;
    std::function<StrictSection(size_t)> at;
    Maker schema;  // of an entry
  };
  StrictSection& AddList(const std::string& key, List list);
  StrictSection& AddInteger(const std::string& key, NumberRange range,
                            std::function<void(double)> set, Maker value);
  StrictSection& Add(const std::string& key, Key added);
  std::string KnownKeys() const;

  const std::string& origin_;
  std::map<std::string, Key> keys_;
  std::string last_;  // key that was added
};

/// Parses `source` and reads its one document by `section`. Never throws. kInvalidArgument.
Status ReadStrictYaml(std::string_view source, const std::string& origin,
                      const StrictSection& section);

}  // namespace weir
