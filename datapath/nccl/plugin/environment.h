// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL's variables from a file, for jobs whose environment cannot be changed variable by variable.

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir::nccl::plugin {

inline constexpr size_t kEnvironmentBytesMax = 64 << 10;

/// Parses lines NAME=VALUE, where names begin with NCCL_; empty lines and lines that begin with #
/// are skipped. kInvalidArgument names the line. A later line replaces an earlier one.
StatusOr<std::map<std::string, std::string, std::less<>>> ParseEnvironment(std::string_view text);

}  // namespace weir::nccl::plugin
