// SPDX-License-Identifier: Apache-2.0
// Principals, the token file and what wrong tokens cost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "controller/server/auth/authenticator.h"
#include "controller/server/grpc/caller.h"
#include "datapath/base/log.h"
#include "tests/controller/server/token_line.h"
#include "tests/support/certificates.h"

namespace weir {
namespace {

using testing::HasSubstr;

TEST(PrincipalsTest, LinesNamePrincipalsWithRolesJobsAndNodes) {
  const auto file = Principals::Parse(
      "# people\n" + TokenLine("ann", "operator", "test", "jobs=team-a-*,shared") +
          "deployer admin cert:deployer.example  # a program\n"
          "daemons agent cert:weir-agent nodes=worker-*\n"
          "racks agent cert:rack*.example\n" +
          TokenLine("robot", "viewer,agent", "beep", "nodes=one"),
      "f");
  ASSERT_TRUE(file.ok()) << ToString(file.status());
  const auto ann = file->FindToken(HashOf("test"));
  ASSERT_TRUE(ann.has_value());
  EXPECT_EQ(ann->name, "ann");
  EXPECT_TRUE(RequireRole(*ann, Role::kViewer).ok());
  EXPECT_TRUE(RequireRole(*ann, Role::kOperator).ok());
  EXPECT_THAT(Message(RequireRole(*ann, Role::kAdmin)),
              HasSubstr("needs role admin, ann (token) has operator"));
  EXPECT_TRUE(RequireJob(*ann, "team-a-1").ok());
  EXPECT_TRUE(RequireJob(*ann, "shared").ok());
  EXPECT_EQ(RequireJob(*ann, "team-b-1").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(RequireEveryJob(*ann).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(RequireNode(*ann, "ann").code(), StatusCode::kPermissionDenied);
  const auto deployer = file->FindCertificate({"other", "deployer.example"});
  ASSERT_TRUE(deployer.has_value());
  EXPECT_TRUE(RequireEveryJob(*deployer).ok());
  EXPECT_TRUE(RequireNode(*file->FindCertificate({"weir-agent"}), "worker-7").ok());
  const auto rack = file->FindCertificate({"rack1.example"});
  EXPECT_TRUE(RequireNode(*rack, "rack1.example").ok());
  EXPECT_FALSE(RequireNode(*rack, "rack2.example").ok()) << "of another certificate";
  EXPECT_FALSE(RequireRole(*rack, Role::kViewer).ok());
  EXPECT_TRUE(RequireNode(*file->FindToken(HashOf("beep")), "one").ok());
  EXPECT_FALSE(file->FindToken(HashOf("")).has_value());
  EXPECT_FALSE(file->FindCertificate({}).has_value());
}

TEST(PrincipalsTest, WrongLinesAreNamedAndNeverShowATokenInClear) {
  const auto error = [](const std::string& text) {
    return Message(Principals::Parse(text, "f").status());
  };
  EXPECT_THAT(error("admin secret\n"), HasSubstr("f:1: expected NAME ROLES CREDENTIAL"));
  EXPECT_THAT(error("\nann root cert:x\n"), HasSubstr("f:2: unknown role 'root'"));
  EXPECT_THAT(error("ann admin sha256:12\n"), HasSubstr("64 lowercase hexadecimal digits"));
  EXPECT_THAT(error("ann admin secret\n"), HasSubstr("sha256sum"));
  EXPECT_THAT(error("ann admin secret\n"), testing::Not(HasSubstr("secret")));
  EXPECT_THAT(error("ann admin cert:a nodes=b\n"), HasSubstr("unknown 'nodes=b'"));
  EXPECT_THAT(error("ann admin cert:a hosts=b\n"), HasSubstr("unknown 'hosts=b'"));
  EXPECT_THAT(error(TokenLine("a", "agent", "t")), HasSubstr("needs nodes="));
  EXPECT_THAT(error("# nothing\n"), HasSubstr("holds no entry"));
}

TEST(PrincipalsTest, PatternsOfACertificateMatchOnlyThemselves) {
  const Principal shown{.name = "*", .proof = "certificate", .nodes = Literally({"*", "a?[b]\\"})};
  EXPECT_TRUE(RequireNode(shown, "*").ok());
  EXPECT_TRUE(RequireNode(shown, "a?[b]\\").ok());
  EXPECT_FALSE(RequireNode(shown, "w0").ok());
  EXPECT_FALSE(RequireNode(shown, "axb").ok());
}

class AuthTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-auth-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    SetLogSink(
        [this](LogLevel, std::string_view, std::string_view line) { lines_.emplace_back(line); });
  }
  void TearDown() override {
    SetLogSink({});
    std::filesystem::remove_all(directory_);
  }
  void Write(const std::string& text) { std::ofstream(directory_ / "tokens") << text; }
  StatusOr<Principal> Ask(Authenticator& by, const std::string& token, const std::string& peer) {
    const std::string header = "Bearer " + token;
    return by.Identify({.peer = peer, .authorization = header});
  }

  std::filesystem::path directory_;
  std::vector<std::string> lines_;
};

TEST_F(AuthTest, NamesOfACertificateAreItsAlternativeNamesOrElseItsCommonName) {
  if (!MakeCertificates(directory_, "ca", {"node-1"}, "DNS:a.example,URI:weir:node,IP:10.0.0.1") ||
      !MakeCertificates(directory_, "ca2", {"node-2"})) {
    GTEST_SKIP() << "openssl cannot make certificates here";
  }
  EXPECT_THAT(*NamesOfCertificate(Contents(directory_ / "node-1.pem")),
              testing::ElementsAre("a.example", "weir:node"));
  EXPECT_THAT(*NamesOfCertificate(Contents(directory_ / "node-2.pem")),
              testing::ElementsAre("node-2"));
  EXPECT_FALSE(NamesOfCertificate("no PEM").ok());
}

TEST_F(AuthTest, CertificatesAloneSpeakForTheirNodesAndHaveNoRole) {
  Authenticator nobody;
  const auto shown = nobody.Identify({.certificate = {"n1", "n2"}, .has_certificate = true});
  ASSERT_TRUE(shown.ok());
  EXPECT_FALSE(RequireRole(*shown, Role::kViewer).ok());
  EXPECT_TRUE(RequireNode(*shown, "n2").ok());
  EXPECT_FALSE(RequireNode(*shown, "n3").ok());
  EXPECT_EQ(nobody.Identify({}).status().code(), StatusCode::kUnauthenticated);
  const auto local = nobody.Identify({.local = {.role = Role::kViewer, .agent = true}});
  EXPECT_TRUE(RequireRole(*local, Role::kViewer).ok());
  EXPECT_FALSE(RequireRole(*local, Role::kOperator).ok());
  EXPECT_TRUE(RequireNode(*local, "any").ok());
}

TEST_F(AuthTest, ChangedFileIsReadAgainAndAnInvalidOneIsNot) {
  Write(TokenLine("ann", "admin", "first"));
  const auto auth = Authenticator::FromFile(directory_ / "tokens");
  ASSERT_TRUE(auth.ok()) << ToString(auth.status());
  std::vector<std::pair<std::string, StatusOr<std::string>>> changes;
  (*auth)->OnFileChange([&](const std::string& before, const StatusOr<std::string>& after) {
    changes.emplace_back(before, after);
  });
  EXPECT_EQ(Ask(**auth, "first", "p")->name, "ann");
  EXPECT_TRUE(changes.empty());
  Write(TokenLine("ann", "admin", "first") + TokenLine("bob", "viewer", "second"));
  EXPECT_EQ(Ask(**auth, "second", "p")->name, "bob");
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].first, "ann admin token jobs=*\n");
  EXPECT_EQ(*changes[0].second, "ann admin token jobs=*\nbob viewer token jobs=*\n");
  Write("admin in-clear\n");
  EXPECT_EQ(Ask(**auth, "second", "p")->name, "bob") << "the previous entries stay";
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[1].second.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(lines_.back(), HasSubstr("tokens:1: expected NAME ROLES"));
  const size_t before = lines_.size();
  EXPECT_TRUE(Ask(**auth, "second", "p").ok());
  EXPECT_EQ(lines_.size(), before) << "said once";
  Write(TokenLine("ann", "admin", "first"));
  EXPECT_EQ(Ask(**auth, "second", "p").status().code(), StatusCode::kUnauthenticated) << "revoked";
}

