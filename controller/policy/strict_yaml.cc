// SPDX-License-Identifier: Apache-2.0
// See strict_yaml.h.

#include "controller/policy/strict_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "datapath/base/registry.h"

namespace weir {
namespace {

using Json = nlohmann::json;

Status Wrong(const std::string& origin, const YAML::Mark& mark, const std::string& path,
             const std::string& problem) {
  const std::string line = mark.is_null() ? "?" : std::to_string(mark.line + 1);
  return InvalidArgument(
      StrCat(origin, ":", line, ": ", path.empty() ? "document" : path, ": ", problem));
}

/// The text of a node as the file has it, shortened, for error messages.
std::string Shown(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      return "nothing";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a section";
    case YAML::NodeType::Scalar:
      break;
  }
  std::string text = node.Scalar().substr(0, 40);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return "'" + text + "'";
}

/// yaml-cpp tags: "?" plain scalar or collection, "!" quoted scalar, anything else is explicit.
bool Quoted(const YAML::Node& node) { return node.Tag() == "!"; }
bool ExplicitTag(const YAML::Node& node) {
  const std::string& tag = node.Tag();
  return !tag.empty() && tag != "?" && tag != "!";
}

bool IsName(const std::string& text, NameKind kind) {
  if (text.empty() || text.size() > 128) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-' || c == '/';
    return plain || (kind == NameKind::kPattern && (c == '*' || c == '?')) ||
           (kind == NameKind::kVariant && (c == ':' || c == '='));
  });
}

/// The number of characters that have to be inserted, removed or replaced to turn one text into the
/// other. O(|a| * |b|).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

/// An error text for a name that is not among `known`; it suggests the most similar known name.
std::string UnknownName(const std::string& name, const std::set<std::string>& known) {
  std::string nearest;
  size_t distance = name.size() / 3 + 1;  // farther ones have little in common
  for (const std::string& each : known) {
    const size_t other = EditDistance(name, each);
    if (other < distance || (other == distance && nearest.empty())) {
      nearest = each;
      distance = other;
    }
  }
  return StrCat("expected one of ", ValidNames(name, known), ", found '", name, "'",
                nearest.empty() ? "" : StrCat("; the nearest is '", nearest, "'"));
}

std::string Describe(const NumberRange& range) {
  return StrCat("a number in ", range.min_open ? "(" : "[", range.min, ", ", range.max, "]");
}

/// Decimal only: no octal, hexadecimal, superfluous signs, infinities or NaN.
bool ParseNumber(const YAML::Node& node, double* out) {
  if (!node.IsScalar() || Quoted(node)) return false;
  const std::string& text = node.Scalar();
  if (text.empty() || text.size() > 40) return false;
  const size_t digits = text[0] == '-' ? 1 : 0;
  if (text.size() > digits + 1 && text[digits] == '0' && text[digits + 1] >= '0' &&
      text[digits + 1] <= '9') {
    return false;  // 010 is eight to some readers and ten to others
  }
  const auto result = std::from_chars(text.data(), text.data() + text.size(), *out);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() && std::isfinite(*out);
}

bool InRange(double value, const NumberRange& range) {
  return (range.min_open ? value > range.min : value >= range.min) && value <= range.max;
}

/// The characters of IsName as the inside of a bracket of regular expressions.
const char* CharactersOf(NameKind kind) {
  switch (kind) {
    case NameKind::kPlain:
      return "A-Za-z0-9._/-";
    case NameKind::kPattern:
      return "A-Za-z0-9._/*?-";
    case NameKind::kVariant:
      return "A-Za-z0-9._/:=-";
  }
  return "";
}

Json SchemaOf(NameKind kind, const std::set<std::string>* known) {
  if (known != nullptr) return {{"enum", *known}};
  return {{"type", "string"}, {"pattern", StrCat("^[", CharactersOf(kind), "]{1,128}$")}};
}

Json SchemaOf(const char* type, const NumberRange& range) {
  return {{"type", type},
          {range.min_open ? "exclusiveMinimum" : "minimum", range.min},
          {"maximum", range.max}};
}

