// SPDX-License-Identifier: Apache-2.0
// A real etcd that serves TLS only and asks for certificates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "controller/store/etcd/etcd_client.h"
#include "tests/support/etcd_cluster.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

class EtcdTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // as the controller does: OpenSSL writes to closed connections
    if (const std::string why = EtcdCluster::WhyNot(); !why.empty()) GTEST_SKIP() << why;
    cluster_ = std::make_unique<EtcdCluster>(1, /*tls=*/true);
    ASSERT_EQ(cluster_->size(), 1) << "openssl made no certificates";
    const Status ready = cluster_->WaitReady();
    ASSERT_TRUE(ready.ok()) << ToString(ready);
  }
  static Status Ask(const EtcdOptions& options) {
    EtcdClient client(options);
    return client.Range({.key = "k"}, RealClock().Now() + std::chrono::seconds(2)).status();
  }

  std::unique_ptr<EtcdCluster> cluster_;
};

TEST_F(EtcdTlsTest, WhoShowsACertificateIsAnswered) {
  EXPECT_TRUE(Ask(cluster_->Options()).ok()) << ToString(Ask(cluster_->Options()));
}

TEST_F(EtcdTlsTest, WhoShowsNoneIsNotAndSoIsWhoSpeaksPlainText) {
  EtcdOptions options = cluster_->Options();
  options.tls_cert.clear();
  options.tls_key.clear();
  EXPECT_EQ(Ask(options).code(), StatusCode::kUnavailable) << ToString(Ask(options));
  options.tls = false;
  EXPECT_FALSE(Ask(options).ok());
}

TEST_F(EtcdTlsTest, AMemberThatAnotherAuthoritySignedIsNotBelieved) {
  ASSERT_TRUE(MakeCertificates(cluster_->directory(), "stranger", {}));
  EtcdOptions options = cluster_->Options();
  options.tls_ca = cluster_->directory() + "/stranger.pem";
  EXPECT_THAT(Message(Ask(options)), HasSubstr("its certificate is not trusted"));
}

}  // namespace
}  // namespace weir
