// SPDX-License-Identifier: Apache-2.0
// Writes mdoc(7). Text has its own lines and is never a macro's argument, where "Op" or "No" would
// be read as macros. Names and types are the exception; ZeroWidth quotes them.

#include <cctype>

#include "deploy/program/definition.h"
#include "deploy/program/hidden_command.h"

namespace weir {
namespace {

using namespace program;

// Makes a text line: backslashes are escaped, and no line becomes a control line.
std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\\' ? "\\e" : std::string(1, c);
  if (!out.empty() && (out[0] == '.' || out[0] == '\'')) out = "\\&" + out;
  return out;
}

// A macro's argument, taken literally.
std::string ZeroWidth(const std::string& word) {
  return std::isalpha(static_cast<unsigned char>(word[0])) && word.size() <= 3 ? "\\&" + word
                                                                               : Escaped(word);
}

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Puts each sentence on a line of its own, with a capital first and a full stop last.
std::string Paragraph(std::string text) {
  if (text.empty()) return "";
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  for (char& c : text) c = c == '\n' ? ' ' : c;
  std::string out;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t stop = text.find(". ", begin);
    stop = stop == std::string::npos ? text.size() : stop + 1;
    out += Escaped(text.substr(begin, stop - begin)) + "\n";
    begin = stop + 1;
  }
  if (text.back() != '.') out.insert(out.size() - 1, ".");
  return out;
}

// " Ar text", or nothing for a flag.
std::string ValueMacro(const CLI::Option& option) {
  const std::string name = TypeOf(option).name;
  return name.empty() ? "" : " Ar " + ZeroWidth(name);
}

std::string FlagMacros(const CLI::Option& option) {
  std::string out;
  for (const std::string& name : option.get_snames()) {
    out += (out.empty() ? "" : " , ") + ("Fl " + name + ValueMacro(option));
  }
  for (const std::string& name : option.get_lnames()) {
    out += (out.empty() ? "" : " , ") + ("Fl -" + name + ValueMacro(option));
  }
  return out;
}

std::string Listed(const CLI::Option& option) {
  const bool positional = !option.nonpositional();
  std::string out = ".It " + (positional ? "Ar " + ZeroWidth(NameOf(option)) : FlagMacros(option));
  out += "\n" + Paragraph(option.get_description());
  const ValueType type = TypeOf(option);
  std::string values;
  for (const std::string& value : type.allowed) values += (values.empty() ? "" : ", ") + value;
  if (!values.empty()) out += Paragraph("One of " + values);
  if (!type.bounds.empty()) out += Paragraph("Within " + type.bounds);
  if (option.get_required() && !positional) out += "Required.\n";
  const std::string fallback = option.get_default_str();
  if (TakesValue(option) && !fallback.empty()) out += Paragraph("Default: " + fallback);
  if (!option.get_envname().empty()) {
    out += "Environment:\n.Ev " + option.get_envname() + " .\n";
  }
  return out;
}

std::string ListOf(const std::vector<const CLI::Option*>& options) {
  std::string out;
  for (const CLI::Option* option : options) out += Listed(*option);
  return out.empty() ? "" : ".Bl -tag -width Ds\n" + out + ".El\n";
}

bool IsHelp(const CLI::Option* option) { return NameOf(*option) == "--help"; }

std::string CommandSection(const CLI::App& command) {
  std::string usage, out = ".Ss " + ZeroWidth(command.get_name()) + "\n";
  std::vector<const CLI::Option*> listed;
  for (const CLI::Option* option : PositionalsOf(command)) {
    const std::string name = "Ar " + ZeroWidth(NameOf(*option));
    usage += option->get_required() ? "\n." + name : "\n.Op " + name;
    if (!option->get_description().empty()) listed.push_back(option);
  }
  for (const CLI::Option* option : OptionsOf(command)) {
    if (IsHelp(option)) continue;  // the same for every command
    usage += (option->get_required() ? "\n." : "\n.Op ") + FlagMacros(*option);
    listed.push_back(option);
  }
  out += ".Nm Cm " + ZeroWidth(command.get_name()) + usage + "\n.Pp\n";
  out += Paragraph(command.get_description()) + ListOf(listed);
  for (const CLI::App* inner : SubcommandsOf(command)) out += CommandSection(*inner);
  return out;
}

// "title:\n  term  text" as a section.
std::string FooterSection(const std::string& footer) {
  const auto lines = CLI::detail::split(footer, '\n');
  if (lines.empty() || lines[0].size() < 2 || lines[0].back() != ':') return "";
  std::string out = ".Sh " + Upper(lines[0].substr(0, lines[0].size() - 1)) + "\n";
  out += ".Bl -tag -width Ds\n";
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t term = lines[i].find_first_not_of(' ');
    if (term == std::string::npos) continue;
    const size_t gap = lines[i].find("  ", term);
    out += ".It " + ZeroWidth(lines[i].substr(term, gap - term)) + "\n";
    if (gap != std::string::npos) out += Paragraph(CLI::detail::trim_copy(lines[i].substr(gap)));
  }
  return out + ".El\n";
}

// The description without "program: ".
std::string Purpose(const CLI::App& app) {
  const std::string text = app.get_description();
  const size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

}  // namespace

std::string ManPage(const CLI::App& app, const ProgramPage& page, const std::string& date) {
  const auto commands = SubcommandsOf(app);
  std::string out = ".\\\" Made from the program's own definition of its flags.\n";
  out += ".Dd " + date + "\n.Dt " + Upper(page.name) + " 1\n.Os Weir\n";
  out += ".Sh NAME\n.Nm " + page.name + "\n.Nd " + Escaped(Purpose(app)) + "\n";
  out += ".Sh SYNOPSIS\n.Nm\n.Op Ar options\n";
  if (!commands.empty()) out += ".Ar command\n.Op Ar arguments\n";
  out += ".Sh DESCRIPTION\n" + Paragraph(Purpose(app)) + ".Pp\nThe options are as follows:\n";
  out += ListOf(OptionsOf(app));
  if (!commands.empty()) {
    out += ".Sh COMMANDS\nOptions may stand before or after the command.\n";
    for (const CLI::App* command : commands) out += CommandSection(*command);
  }
  out += FooterSection(app.get_footer());
  if (!page.see_also.empty()) out += ".Sh SEE ALSO\n";
  for (size_t i = 0; i < page.see_also.size(); ++i) {
    out += ".Xr " + page.see_also[i] + (i + 1 < page.see_also.size() ? " ,\n" : "\n");
  }
  return out;
}

}  // namespace weir
