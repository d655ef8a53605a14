// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/api_comments.h"

#include <google/protobuf/descriptor.pb.h>

#include <memory>

#include "datapath/base/check.h"

namespace weir {
namespace {

using google::protobuf::DescriptorPool;

// Built once and never destroyed: its descriptors are used until the process ends.
const DescriptorPool& Pool() {
  static const DescriptorPool* const pool = [] {
    auto* made = new DescriptorPool;
    google::protobuf::FileDescriptorSet files;
    const auto bytes = ProtoFiles();
    WEIR_CHECK(files.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
    for (const auto& file : files.file()) WEIR_CHECK(made->BuildFile(file) != nullptr);
    return made;
  }();
  return *pool;
}

std::string OneLine(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n';
    if (space && (line.empty() || line.back() == ' ')) continue;
    line += space ? ' ' : c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

template <typename Found>
std::string CommentAt(const Found* found) {
  google::protobuf::SourceLocation place;
  if (found == nullptr || !found->GetSourceLocation(&place)) return "";
  const std::string before = OneLine(place.leading_comments);
  const std::string after = OneLine(place.trailing_comments);
  if (before.empty() || after.empty()) return before + after;
  return after + (after.back() == '.' ? " " : ". ") + before;
}

}  // namespace

std::string CommentOf(const google::protobuf::Descriptor* message) {
  return CommentAt(Pool().FindMessageTypeByName(message->full_name()));
}

std::string CommentOf(const google::protobuf::FieldDescriptor* field) {
  return CommentAt(Pool().FindFieldByName(field->full_name()));
}

std::string CommentOf(const google::protobuf::EnumValueDescriptor* value) {
  return CommentAt(Pool().FindEnumValueByName(value->full_name()));
}

std::vector<std::string> ListedValues(const std::string& comment) {
  std::vector<std::string> values;
  size_t at = 0;
  while (at < comment.size() && comment[at] == '"') {
    const size_t end = comment.find('"', at + 1);
    if (end == std::string::npos) return {};
    values.push_back(comment.substr(at + 1, end - at - 1));
    if (values.back().empty() ||
        values.back().find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") !=
            std::string::npos) {
      return {};
    }
    at = end + 1;
    for (const char* const separator : {", ", " or "}) {
      if (comment.compare(at, std::string(separator).size(), separator) != 0) continue;
      at += std::string(separator).size();
      break;
    }
  }
  const bool ends =
      at == comment.size() || comment[at] == ';' || comment[at] == '.' || comment[at] == ':';
  return ends && values.size() >= 2 ? values : std::vector<std::string>{};
}

}  // namespace weir
