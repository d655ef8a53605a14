// SPDX-License-Identifier: Apache-2.0
#include "agent/credentials.h"

#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <utility>

#include "deploy/program/loopback.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::agent {

CredentialFactory::CredentialFactory(std::shared_ptr<TlsFiles> files, bool insecure)
    : files_(std::move(files)), insecure_(insecure) {}

Status CredentialFactory::Permit(const std::string& controller) const {
  if (files_ != nullptr || insecure_ || IsLoopbackTarget(controller)) return OkStatus();
  return InvalidArgument(StrCat("plain text to the controller at ", controller,
                                " is refused: give --ca, --cert and --key, or --insecure"));
}

std::vector<std::string> SplitControllers(const std::string& list) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) out.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

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
  if (!tls) {
    CredentialFactory plain(nullptr, options.insecure && !options.sends_token);
    const std::vector<std::string> controllers = SplitControllers(options.controller);
    if (controllers.empty()) return InvalidArgument("--controller names no address");
    for (const std::string& each : controllers) {
      if (options.sends_token && !IsLoopbackTarget(each)) {
        return InvalidArgument(
            StrCat("the token would cross the network to ", each, " in plain text: give --ca"));
      }
      WEIR_RETURN_IF_ERROR(plain.Permit(each));
    }
    return plain;
  }
  return CredentialFactory(std::make_shared<TlsFiles>(
      TlsPaths{.cert = options.cert_file, .key = options.key_file, .ca = options.ca_file}));
}

}  // namespace weir::agent