TEST_F(AuthTest, WrongTokensAreThrottledAndSaidOnceAWindow) {
  FakeClock clock;
  Write(TokenLine("ann", "admin", "right") + TokenLine("bob", "viewer", "rare"));
  const auto auth = Authenticator::FromFile(directory_ / "tokens", clock);
  ASSERT_TRUE(auth.ok());
  EXPECT_TRUE(Ask(**auth, "right", "attacker").ok());
  int unread = 0;
  for (int i = 0; i < 1000; ++i) {
    unread += Ask(**auth, StrCat("guess", i), "attacker").status().code() ==
              StatusCode::kResourceExhausted;
  }
  EXPECT_EQ(unread, 1000 - WrongTokens::kMax);
  EXPECT_EQ(lines_.size(), 1u) << lines_.back();
  EXPECT_TRUE(Ask(**auth, "right", "attacker").ok()) << "one that was right before stays right";
  EXPECT_EQ(Ask(**auth, "rare", "attacker").status().code(), StatusCode::kResourceExhausted)
      << "a guess may be right and is not told so";
  EXPECT_TRUE(Ask(**auth, "rare", "elsewhere").ok());
  clock.Advance(WrongTokens::kWindow);
  EXPECT_EQ(Ask(**auth, "guess", "attacker").status().code(), StatusCode::kUnauthenticated);
  ASSERT_EQ(lines_.size(), 3u);
  EXPECT_THAT(lines_[1], HasSubstr("1000 more wrong tokens"));
  for (int i = 0; i < 2 * static_cast<int>(WrongTokens::kPeersMax); ++i) {
    (void)Ask(**auth, "guess", StrCat("peer", i));
  }
  EXPECT_EQ(lines_.size(), 3u);
  EXPECT_EQ(Ask(**auth, "guess", "another").status().code(), StatusCode::kResourceExhausted)
      << "addresses beyond the bound share one count";
}

TEST(CallerTest, PeerIsAnAddressWithoutPort) {
  EXPECT_EQ(PeerAddress("ipv4:10.1.2.3:4567"), "10.1.2.3");
  EXPECT_EQ(PeerAddress("ipv6:%5Bfe80::1%5D:99"), "fe80::1");
  EXPECT_EQ(PeerAddress("unix:"), "unix");
  EXPECT_EQ(PeerAddress("unix:/run/x:y"), "unix");
}

}  // namespace
}  // namespace weir
