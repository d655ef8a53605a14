// SPDX-License-Identifier: Apache-2.0
#include "controller/job/bounds.h"

#include <algorithm>
#include <cmath>

namespace weir {

double Finite(double value) { return std::isfinite(value) ? value : 0; }

Status CheckName(std::string_view what, std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax) {
    return InvalidArgument(
        StrCat(what, " has ", name.size(), " bytes, expected 1 to ", kNameBytesMax));
  }
  if (std::any_of(name.begin(), name.end(),
                  [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return InvalidArgument(StrCat(what, " holds a control character"));
  }
  return OkStatus();
}

}  // namespace weir