/// Rejects documents that could exhaust the parser, before it starts.
Status CheckSource(std::string_view source, const std::string& origin) {
  if (source.size() > kPolicyBytesMax) {
    return InvalidArgument(StrCat(origin, ":1: document: expected at most ", kPolicyBytesMax,
                                  " bytes, found ", source.size()));
  }
  int depth = 0, line = 1;
  for (const char c : source) {
    if (c == '\n') ++line;
    if (c == '\0') {
      return InvalidArgument(
          StrCat(origin, ":", line, ": document: expected text, found a zero byte"));
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') depth = std::max(0, depth - 1);
    if (depth > kPolicyDepthMax) {
      return InvalidArgument(StrCat(origin, ":", line, ": document: expected nesting of at most ",
                                    kPolicyDepthMax, ", found more"));
    }
  }
  return OkStatus();
}

/// Records where each document begins and ignores its content.
class DocumentStarts : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { marks_.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
  const std::vector<YAML::Mark>& marks() const { return marks_; }

 private:
  std::vector<YAML::Mark> marks_;
};

/// YAML::LoadAll never ends on a stray "," (yaml-cpp 0.7), because an empty document does not
/// advance the parser. So documents are counted first, up to two.
Status CheckOneDocument(const std::string& source, const std::string& origin) {
  std::istringstream stream(source);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.marks().size() < 2 && parser.HandleNextDocument(starts)) {
  }
  if (starts.marks().size() < 2) return OkStatus();
  return Wrong(origin, starts.marks()[1], "", "expected one document, found a second");
}

}  // namespace

StrictSection& StrictSection::Add(const std::string& key, Key added) {
  keys_.emplace(key, std::move(added));
  last_ = key;
  return *this;
}

StrictSection& StrictSection::Means(std::string meaning) {
  keys_.at(last_).meaning = std::move(meaning);
  return *this;
}

Json StrictSection::Schema() const {
  Json properties = Json::object();
  for (const auto& [name, key] : keys_) {
    Json& property = properties[name] = key.schema();
    if (!key.meaning.empty()) property["description"] = key.meaning;
    if (const Json value = key.value(); !property.contains("properties")) {
      property["default"] = value;
    }
  }
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", properties}};
}

Json StrictSection::Values() const {
  Json values = Json::object();
  for (const auto& [name, key] : keys_) values[name] = key.value();
  return values;
}

StrictSection& StrictSection::Number(const std::string& key, NumberRange range, double* out) {
  const auto read = [this_origin = origin_, range, out](const YAML::Node& value,
                                                        const std::string& path) {
    double number = 0;
    if (!ParseNumber(value, &number) || !InRange(number, range)) {
      return Wrong(this_origin, value.Mark(), path,
                   StrCat("expected ", Describe(range), ", found ", Shown(value)));
    }
    *out = number;
    return OkStatus();
  };
  return Add(key, {read, [range] { return SchemaOf("number", range); }, [out] { return *out; }});
}

StrictSection& StrictSection::Integer(const std::string& key, NumberRange range, int* out) {
  return AddInteger(
      key, range, [out](double number) { *out = static_cast<int>(number); },
      [out] { return *out; });
}

StrictSection& StrictSection::Count(const std::string& key, NumberRange range, uint64_t* out) {
  return AddInteger(
      key, range, [out](double number) { *out = static_cast<uint64_t>(number); },
      [out] { return *out; });
}

StrictSection& StrictSection::AddInteger(const std::string& key, NumberRange range,
                                         std::function<void(double)> set, Maker value) {
  const auto read = [this_origin = origin_, range, set = std::move(set)](const YAML::Node& value,
                                                                         const std::string& path) {
    double number = 0;
    if (!ParseNumber(value, &number) || !InRange(number, range) || number != std::floor(number)) {
      // All digits: the range of bytes would be shown with an exponent.
      return Wrong(this_origin, value.Mark(), path,
                   StrCat("expected an integer in [", static_cast<int64_t>(range.min), ", ",
                          static_cast<int64_t>(range.max), "], found ", Shown(value)));
    }
    set(number);
    return OkStatus();
  };
  return Add(key, {read, [range] { return SchemaOf("integer", range); }, std::move(value)});
}

StrictSection& StrictSection::Boolean(const std::string& key, bool* out) {
  const auto read = [this_origin = origin_, out](const YAML::Node& value, const std::string& path) {
    const std::string text = value.IsScalar() && value.Tag() == "?" ? value.Scalar() : "";
    if (text != "true" && text != "false") {
      return Wrong(this_origin, value.Mark(), path,
                   StrCat("expected true or false, found ", Shown(value)));
    }
    *out = text == "true";
    return OkStatus();
  };
  return Add(key, {read, [] { return Json{{"type", "boolean"}}; }, [out] { return *out; }});
}

