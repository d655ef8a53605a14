// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/environment.h"

namespace weir::nccl::plugin {

StatusOr<std::map<std::string, std::string, std::less<>>> ParseEnvironment(std::string_view text) {
  std::map<std::string, std::string, std::less<>> variables;
  if (text.size() > kEnvironmentBytesMax) {
    return InvalidArgument(
        StrCat("expected at most ", kEnvironmentBytesMax, " bytes, found ", text.size()));
  }
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || line.substr(0, 5) != "NCCL_" ||
        line.find('\0') != std::string_view::npos) {
      return InvalidArgument(StrCat("line ", number, ": expected NCCL_NAME=VALUE"));
    }
    variables.insert_or_assign(std::string(line.substr(0, equals)),
                               std::string(line.substr(equals + 1)));
  }
  return variables;
}

}  // namespace weir::nccl::plugin
