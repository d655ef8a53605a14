// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers in the canonical text of a plan.

#include <charconv>
#include <string>

namespace weir {

/// The shortest decimal that reads back as the same double, so that the text is the same on every
/// machine.
inline std::string CanonicalNumber(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return std::string(text, result.ptr);
}

}  // namespace weir
