// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/definition.h"

namespace weir::program {

ValueType TypeOf(const CLI::Option& option) {
  ValueType type;
  if (!TakesValue(option)) return type;
  const std::string text = option.get_type_name();
  const size_t colon = text.find(':');
  type.name = CLI::detail::to_lower(text.substr(0, colon));
  if (colon == std::string::npos) return type;
  const std::string check = text.substr(colon + 1);
  if (check.size() > 2 && check.front() == '{' && check.back() == '}') {
    type.allowed = CLI::detail::split(check.substr(1, check.size() - 2), ',');
  } else if (const size_t in = check.find(" in ["); in != std::string::npos) {
    type.bounds = check.substr(in + 4);
  }
  return type;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::string NameOf(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  if (!option.get_snames().empty()) return "-" + option.get_snames().front();
  return option.get_name(/*positional=*/true);
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) {
    return option->nonpositional() && !option->get_group().empty();
  });
}

std::vector<const CLI::Option*> PositionalsOf(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->nonpositional(); });
}

std::vector<const CLI::App*> SubcommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) {
    return !command->get_name().empty() && !command->get_group().empty();
  });
}

}  // namespace weir::program