StrictSection& StrictSection::Name(const std::string& key, NameKind kind, std::string* out,
                                   const std::set<std::string>* known) {
  const auto read = [this_origin = origin_, kind, out, known](const YAML::Node& value,
                                                              const std::string& path) {
    if (!value.IsScalar() || !IsName(value.Scalar(), kind)) {
      return Wrong(this_origin, value.Mark(), path,
                   StrCat("expected a name of letters, digits and . _ - /",
                          kind == NameKind::kVariant ? " : =" : "", ", found ", Shown(value)));
    }
    if (known != nullptr && !known->contains(value.Scalar())) {
      return Wrong(this_origin, value.Mark(), path, UnknownName(value.Scalar(), *known));
    }
    *out = value.Scalar();
    return OkStatus();
  };
  return Add(key, {read, [kind, known] { return SchemaOf(kind, known); }, [out] { return *out; }});
}

StrictSection& StrictSection::Names(const std::string& key, NameKind kind,
                                    std::vector<std::string>* out,
                                    const std::set<std::string>* known) {
  const auto read = [this_origin = origin_, kind, out, known](const YAML::Node& value,
                                                              const std::string& path) {
    const bool patterns = kind == NameKind::kPattern;
    const char* what = patterns ? "a list of patterns" : "a list of names";
    if (!value.IsSequence()) {
      return Wrong(this_origin, value.Mark(), path,
                   StrCat("expected ", what, ", found ", Shown(value)));
    }
    if (value.size() > kPolicyListMax || (patterns && value.size() == 0)) {
      return Wrong(this_origin, value.Mark(), path,
                   StrCat("expected ", what, " of ", patterns ? 1 : 0, " to ", kPolicyListMax,
                          " entries, found ", value.size()));
    }
    std::vector<std::string> names;
    for (const auto& entry : value) {
      if (!entry.IsScalar() || ExplicitTag(entry) || !IsName(entry.Scalar(), kind)) {
        return Wrong(this_origin, entry.Mark(), path,
                     StrCat("expected ", what, ", found the entry ", Shown(entry)));
      }
      if (std::find(names.begin(), names.end(), entry.Scalar()) != names.end()) {
        return Wrong(this_origin, entry.Mark(), path,
                     StrCat("expected each entry once, found ", Shown(entry), " again"));
      }
      if (known != nullptr && !known->contains(entry.Scalar())) {
        return Wrong(this_origin, entry.Mark(), path, UnknownName(entry.Scalar(), *known));
      }
      names.push_back(entry.Scalar());
    }
    *out = std::move(names);
    return OkStatus();
  };
  const auto schema = [kind, known] {
    return Json{{"type", "array"},
                {"items", SchemaOf(kind, known)},
                {"uniqueItems", true},
                {"minItems", kind == NameKind::kPattern ? 1 : 0},
                {"maxItems", kPolicyListMax}};
  };
  return Add(key, {read, schema, [out] { return *out; }});
}

StrictSection& StrictSection::Map(const std::string& key, NameKind kind,
                                  std::map<std::string, std::string>* out) {
  const auto read = [this_origin = origin_, kind, out](const YAML::Node& value,
                                                       const std::string& path) {
    if (!value.IsMap() || value.size() > kPolicyListMax) {
      return Wrong(
          this_origin, value.Mark(), path,
          StrCat("expected a section of at most ", kPolicyListMax, " keys, found ", Shown(value)));
    }
    std::map<std::string, std::string> entries;
    for (const auto& entry : value) {
      const bool names = entry.first.IsScalar() && entry.second.IsScalar() &&
                         !ExplicitTag(entry.first) && !ExplicitTag(entry.second) &&
                         IsName(entry.first.Scalar(), NameKind::kPlain) &&
                         IsName(entry.second.Scalar(), kind);
      if (!names || !entries.emplace(entry.first.Scalar(), entry.second.Scalar()).second) {
        return Wrong(this_origin, entry.first.Mark(), path,
                     StrCat("expected names, each key once, found ", Shown(entry.first), ": ",
                            Shown(entry.second)));
      }
    }
    *out = std::move(entries);
    return OkStatus();
  };
  const auto schema = [kind] {
    return Json{{"type", "object"},
                {"propertyNames", SchemaOf(NameKind::kPlain, nullptr)},
                {"additionalProperties", SchemaOf(kind, nullptr)},
                {"maxProperties", kPolicyListMax}};
  };
  return Add(key, {read, schema, [out] { return *out; }});
}

StrictSection& StrictSection::Section(const std::string& key, StrictSection section) {
  const auto read = [section](const YAML::Node& value, const std::string& path) {
    return section.Read(value, path);
  };
  return Add(
      key, {read, [section] { return section.Schema(); }, [section] { return section.Values(); }});
}

