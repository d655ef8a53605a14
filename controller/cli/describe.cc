// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/describe.h"

#include <algorithm>
#include <cctype>

#include "controller/cli/render.h"
#include "controller/messages/mapping.h"

namespace weir::cli {
namespace {

using google::protobuf::FieldDescriptor;
using ProtoMessage = google::protobuf::Message;

constexpr int kRowsMax = 32;
constexpr size_t kShownBytesMax = 2000, kLineMax = 160, kColumn = 24;

// The unit that the name of a field stands for. The first entry that fits counts.
struct Suffix {
  std::string_view text;
  std::string (*format)(double);
};
constexpr Suffix kSuffixes[] = {{"_bytes_per_s", BandwidthText}, {"_s", SecondsText},
                                {"_bytes", BytesText},           {"bytes_sent", BytesText},
                                {"promised", PercentText},       {"promised_min", PercentText},
                                {"probability", PercentText},    {"probability_min", PercentText}};

std::string (*FormatOf(const FieldDescriptor& field))(double) {
  for (const Suffix& suffix : kSuffixes) {
    if (std::string_view(field.name()).ends_with(suffix.text)) return suffix.format;
  }
  return NumberText;
}

bool IsTime(const FieldDescriptor& field) {
  return std::string_view(field.name()).ends_with("unix_s");
}

// "active_plan" -> "Active plan"; units are with the values. "step_s" beside "step" keeps its
// "time".
std::string NameOf(const FieldDescriptor& field) {
  std::string name = field.name();
  for (const std::string_view unit : {"_bytes_per_s", "_unix_s", "_s", "_bytes"}) {
    if (!name.ends_with(unit)) continue;
    const std::string bare = name.substr(0, name.size() - unit.size());
    const bool taken = field.containing_type()->FindFieldByName(bare) != nullptr;
    name = taken ? bare + "_time" : bare;
    break;
  }
  std::replace(name.begin(), name.end(), '_', ' ');
  if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') name[0] = static_cast<char>(name[0] - 32);
  return name;
}

std::string EstimateLine(const v1::Estimate& e, std::string (*format)(double)) {
  std::string text = WithDeviation(format(e.value()), e.value(), e.deviation());
  if (!e.method().empty()) text += ", " + e.method();
  if (e.samples() > 0) text += StrCat(", ", e.samples(), " samples");
  return text + StrCat(", ", AgeText(e.age_s()), " old");
}

class Describer {
 public:
  explicit Describer(double now_unix_s) : now_unix_s_(now_unix_s) {}

  void Fields(const ProtoMessage& message, int depth) {
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    // One-liners first, then what takes lines of its own.
    for (const bool nested : {false, true}) {
      for (const FieldDescriptor* field : fields) {
        if (TakesLines(message, *field) == nested) Field(message, *field, depth);
      }
    }
  }
  std::string Take() { return std::move(text_); }

 private:
  static bool IsMessage(const FieldDescriptor& field) {
    return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  }
  static bool InOneLine(const ProtoMessage& part) {
    return part.GetDescriptor() == v1::Estimate::descriptor() ||
           part.GetDescriptor() == v1::Choice::descriptor() ||
           part.GetDescriptor() == v1::Sync::descriptor();
  }
  static bool TakesLines(const ProtoMessage& message, const FieldDescriptor& field) {
    if (!IsMessage(field)) return false;
    return field.is_repeated() || !InOneLine(message.GetReflection()->GetMessage(message, &field));
  }

  // One value, also of a repeated field; "" where it holds nothing.
  std::string Value(const ProtoMessage& message, const FieldDescriptor& field, int index) const {
    const auto* reflection = message.GetReflection();
    const bool many = index >= 0;
    const auto number = [&](double value) {
      if (value == 0 && !many) return std::string();
      return IsTime(field) ? StrCat(TimeText(value), " (", Since(value, now_unix_s_), " ago)")
                           : FormatOf(field)(value);
    };
    const auto whole = [&](auto value) {
      return FormatOf(field) == NumberText ? std::to_string(value)
                                           : FormatOf(field)(static_cast<double>(value));
    };
#define WEIR_VALUE(Kind)                                        \
  (many ? reflection->GetRepeated##Kind(message, &field, index) \
        : reflection->Get##Kind(message, &field))
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return Shown(field, WEIR_VALUE(String));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return number(WEIR_VALUE(Double));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return number(WEIR_VALUE(Float));
      case FieldDescriptor::CPPTYPE_INT32:
        return whole(WEIR_VALUE(Int32));
      case FieldDescriptor::CPPTYPE_INT64:
        return whole(WEIR_VALUE(Int64));
      case FieldDescriptor::CPPTYPE_UINT32:
        return whole(WEIR_VALUE(UInt32));
      case FieldDescriptor::CPPTYPE_UINT64:
        return whole(WEIR_VALUE(UInt64));
      case FieldDescriptor::CPPTYPE_BOOL:
        return WEIR_VALUE(Bool) ? "yes" : "no";
      case FieldDescriptor::CPPTYPE_ENUM:
        return EnumText(*WEIR_VALUE(Enum));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return MessageText(field, WEIR_VALUE(Message));
    }
#undef WEIR_VALUE
    return "";
  }

  static std::string Shown(const FieldDescriptor& field, const std::string& text) {
    if (field.type() == FieldDescriptor::TYPE_BYTES || text.size() > kShownBytesMax) {
      return StrCat("(", BytesText(static_cast<double>(text.size())), "; -o json shows it)");
    }
    return field.name() == "codec" ? CodecText(text) : text;
  }

