// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/token_file.h"

#include <algorithm>
#include <fstream>

namespace weir {

StatusOr<std::string> ReadTokenFile(const std::string& path) {
  constexpr size_t kTokenMin = 16, kTokenMax = 512;
  std::ifstream file(path);
  std::string token;
  if (!file || !(file >> token)) return InvalidArgument(StrCat("no token in ", path));
  const bool visible = std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; });
  if (!visible || token.size() < kTokenMin || token.size() > kTokenMax) {
    return InvalidArgument(StrCat("expected a token of ", kTokenMin, " to ", kTokenMax,
                                  " visible characters in ", path, ", found ", token.size(),
                                  visible ? "" : " bytes, not all of them visible characters"));
  }
  return token;
}

}  // namespace weir
