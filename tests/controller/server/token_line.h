// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines of a token file.

#include <cstdio>
#include <string>

#include "controller/server/auth/principals.h"

namespace weir {

inline std::string TokenLine(const std::string& name, const std::string& roles,
                             const std::string& token, const std::string& more = "") {
  std::string line = name + " " + roles + " sha256:";
  for (const unsigned char byte : HashOf(token)) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    line += digits;
  }
  return line + " " + more + "\n";
}

}  // namespace weir
