// SPDX-License-Identifier: Apache-2.0
#pragma once
// The comments of proto/ about messages and fields: the one place that describes the API
// is also what /openapi.json shows. The build embeds the files with their comments, because
// generated code has none.

#include <google/protobuf/descriptor.h>

#include <span>
#include <string>
#include <vector>

namespace weir {

/// The files of proto/weir/v1 as a serialised google.protobuf.FileDescriptorSet with comments.
std::span<const unsigned char> ProtoFiles();

/// The comment of a message, a field or a value of an enumeration, on one line: the one before it,
/// and the one after it on its line. Empty: there is none. Thread-safe. The pointers may be of the
/// generated code's own pool.
std::string CommentOf(const google::protobuf::Descriptor* message);
std::string CommentOf(const google::protobuf::FieldDescriptor* field);
std::string CommentOf(const google::protobuf::EnumValueDescriptor* value);

/// The values that a comment lists at its beginning: `"a", "b" or "c"`, followed by its end or by
/// ';', '.' or ':'. Empty where it begins otherwise.
std::vector<std::string> ListedValues(const std::string& comment);

}  // namespace weir
