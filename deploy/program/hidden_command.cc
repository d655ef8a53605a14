// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/hidden_command.h"

#include <cstdio>

namespace weir {

std::optional<int> AnswerHiddenCommand(const CLI::App& app, const ProgramPage& page, int argc,
                                       const char* const* argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "__man" && argc == 3) {
    std::fputs(ManPage(app, page, argv[2]).c_str(), stdout);
  } else if (command == "__completion" && argc == 3) {
    const std::string script = CompletionScript(page.name, argv[2]);
    if (script.empty()) {
      std::fprintf(stderr, "%s: unknown shell '%s'; valid: bash, zsh, fish\n", page.name.c_str(),
                   argv[2]);
      return 2;
    }
    std::fputs(script.c_str(), stdout);
  } else if (command == "__complete") {
    const std::vector<std::string> words(argv + 2, argv + argc);
    for (const std::string& line : CandidatesFor(app, page, words)) std::puts(line.c_str());
  } else {
    return std::nullopt;
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace weir
