// SPDX-License-Identifier: Apache-2.0
// Errors in TLS files are found at the start, and a change of any of them is seen. How servers use
// the files is tested in tests/deploy/certificates_test.py.
#include "deploy/program/tls/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>

#include "tests/support/certificates.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

class TlsFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-tls-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    if (!MakeCertificates(directory_, "ca", {"a", "b"})) {
      GTEST_SKIP() << "openssl cannot make certificates here";
    }
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& name) const { return directory_ + "/" + name; }
  void Put(const std::string& name, const std::string& content) const {
    std::ofstream(File("next"), std::ios::binary) << content;
    std::filesystem::rename(File("next"), File(name));
  }
  Status Error(const TlsPaths& paths) const { return TlsFiles(paths).Current().status(); }

  std::string directory_;
};

TEST_F(TlsFilesTest, WithoutEarlierMaterialTheCauseIsTheResult) {
  Status status = Error({.cert = File("none"), .key = File("a.key")});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("/none': No such file"));
  EXPECT_EQ(Error({.cert = directory_, .key = File("a.key")}).code(), StatusCode::kUnavailable);
  status = Error({.cert = File("a.pem"), .key = File("b.key")});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("is not that of the certificate"));
  EXPECT_THAT(Message(Error({.ca = File("a.key")})), HasSubstr("expected certificates, found 0"));
  Put("long", std::string(kTlsFileBytesMax + 1, 'x'));
  EXPECT_THAT(Message(Error({.ca = File("long")})), HasSubstr("has more than 1048576 bytes"));
  const std::string command = "openssl ec -in " + File("a.key") + " -aes128 -passout pass:x -out " +
                              File("secret") + " 2>&-";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(Message(Error({.cert = File("a.pem"), .key = File("secret")})),
              HasSubstr("expected a private key"));
}

// Peers refused such a certificate in their handshake, and neither side said why.
TEST_F(TlsFilesTest, CertificatesThatAreNotValidNowAreNamedWithTheirDate) {
  const auto make = [this](const std::string& name, const std::string& dates) {
    const std::string command =
        "cd " + directory_ +
        " && touch index && openssl ca -batch -notext -config /dev/stdin -in a.csr -out " + name +
        " " + dates + " > out 2>&1 <<'X'\n[ca]\ndefault_ca=x\n[x]\ndatabase=index\n" +
        "certificate=ca.pem\nprivate_key=ca.key\nnew_certs_dir=.\nrand_serial=yes\n" +
        "default_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\nX\n";
    ASSERT_EQ(std::system(command.c_str()), 0) << Contents(File("out"));
  };
  ASSERT_NO_FATAL_FAILURE(make("past.pem", "-startdate 20200101000000Z -enddate 20200102000000Z"));
  ASSERT_NO_FATAL_FAILURE(
      make("future.pem", "-startdate 20990101000000Z -enddate 20990102000000Z"));
  EXPECT_THAT(Message(Error({.cert = File("past.pem"), .key = File("a.key")})),
              HasSubstr("past.pem' expired at 2020-01-02T00:00:00Z"));
  EXPECT_THAT(Message(Error({.cert = File("future.pem"), .key = File("a.key")})),
              HasSubstr("future.pem' is not valid before 2099-01-01T00:00:00Z"));
  EXPECT_THAT(Message(Error({.ca = File("past.pem")})), HasSubstr("expired at 2020"));
  Put("both.pem", Contents(File("past.pem")) + Contents(File("ca.pem")));
  EXPECT_TRUE(Error({.ca = File("both.pem")}).ok()) << "a former authority may stay";
  // An expired one does not replace one that is valid.
  TlsFiles files({.cert = File("a.pem"), .key = File("a.key")});
  const auto valid = files.Current();
  Put("a.pem", Contents(File("past.pem")));
  EXPECT_EQ(*files.Current(), *valid);
  EXPECT_FALSE(files.Health().renewed);
}

TEST_F(TlsFilesTest, UnchangedFilesAreReadOnceAndAnyChangeIsSeen) {
  TlsFiles files({.cert = File("a.pem"), .key = File("a.key"), .ca = File("ca.pem")});
  const auto first = files.Current();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->cert, Contents(File("a.pem")));
  EXPECT_NE((*first)->pair, nullptr);
  EXPECT_EQ(*files.Current(), *first);
  Put("ca.pem", Contents(File("ca.pem")) + Contents(File("b.pem")));
  const auto second = files.Current();
  EXPECT_NE(*second, *first);
  EXPECT_EQ((*second)->ca, Contents(File("ca.pem")));
  Put("a.pem", Contents(File("b.pem")));
  EXPECT_EQ(*files.Current(), *second) << "its key is still a's";
  Put("a.key", Contents(File("b.key")));
  const auto third = files.Current();
  EXPECT_EQ((*third)->cert, Contents(File("b.pem")));
  EXPECT_EQ((*third)->key, Contents(File("b.key")));
}

TEST_F(TlsFilesTest, HealthChecksTheFilesAndReportsRefusalsAndExpiry) {
  TlsFiles files({.cert = File("a.pem"), .key = File("a.key"), .ca = File("ca.pem")});
  TlsHealth health = files.Health();
  EXPECT_TRUE(health.renewed);
  EXPECT_EQ(health.refused, 0u);
  EXPECT_NEAR(health.certificate_end_unix_s, static_cast<double>(time(nullptr)) + 2 * 86400, 60);
  EXPECT_EQ(health.certificate_end_unix_s, (*files.Current())->certificate_end_unix_s);
  Put("a.pem", Contents(File("b.pem")));
  for (int i = 0; i < 2; ++i) {
    health = files.Health();
    EXPECT_FALSE(health.renewed) << "its key is still a's";
    EXPECT_EQ(health.refused, 1u) << "one state, however often it is looked at";
    EXPECT_NE(health.certificate_end_unix_s, 0) << "what was good before is in use";
  }
  Put("a.key", "");
  EXPECT_EQ(files.Health().refused, 2u);
  Put("a.key", Contents(File("b.key")));
  health = files.Health();
  EXPECT_TRUE(health.renewed);
  EXPECT_EQ(health.refused, 2u);
}

TEST_F(TlsFilesTest, AuthoritiesAloneHaveNoEndAndMissingFilesAreRefused) {
  EXPECT_EQ(TlsFiles({.ca = File("ca.pem")}).Health().certificate_end_unix_s, 0);
  TlsFiles late({.cert = File("late.pem"), .key = File("a.key")});
  EXPECT_FALSE(late.Health().renewed);
  EXPECT_EQ(late.Health().refused, 1u);
  EXPECT_EQ(late.Health().certificate_end_unix_s, 0);
}

TEST_F(TlsFilesTest, FilesThatBecomeValidAreUsedWithoutEarlierOnes) {
  TlsFiles files({.cert = File("late.pem"), .key = File("a.key")});
  EXPECT_FALSE(files.Current().ok());
  EXPECT_FALSE(files.Current().ok());
  Put("late.pem", Contents(File("a.pem")));
  EXPECT_TRUE(files.Current().ok());
}

}  // namespace
}  // namespace weir
