// SPDX-License-Identifier: Apache-2.0
#include "agent/credentials.h"

#include <grpcpp/security/credentials.h>

#include <utility>

#include "deploy/program/loopback.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::agent {

CredentialFactory::CredentialFactory(std::shared_ptr<TlsFiles> files) : files_(std::move(files)) {}

StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialFactory::operator()() const {
  if (files_ == nullptr) return grpc::InsecureChannelCredentials();
  WEIR_ASSIGN_OR_RETURN(const auto material, files_->Current());
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = material->ca;
  ssl.pem_cert_chain = material->cert;
  ssl.pem_private_key = material->key;
  return grpc::SslCredentials(ssl);
}

StatusOr<CredentialFactory> MakeCredentialFactory(const CredentialOptions& options) {
  const bool tls =
      !options.ca_file.empty() || !options.cert_file.empty() || !options.key_file.empty();
  if (options.cert_file.empty() != options.key_file.empty()) {
    return InvalidArgument("expected --cert and --key together, found one of them");
  }
  if (tls && options.insecure) {
    return InvalidArgument("expected either TLS files or --insecure, found both");
  }
  if (!tls && !options.insecure && !IsLoopbackTarget(options.controller)) {
    return InvalidArgument(StrCat("plain text to the controller at ", options.controller,
                                  " is refused: give --ca, --cert and --key, or --insecure"));
  }
  if (!tls && options.sends_token && !IsLoopbackTarget(options.controller)) {
    return InvalidArgument(StrCat("the token would cross the network to ", options.controller,
                                  " in plain text: give --ca"));
  }
  if (!tls) return CredentialFactory();
  return CredentialFactory(std::make_shared<TlsFiles>(
      TlsPaths{.cert = options.cert_file, .key = options.key_file, .ca = options.ca_file}));
}

}  // namespace weir::agent
