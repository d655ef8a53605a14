#pragma once
// How the agent proves itself to the controller, and the rule that plain text stays on loopback.

#include <memory>
#include <string>

#include "datapath/base/status.h"

namespace grpc {
class ChannelCredentials;
}

namespace weir {
class TlsFiles;
}

namespace weir::agent {

struct CredentialOptions {
  std::string controller = {};  // HOST:PORT
  std::string ca_file = {};     // PEM; with any of the three, TLS is used
  std::string cert_file = {};
  std::string key_file = {};
  bool insecure = false;  // plain text off loopback is wanted
};

/// Thread-safe.
class CredentialFactory {
 public:
  /// files: null for plain text.
  explicit CredentialFactory(std::shared_ptr<TlsFiles> files = nullptr);

  /// Makes fresh credentials: renewed files count at the next connection; when they are not good,
  /// those before do, and the log says so (base/tls). Without any before: kUnavailable names a file
  /// that cannot be read, kInvalidArgument one with wrong content.
  StatusOr<std::shared_ptr<grpc::ChannelCredentials>> operator()() const;

  /// Null in plain text.
  TlsFiles* files() const { return files_.get(); }

 private:
  std::shared_ptr<TlsFiles> files_;
};

/// TLS when a file is given; plain text when the controller's host is a loopback literal,
/// "localhost" or a Unix socket, or `insecure` is set. kInvalidArgument otherwise, or when only one
/// of certificate and key is given, or `insecure` contradicts the files.
StatusOr<CredentialFactory> MakeCredentialFactory(const CredentialOptions& options);

}  // namespace weir::agent