StrictSection& StrictSection::AddList(const std::string& key, List list) {
  const auto read = [this_origin = origin_, list](const YAML::Node& value,
                                                  const std::string& path) {
    if (!value.IsSequence() || value.size() > kPolicyListMax) {
      return Wrong(
          this_origin, value.Mark(), path,
          StrCat("expected a list of at most ", kPolicyListMax, " sections, found ", Shown(value)));
    }
    list.clear();
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string inner = StrCat(path, "[", i, "]");
      if (ExplicitTag(value[i])) {
        return Wrong(this_origin, value[i].Mark(), inner,
                     StrCat("expected no tag, found ", value[i].Tag().substr(0, 40)));
      }
      WEIR_RETURN_IF_ERROR(list.at(i).Read(value[i], inner));
    }
    return OkStatus();
  };
  const auto schema = [list] {
    return Json{{"type", "array"}, {"items", list.schema()}, {"maxItems", kPolicyListMax}};
  };
  const auto values = [list] {
    Json entries = Json::array();
    for (size_t i = 0; i < list.size(); ++i) entries.push_back(list.at(i).Values());
    return entries;
  };
  return Add(key, {read, schema, values});
}

StrictSection& StrictSection::NameOrSection(const std::string& key, std::string* name,
                                            StrictSection section,
                                            const std::set<std::string>* known) {
  const auto read = [this_origin = origin_, name, section](const YAML::Node& value,
                                                           const std::string& path) {
    if (value.IsMap()) return section.Read(value, path);
    if (!value.IsScalar() || !IsName(value.Scalar(), NameKind::kPlain)) {
      return Wrong(this_origin, value.Mark(), path,
                   StrCat("expected a name or a section, found ", Shown(value)));
    }
    *name = value.Scalar();
    return OkStatus();
  };
  const auto schema = [section, known] {
    return Json{{"oneOf", Json::array({SchemaOf(NameKind::kPlain, known), section.Schema()})}};
  };
  return Add(key, {read, schema, [section] { return section.Values(); }});
}

std::string StrictSection::KnownKeys() const {
  std::string keys;
  for (const auto& [key, entry] : keys_) keys += (keys.empty() ? "" : ", ") + key;
  return keys;
}

Status StrictSection::Read(const YAML::Node& node, const std::string& path) const {
  if (!node.IsMap()) {
    return Wrong(
        origin_, node.Mark(), path,
        StrCat("expected a section with keys out of ", KnownKeys(), ", found ", Shown(node)));
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) {
      return Wrong(origin_, entry.first.Mark(), path,
                   StrCat("expected a plain key, found ", Shown(entry.first)));
    }
    const std::string& key = entry.first.Scalar();
    const auto known = keys_.find(key);
    const std::string inner =
        StrCat(path, path.empty() ? "" : ".", known == keys_.end() ? "" : key);
    if (known == keys_.end()) {
      return Wrong(
          origin_, entry.first.Mark(), path.empty() ? key.substr(0, 40) : path,
          StrCat("expected one of ", KnownKeys(), ", found unknown key ", Shown(entry.first)));
    }
    if (!seen.insert(key).second) {
      return Wrong(origin_, entry.first.Mark(), inner, "expected once, found a second time");
    }
    if (ExplicitTag(entry.second)) {
      return Wrong(origin_, entry.second.Mark(), inner,
                   StrCat("expected no tag, found ", entry.second.Tag().substr(0, 40)));
    }
    WEIR_RETURN_IF_ERROR(known->second.read(entry.second, inner));
  }
  return OkStatus();
}

Status ReadStrictYaml(std::string_view source, const std::string& origin,
                      const StrictSection& section) {
  WEIR_RETURN_IF_ERROR(CheckSource(source, origin));
  try {
    WEIR_RETURN_IF_ERROR(CheckOneDocument(std::string(source), origin));
    const YAML::Node document = YAML::Load(std::string(source));
    if (!document.IsDefined() || document.IsNull()) {
      return InvalidArgument(StrCat(origin, ":1: document: expected a section, found nothing"));
    }
    return section.Read(document, "");
  } catch (const YAML::Exception& error) {
    return Wrong(origin, error.mark, "", StrCat("expected YAML or JSON, found: ", error.msg));
  } catch (const std::exception& error) {
    return InvalidArgument(
        StrCat(origin, ":?: document: expected YAML or JSON, found: ", error.what()));
  }
}

}  // namespace weir
