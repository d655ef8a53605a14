// SPDX-License-Identifier: Apache-2.0
#pragma once
// Man page and shell completion of a program, made from the definition of its flags, so that
// neither can differ from what the program accepts.

#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weir {

/// Options and positional arguments before the word being completed: "--job" or "kind" -> value.
using GivenValues = std::map<std::string, std::string>;

/// Values that only the program knows, such as the nodes of its controller. `command` is the
/// subcommand ("get", empty at the top), `name` the option ("--job") or positional ("name"). It
/// must return soon, because a user waits at a prompt, and must print nothing.
using ValueSource = std::function<std::vector<std::string>(
    const std::string& command, const std::string& name, const GivenValues& given)>;

struct ProgramPage {
  std::string name;                   // "weirctl"
  std::vector<std::string> see_also;  // other pages: "weir-agent 1"
  ValueSource values;                 // may be empty
};

/// Executes, on standard output, the commands for packagers and shells that --help does not show:
///   __man DATE          the page in mdoc(7); DATE is printed as given ("January 31, 2026")
///   __completion SHELL  the script for bash, zsh or fish
///   __complete WORD...  candidates for the last WORD, as CandidatesFor gives them
/// Returns the exit status, or nothing when `argv` is an ordinary command line. To be called after
/// all flags are defined and before they are parsed; it parses nothing itself.
std::optional<int> AnswerHiddenCommand(const CLI::App& app, const ProgramPage& page, int argc,
                                       const char* const* argv);

/// The page in mdoc(7): every option and subcommand with default, environment and values. A footer
/// of the form "title:\n  term  text..." becomes a section of that title.
std::string ManPage(const CLI::App& app, const ProgramPage& page, const std::string& date);

/// A script that asks the program for candidates through __complete. Empty for an unknown shell.
std::string CompletionScript(const std::string& program, const std::string& shell);

/// Lines "candidate\tdescription" for the last of `words` (which follow the program's name; the
/// last may be empty), then one line for other values that are possible there: ":file",
/// ":directory" or ":none". There are no candidates after words that the program would reject.
/// Source: CLI11's order of lookup (options of the subcommand, then by fallthrough those of its
/// parents).
std::vector<std::string> CandidatesFor(const CLI::App& app, const ProgramPage& page,
                                       const std::vector<std::string>& words);

}  // namespace weir
