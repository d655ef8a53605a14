// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bearer tokens in files.

#include <string>

#include "datapath/base/status.h"

namespace weir {

/// The first word of the file, which must be a token of 16 to 512 visible characters.
/// kInvalidArgument names the file and what was found.
StatusOr<std::string> ReadTokenFile(const std::string& path);

}  // namespace weir
