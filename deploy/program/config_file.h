// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flags in a file.

#include <CLI/CLI.hpp>

namespace weir {

/// Adds --config FILE: lines `KEY = VALUE` whose keys are the names of the flags, values as in
/// TOML. The command line is stronger. An unknown key, an unfit value and a missing file are errors
/// of the parser. To be called after all flags are defined.
inline void AddConfigFile(CLI::App& app) {
  app.set_config("--config", "",
                 "file of lines KEY = VALUE, the same keys as these flags, which are stronger")
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace weir