  // "DECISION_RULE_BETTER" -> "better".
  static std::string EnumText(const google::protobuf::EnumValueDescriptor& value) {
    std::string prefix;
    for (const char c : value.type()->name()) {
      if (c >= 'A' && c <= 'Z' && !prefix.empty()) prefix += '_';
      prefix += static_cast<char>(std::toupper(c));
    }
    std::string name = value.name();
    if (name.starts_with(prefix + "_")) name.erase(0, prefix.size() + 1);
    for (char& c : name) c = c == '_' ? ' ' : static_cast<char>(std::tolower(c));
    return name;
  }

  std::string MessageText(const FieldDescriptor& field, const ProtoMessage& part) const {
    if (part.GetDescriptor() == v1::Estimate::descriptor()) {
      return EstimateLine(static_cast<const v1::Estimate&>(part), FormatOf(field));
    }
    if (part.GetDescriptor() == v1::Choice::descriptor()) {
      const auto& choice = static_cast<const v1::Choice&>(part);
      return choice.codec().empty() ? "dense" : ChoiceLabel(ToModel(choice));
    }
    if (part.GetDescriptor() == v1::Sync::descriptor()) {
      const std::string text = SyncText(ToModel(static_cast<const v1::Sync&>(part)));
      return text.empty() ? "every step" : text;
    }
    return "";
  }

  void Field(const ProtoMessage& message, const FieldDescriptor& field, int depth) {
    const auto* reflection = message.GetReflection();
    const std::string indent(static_cast<size_t>(2 * depth), ' ');
    if (!TakesLines(message, field)) {
      std::string value;
      const int count = field.is_repeated() ? reflection->FieldSize(message, &field) : 0;
      for (int i = 0; i < std::min(count, kRowsMax); ++i) {
        value += (i == 0 ? "" : ", ") + Value(message, field, i);
      }
      if (count > kRowsMax) value += StrCat(", and ", count - kRowsMax, " more");
      if (!field.is_repeated()) value = Value(message, field, -1);
      return Line(indent, NameOf(field), value);
    }
    if (!field.is_repeated()) {
      text_ += StrCat(indent, NameOf(field), ":\n");
      return Fields(reflection->GetMessage(message, &field), depth + 1);
    }
    text_ += StrCat(indent, NameOf(field), ":\n");
    Rows(message, field, indent + "  ");
  }

  // Lines of a longer text go below the name, further in.
  void Line(const std::string& indent, const std::string& name, const std::string& value) {
    if (value.empty()) return;
    if (value.find('\n') == std::string::npos) {
      const size_t width = indent.size() + name.size() + 1;
      text_ += StrCat(indent, name, ":", std::string(width < kColumn ? kColumn - width : 1, ' '),
                      value, "\n");
      return;
    }
    text_ += StrCat(indent, name, ":\n");
    for (size_t begin = 0; begin < value.size();) {
      const size_t end = std::min(value.find('\n', begin), value.size());
      text_ += StrCat(indent, "  ", value.substr(begin, end - begin), "\n");
      begin = end + 1;
    }
  }

  // A table of what repeats: columns are the fields that any of the rows has.
  void Rows(const ProtoMessage& message, const FieldDescriptor& field, const std::string& indent) {
    const auto* reflection = message.GetReflection();
    const int count = reflection->FieldSize(message, &field);
    const int shown = std::min(count, kRowsMax);
    std::vector<const FieldDescriptor*> columns;
    for (int c = 0; c < field.message_type()->field_count(); ++c) {
      const FieldDescriptor* column = field.message_type()->field(c);
      const auto has = [&](int i) {
        const ProtoMessage& row = reflection->GetRepeatedMessage(message, &field, i);
        return column->is_repeated() ? row.GetReflection()->FieldSize(row, column) > 0
                                     : !Cell(row, *column).empty();
      };
      bool any = false;
      for (int i = 0; i < shown && !any; ++i) any = has(i);
      if (any) columns.push_back(column);
    }
    Table table;
    for (const FieldDescriptor* column : columns) {
      std::string name = NameOf(*column);
      for (char& c : name) c = c == ' ' ? '-' : static_cast<char>(std::toupper(c));
      table.header.push_back(name);
    }
    for (int i = 0; i < shown; ++i) {
      const ProtoMessage& row = reflection->GetRepeatedMessage(message, &field, i);
      table.rows.emplace_back();
      for (const FieldDescriptor* column : columns) {
        const std::string cell = Cell(row, *column);
        table.rows.back().push_back(cell.empty() ? "-" : cell);
      }
    }
    const std::string lines = Render(table);
    for (size_t begin = 0; begin < lines.size();) {
      const size_t end = std::min(lines.find('\n', begin), lines.size());
      text_ += StrCat(indent, lines.substr(begin, end - begin), "\n");
      begin = end + 1;
    }
    if (count > shown) text_ += StrCat(indent, "and ", count - shown, " more (-o json)\n");
  }

  std::string Cell(const ProtoMessage& row, const FieldDescriptor& column) const {
    if (column.is_repeated()) {
      const int size = row.GetReflection()->FieldSize(row, &column);
      if (IsMessage(column) || size > 8) return size == 0 ? "" : std::to_string(size);
      std::string text;
      for (int i = 0; i < size; ++i) text += (i == 0 ? "" : ",") + Value(row, column, i);
      return text;
    }
    if (IsMessage(column) && !row.GetReflection()->HasField(row, &column)) return "";
    std::string text = Value(row, column, -1);
    if (text.size() > kLineMax) text = text.substr(0, kLineMax) + "...";
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  const double now_unix_s_;
  std::string text_;
};

}  // namespace

std::string DescriptionOf(const ProtoMessage& message, double now_unix_s) {
  Describer describer(now_unix_s);
  describer.Fields(message, 0);
  return describer.Take();
}

}  // namespace weir::cli
