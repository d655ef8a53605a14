// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the agent authenticates to the controller, and the rule that plain text is only for loopback.

#include <memory>
#include <string>
#include <vector>

#include "datapath/base/status.h"

namespace grpc {
class ChannelCredentials;
}

namespace weir {
class TlsFiles;
}

namespace weir::agent {

struct CredentialOptions {
  std::string controller = {};  // HOST:PORT, several of them with commas
  std::string ca_file = {};     // PEM; with any of the three, TLS is used
  std::string cert_file = {};
  std::string key_file = {};
  bool insecure = false;     // permits plain text off loopback
  bool sends_token = false;  // which never crosses a network in plain text
};

/// Thread-safe.
class CredentialFactory {
 public:
  /// files: null for plain text.
  /// insecure: plain text may leave this machine.
  explicit CredentialFactory(std::shared_ptr<TlsFiles> files = nullptr, bool insecure = false);

  /// Makes new credentials. Renewed files are used at the next connection. If they are invalid, the
  /// previous ones are used, and that is logged (base/tls). Without previous ones, kUnavailable
  /// names a file that cannot be read and kInvalidArgument one with wrong content.
  StatusOr<std::shared_ptr<grpc::ChannelCredentials>> operator()() const;

  /// kInvalidArgument: plain text to `controller` would leave this machine.
  Status Permit(const std::string& controller) const;

  /// Null for plain text.
  TlsFiles* files() const { return files_.get(); }

 private:
  std::shared_ptr<TlsFiles> files_;
  bool insecure_;
};

/// The controllers in a list with commas.
std::vector<std::string> SplitControllers(const std::string& list);

/// Uses TLS when a file is given, and plain text when every controller's host is a loopback
/// literal, "localhost" or a Unix socket, or when `insecure` is set and there is no token.
/// kInvalidArgument otherwise, or when only one of certificate and key is given, or `insecure`
/// contradicts the files.
StatusOr<CredentialFactory> MakeCredentialFactory(const CredentialOptions& options);

}  // namespace weir::agent
