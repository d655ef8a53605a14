// SPDX-License-Identifier: Apache-2.0
// Man page and candidates of a small program with every kind of flag that our programs use.

#include "deploy/program/hidden_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ProgramPageTest : public testing::Test {
 protected:
  ProgramPageTest() {
    app_.fallthrough();
    app_.set_version_flag("--version", "1");
    app_.add_option("--server", server_, "whom to ask")->type_name("ADDRESS")->envname("SERVER");
    app_.add_option("-o,--output", output_, "form")->check(CLI::IsMember({"table", "json"}));
    app_.add_option("--share", share_, "part. Of the whole")->check(CLI::Range(0.0, 1.0));
    app_.add_option("--secret", output_, "unseen")->group("");
    auto* get = app_.add_subcommand("get", "list things");
    get->add_option("kind", kind_, "of what")->required()->check(CLI::IsMember({"node", "job"}));
    get->add_option("name", name_, ".leading dot, back\\slash");
    get->add_flag("--all", all_, "all of them");
    app_.add_subcommand("put", "store")->add_option("-f,--file", name_, "what")->type_name("FILE");
    app_.footer("exit status:\n  0  fine\n  1  not so");
    page_ = {"tool",
             {"other 1", "third 8"},
             [this](const auto& command, const auto& name, const auto& given) {
               asked_ = command + "/" + name;
               given_ = given;
               return std::vector<std::string>{"n1", "n2", "evil\tname"};
             }};
  }
  std::vector<std::string> After(std::vector<std::string> words) {
    return CandidatesFor(app_, page_, words);
  }
  /// The candidates without their descriptions.
  std::vector<std::string> WordsAfter(std::vector<std::string> words) {
    std::vector<std::string> found = After(std::move(words));
    for (std::string& line : found) line = line.substr(0, line.find('\t'));
    return found;
  }

  CLI::App app_{"tool: does things"};
  std::string server_ = "here", output_, kind_, name_, asked_;
  double share_ = 0.5;
  bool all_ = false;
  GivenValues given_;
  ProgramPage page_;
};

TEST_F(ProgramPageTest, CompletesCommandsAndOptionsWithDescriptions) {
  EXPECT_THAT(After({""}), ElementsAre("get\tlist things", "put\tstore", ":none"));
  EXPECT_THAT(After({"g"}), ElementsAre("get\tlist things", ":none"));
  EXPECT_THAT(WordsAfter({"--s"}), ElementsAre("--server", "--share", ":none"));
  EXPECT_THAT(WordsAfter({"get", "--"}), ElementsAre("--help", "--all", "--version", "--server",
                                                     "--output", "--share", ":none"));
  EXPECT_THAT(WordsAfter({"get", "--all", "--a"}), ElementsAre(":none"));
  EXPECT_THAT(WordsAfter({"-o", "json", "put", "--o"}), ElementsAre(":none"));
}

TEST_F(ProgramPageTest, CompletesValuesHoweverTheyAreWritten) {
  EXPECT_THAT(WordsAfter({"--output", ""}), ElementsAre("table", "json", ":none"));
  EXPECT_THAT(WordsAfter({"-o", "j"}), ElementsAre("json", ":none"));
  EXPECT_THAT(WordsAfter({"--output=t"}), ElementsAre("--output=table", ":none"));
  EXPECT_THAT(WordsAfter({
                  "get",
                  "",
              }),
              ElementsAre("node", "job", ":none"));
  EXPECT_THAT(WordsAfter({"put", "--file", "x"}), testing::Contains(":file"));
}

TEST_F(ProgramPageTest, AsksTheProgramWithTheGivenValues) {
  EXPECT_THAT(WordsAfter({"--server", "a:1", "get", "node", ""}), ElementsAre("n1", "n2", ":none"));
  EXPECT_EQ(asked_, "get/name");
  EXPECT_EQ(given_["--server"], "a:1");
  EXPECT_EQ(given_["kind"], "node");
  WordsAfter({"get", "--server=b:2", "-ojson", "job", "n"});
  EXPECT_EQ(given_["--server"], "b:2");
  EXPECT_EQ(given_["--output"], "json");
  WordsAfter({"--server", ""});
  EXPECT_EQ(asked_, "/--server");
}

TEST_F(ProgramPageTest, OffersNothingAfterWordsThatAreRejected) {
  EXPECT_THAT(After({"--nonsense", ""}), ElementsAre(":none"));
  EXPECT_THAT(After({"get", "node", "n1", "too-much", ""}), ElementsAre(":none"));
  EXPECT_THAT(After({"get", "--", "--a"}), ElementsAre(":none"));
  EXPECT_THAT(After({"--nonsense=j"}), ElementsAre(":none"));
  EXPECT_THAT(WordsAfter({}), ElementsAre("get", "put", ":none"));
}

TEST_F(ProgramPageTest, ManPageHoldsEveryFlagAndCommand) {
  const std::string text = ManPage(app_, page_, "January 31, 2026");
  for (const char* part :
       {".Dd January 31, 2026\n.Dt TOOL 1\n", ".Nd does things\n",
        "Fl -server Ar address\nWhom to ask.\n", "Environment:\n.Ev SERVER .\n",
        "One of table, json.\n", "Part.\nOf the whole.\nWithin [0 - 1].\n",
        ".Ss \\&get\n.Nm Cm \\&get\n.Ar kind\n.Op Ar name\n.Op Fl -all\n",
        "\\&.leading dot, back\\eslash.\n", "Fl f Ar file , Fl -file Ar file",
        ".Sh EXIT STATUS\n.Bl -tag -width Ds\n.It 0\nFine.\n", ".Xr other 1 ,\n.Xr third 8\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST_F(ProgramPageTest, ScriptsAreMadeForKnownShellsOnly) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = CompletionScript("my-tool", shell);
    EXPECT_THAT(script, HasSubstr("__complete"));
    EXPECT_THAT(script, HasSubstr("_my_tool"));
    EXPECT_THAT(script, AllOf(Not(HasSubstr("@PROGRAM@")), Not(HasSubstr("@FUNCTION@"))));
  }
  EXPECT_EQ(CompletionScript("my-tool", "csh"), "");
}

TEST_F(ProgramPageTest, OrdinaryCommandLinesAreLeftToTheParser) {
  const char* const plain[] = {"tool", "get", "node"};
  EXPECT_FALSE(AnswerHiddenCommand(app_, page_, 3, plain).has_value());
  EXPECT_FALSE(AnswerHiddenCommand(app_, page_, 1, plain).has_value());
  const char* const unknown[] = {"tool", "__completion", "csh"};
  EXPECT_EQ(AnswerHiddenCommand(app_, page_, 3, unknown), 2);
}

}  // namespace
}  // namespace weir
