// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named controllers, so that nobody repeats addresses and certificates: weirctl context.

#include <map>
#include <string>

#include "datapath/base/status.h"

namespace weir::cli {

/// How one controller is reached. Values are those of the flags of the same names: "controller",
/// "ca", "cert", "key", "token-file". Tokens themselves are never kept here.
using Context = std::map<std::string, std::string>;

struct Contexts {
  std::string current;  // empty: none
  std::map<std::string, Context> by_name;
};

/// Reads the contexts that a person keeps, in YAML; returns none where there is no such file.
/// kInvalidArgument: the file does not hold contexts, with its path and line; a key that is no flag
/// is one, too.
StatusOr<Contexts> ReadContexts(const std::string& path);

/// Replaces the file at once, readable by its owner only; makes its directory. kUnavailable: it
/// cannot be written.
Status WriteContexts(const std::string& path, const Contexts& contexts);

/// The context of that name; `name` empty: the current one, or an empty context without any.
/// kNotFound lists the names.
StatusOr<Context> FindContext(const Contexts& contexts, const std::string& name);

}  // namespace weir::cli
