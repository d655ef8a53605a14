// SPDX-License-Identifier: Apache-2.0
#pragma once
// A view of CLI11's objects that man page and completion share.

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace weir::program {

/// CLI11 keeps an option's type and the descriptions of its validators in one string: "TEXT:{a,b}"
/// or "FLOAT:FLOAT in [0 - 1]".
struct ValueType {
  std::string name;                  // "text"; empty for a flag
  std::vector<std::string> allowed;  // "a", "b"; empty: any
  std::string bounds;                // "[0 - 1]" or empty
};

ValueType TypeOf(const CLI::Option& option);

bool TakesValue(const CLI::Option& option);
/// "--job", "-f" for an option with a short name only; a positional's name without dashes.
std::string NameOf(const CLI::Option& option);

/// The options in the order of definition. Hidden ones (without a group) are left out.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& app);
std::vector<const CLI::Option*> PositionalsOf(const CLI::App& app);
std::vector<const CLI::App*> SubcommandsOf(const CLI::App& app);

}  // namespace weir::program
