// SPDX-License-Identifier: Apache-2.0
// Finds the words that may be at the cursor, by following the definition along the words before it.

#include <set>

#include "deploy/program/definition.h"
#include "deploy/program/hidden_command.h"

namespace weir {
namespace {

using namespace program;

// The place in the definition to which the words before the cursor lead.
struct Cursor {
  const CLI::App* command = nullptr;
  const CLI::Option* pending = nullptr;  // an option whose value comes next
  size_t positionals = 0;
  bool options_ended = false;  // after "--"
  bool lost = false;           // a word that the program would reject
  GivenValues given;
};

// Calls visit(option) for the options that `command` accepts until it returns true.
template <typename Visit>
const CLI::Option* Visible(const CLI::App* command, Visit visit) {
  for (; command != nullptr;
       command = command->get_fallthrough() ? command->get_parent() : nullptr) {
    for (const CLI::Option* option : OptionsOf(*command)) {
      if (visit(option)) return option;
    }
  }
  return nullptr;
}

const CLI::Option* FindOption(const CLI::App* command, const std::string& name) {
  return Visible(command, [&](const CLI::Option* option) {
    return name.rfind("--", 0) == 0 ? option->check_lname(name.substr(2))
                                    : option->check_sname(name.substr(1));
  });
}

void StepOverOption(Cursor& cursor, const std::string& word) {
  const bool is_long = word.rfind("--", 0) == 0;
  const size_t end = is_long ? word.find('=') : 2;
  const CLI::Option* option = FindOption(cursor.command, word.substr(0, end));
  if (option == nullptr) {
    cursor.lost = true;
    return;
  }
  const bool attached = end < word.size();
  if (!TakesValue(*option)) {
    cursor.given[NameOf(*option)] = "true";
  } else if (attached) {
    cursor.given[NameOf(*option)] = word.substr(is_long ? end + 1 : end);
  } else {
    cursor.pending = option;
  }
}

void StepOver(Cursor& cursor, const std::string& word) {
  if (cursor.pending != nullptr) {
    cursor.given[NameOf(*cursor.pending)] = word;
    cursor.pending = nullptr;
    return;
  }
  if (!cursor.options_ended && word == "--") {
    cursor.options_ended = true;
    return;
  }
  if (!cursor.options_ended && word.size() > 1 && word[0] == '-') {
    StepOverOption(cursor, word);
    return;
  }
  for (const CLI::App* command : SubcommandsOf(*cursor.command)) {
    if (command->check_name(word)) {
      cursor.command = command;
      cursor.positionals = 0;
      return;
    }
  }
  const auto positionals = PositionalsOf(*cursor.command);
  if (cursor.positionals >= positionals.size()) {
    cursor.lost = true;
    return;
  }
  cursor.given[NameOf(*positionals[cursor.positionals++])] = word;
}

class Candidates {
 public:
  Candidates(const ProgramPage& page, std::string prefix)
      : page_(page), prefix_(std::move(prefix)) {}

  void Offer(const std::string& word, const std::string& description) {
    if (word.rfind(prefix_, 0) != 0 || word.find_first_of("\t\n") != std::string::npos) return;
    lines_.push_back(word + "\t" + description.substr(0, description.find('\n')));
  }
  // The values of an option or positional; `before` is what precedes them in the word.
  void OfferValues(const CLI::Option& option, const Cursor& cursor, const std::string& before) {
    const ValueType type = TypeOf(option);
    if (type.name == "file") directive_ = ":file";
    if (type.name == "directory") directive_ = ":directory";
    for (const std::string& value : type.allowed) Offer(before + value, "");
    if (!type.allowed.empty() || page_.values == nullptr) return;
    const std::string command =
        cursor.command->get_parent() == nullptr ? "" : cursor.command->get_name();
    for (const auto& value : page_.values(command, NameOf(option), cursor.given)) {
      Offer(before + value, "");
    }
  }
  void OfferOptions(const Cursor& cursor) {
    std::set<std::string> seen;  // --help is there once a command
    Visible(cursor.command, [&](const CLI::Option* option) {
      const std::string name = NameOf(*option);
      if (cursor.given.count(name) == 0 && seen.insert(name).second) {
        Offer(name, option->get_description());
      }
      return false;
    });
  }
  std::vector<std::string> Finish() && {
    lines_.push_back(directive_);
    return std::move(lines_);
  }

 private:
  const ProgramPage& page_;
  std::string prefix_;
  std::string directive_ = ":none";
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> CandidatesFor(const CLI::App& app, const ProgramPage& page,
                                       const std::vector<std::string>& words) {
  Cursor cursor;
  cursor.command = &app;
  const std::string last = words.empty() ? "" : words.back();
  for (size_t i = 0; i + 1 < words.size() && !cursor.lost; ++i) StepOver(cursor, words[i]);
  Candidates found(page, last);
  if (cursor.lost) return std::move(found).Finish();
  if (cursor.pending != nullptr) {
    found.OfferValues(*cursor.pending, cursor, "");
    return std::move(found).Finish();
  }
  const bool option = !cursor.options_ended && !last.empty() && last[0] == '-';
  if (const size_t equals = last.find('='); option && equals != std::string::npos) {
    const CLI::Option* named = FindOption(cursor.command, last.substr(0, equals));
    if (named != nullptr && TakesValue(*named)) {
      found.OfferValues(*named, cursor, last.substr(0, equals + 1));
    }
    return std::move(found).Finish();
  }
  if (option) {
    found.OfferOptions(cursor);
    return std::move(found).Finish();
  }
  const auto commands = SubcommandsOf(*cursor.command);
  for (const CLI::App* command : commands) {
    found.Offer(command->get_name(), command->get_description());
  }
  const auto positionals = PositionalsOf(*cursor.command);
  if (cursor.positionals < positionals.size()) {
    found.OfferValues(*positionals[cursor.positionals], cursor, "");
  } else if (commands.empty() && last.empty()) {
    found.OfferOptions(cursor);  // nothing else can follow
  }
  return std::move(found).Finish();
}

}  // namespace weir
