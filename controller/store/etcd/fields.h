// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values and keys in etcd. A value is a list of texts, each behind its length; a long one is
// compressed. In keys, names are escaped, so that no name of a job reaches into another part.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// `fields` in one value. At most 2^32 - 1 bytes each.
std::string JoinFields(const std::vector<std::string_view>& fields);
/// The fields of a value. A value with more than `count` was written by a newer release; the others
/// are left out. kDataLoss: fewer, or not a value of JoinFields.
StatusOr<std::vector<std::string>> SplitFields(std::string_view value, size_t count);

/// A name as a part of a key: without '/' and control characters, and in the same order where names
/// have none.
std::string KeyPart(std::string_view name);
/// A number as a part of a key, in order.
std::string KeyPart(uint64_t number);
/// The last part of a key, as KeyPart wrote it.
StatusOr<std::string> LastKeyPart(std::string_view key);

/// As texts that keep the whole number.
std::string FieldText(double number);
double NumberOf(std::string_view text);
uint64_t CountOf(std::string_view text);

}  // namespace weir
