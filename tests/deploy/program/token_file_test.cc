// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace weir {
namespace {

using ::testing::HasSubstr;

constexpr char kFirst[] = "0123456789abcdef", kSecond[] = "fedcba9876543210";

class TokenFileTest : public testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  std::unique_ptr<TokenFile> Opened() {
    auto file = TokenFile::Open(path_, "test", clock_);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  std::string ErrorOf(const std::string& text) {
    Write(text);
    return Message(TokenFile::Open(path_, "test", clock_).status());
  }
  static StatusOr<std::string> Ask(TokenFile& file, const std::string& token) {
    return file.Find("Bearer " + token, "10.0.0.1");
  }

  FakeClock clock_;
  const std::string path_ = testing::TempDir() + StrCat("token-file-test-", getpid());
};

TEST_F(TokenFileTest, EveryTokenHasItsName) {
  Write(StrCat("# of two clients\n\n", kFirst, "\n  grafana\t", kSecond, "\n"));
  const auto file = Opened();
  EXPECT_EQ(Ask(*file, kFirst).value_or(""), "token");
  EXPECT_EQ(Ask(*file, kSecond).value_or(""), "grafana");
  EXPECT_EQ(Ask(*file, "grafana").status().code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(Message(file->Find("", "10.0.0.1").status()), HasSubstr("Authorization: Bearer"));
  EXPECT_FALSE(file->Find(kFirst, "10.0.0.1").ok());
}

TEST_F(TokenFileTest, WrongFilesAreNamedWithTheirLine) {
  EXPECT_THAT(ErrorOf("\n# nothing\n"), HasSubstr("no token in " + path_));
  EXPECT_THAT(ErrorOf(StrCat(kFirst, "\nshort\n")), HasSubstr(path_ + ":2, found 5"));
  EXPECT_THAT(ErrorOf(StrCat("a b ", kFirst, "\n")), HasSubstr("expected TOKEN, or NAME TOKEN"));
  EXPECT_THAT(ErrorOf(StrCat("a/b ", kFirst, "\n")), HasSubstr("expected TOKEN, or NAME TOKEN"));
  std::string many;
  for (size_t i = 0; i <= TokenFile::kTokensMax; ++i) many += StrCat(kFirst, i, "\n");
  EXPECT_THAT(ErrorOf(many), HasSubstr("expected at most 64 tokens"));
  EXPECT_THAT(ErrorOf(std::string(100000, '#')), HasSubstr("expected at most 65536 bytes"));
  EXPECT_FALSE(TokenFile::Open("/nonexistent/tokens", "test", clock_).ok());
  // A client has one token: of a server's file it might take a name.
  Write(StrCat("name-of-a-client ", kFirst, "\n"));
  EXPECT_THAT(Message(ReadTokenFile(path_).status()), HasSubstr("expected one token"));
  Write(StrCat(kFirst, "\n"));
  EXPECT_EQ(ReadTokenFile(path_).value_or(""), kFirst);
}

TEST_F(TokenFileTest, IsReadAgainWhenItChangesAndKeptWhileItIsWrong) {
  Write(StrCat("old ", kFirst, "\n"));
  const auto file = Opened();
  Write(StrCat("old ", kFirst, "\nnew ", kSecond, "\n"));
  EXPECT_EQ(Ask(*file, kFirst).value_or(""), "old");
  EXPECT_EQ(Ask(*file, kSecond).value_or(""), "new");
  EXPECT_THAT(file->Tokens(), testing::ElementsAre(kFirst, kSecond));
  Write("short\n");
  EXPECT_THAT(file->Tokens(), testing::ElementsAre(kFirst, kSecond));
  EXPECT_EQ(Ask(*file, kSecond).value_or(""), "new");
  Write(StrCat("new ", kSecond, "\n"));
  EXPECT_FALSE(Ask(*file, kFirst).ok());
  EXPECT_EQ(Ask(*file, kSecond).value_or(""), "new");
}

TEST_F(TokenFileTest, WhoeverGuessesIsPutOffAndLocksOutNobody) {
  Write(StrCat("used ", kFirst, "\nfresh ", kSecond, "\n"));
  const auto file = Opened();
  ASSERT_TRUE(Ask(*file, kFirst).ok());
  for (int i = 0; i < WrongTokens::kMax; ++i) {
    EXPECT_EQ(Ask(*file, StrCat(i)).status().code(), StatusCode::kUnauthenticated);
  }
  EXPECT_EQ(Ask(*file, "more").status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Ask(*file, kSecond).status().code(), StatusCode::kResourceExhausted)
      << "a guess that is right tells nothing";
  EXPECT_TRUE(Ask(*file, kFirst).ok());
  EXPECT_TRUE(file->Find(StrCat("Bearer ", kSecond), "10.0.0.2").ok());
  clock_.Advance(WrongTokens::kWindow);
  EXPECT_EQ(Ask(*file, "again").status().code(), StatusCode::kUnauthenticated);
}

}  // namespace
}  // namespace weir
