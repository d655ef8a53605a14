// SPDX-License-Identifier: Apache-2.0
// Plain text is limited to loopback unless --insecure is set.
#include "agent/credentials.h"

#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

namespace weir::agent {
namespace {

StatusCode Check(const CredentialOptions& options) {
  return MakeCredentialFactory(options).status().code();
}

TEST(CredentialsTest, PlainTextOnlyToLoopback) {
  for (const char* host : {"127.0.0.1:1", "127.1.2.3:1", "localhost:1", "[::1]:1", "unix:/x"}) {
    EXPECT_EQ(Check({.controller = host}), StatusCode::kOk) << host;
  }
  for (const char* host : {"10.0.0.1:1", "controller:1", "[fd00::1]:1", "0.0.0.0:1", "rubbish",
                           "localhost.example.org:1", "127.0.0.1.example.org:1"}) {
    EXPECT_EQ(Check({.controller = host}), StatusCode::kInvalidArgument) << host;
    EXPECT_EQ(Check({.controller = host, .insecure = true}), StatusCode::kOk) << host;
  }
}

TEST(CredentialsTest, TokensLeaveTheMachineEncryptedOnly) {
  EXPECT_EQ(Check({.controller = "127.0.0.1:1", .sends_token = true}), StatusCode::kOk);
  EXPECT_EQ(Check({.controller = "10.0.0.1:1", .ca_file = "a", .sends_token = true}),
            StatusCode::kOk);
  for (const char* far : {"10.0.0.1:1", "127.evil.example:1"}) {
    EXPECT_EQ(Check({.controller = far, .insecure = true, .sends_token = true}),
              StatusCode::kInvalidArgument)
        << far;
  }
}

TEST(CredentialsTest, ContradictionsAreRefused) {
  EXPECT_EQ(Check({.controller = "10.0.0.1:1", .cert_file = "a"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Check({.controller = "10.0.0.1:1", .key_file = "a"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(Check({.controller = "10.0.0.1:1", .ca_file = "a", .insecure = true}),
            StatusCode::kInvalidArgument);
}

TEST(CredentialsTest, MissingFileIsNamedWhenConnecting) {
  const auto factory =
      MakeCredentialFactory({.controller = "10.0.0.1:1", .ca_file = "/nonexistent/ca.pem"});
  ASSERT_TRUE(factory.ok());
  const auto credentials = (*factory)();
  EXPECT_NE(Message(credentials.status()).find("/nonexistent/ca.pem"), std::string::npos);
}

}  // namespace
}  // namespace weir::agent
