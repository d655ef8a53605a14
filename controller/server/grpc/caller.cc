// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/caller.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include "controller/server/rest/routes.h"
#include "deploy/program/http/access_log.h"

namespace weir {
namespace {

constexpr const char* kRequestIdKey = "x-request-id";

}  // namespace

Credentials CredentialsOf(grpc::ServerContextBase* context, const LocalCallers& local) {
  Credentials credentials{.peer = PeerAddress(context->peer())};
  const auto& metadata = context->client_metadata();
  const auto asked = metadata.find(kRequestIdKey);
  credentials.request_id = TakeRequestId(
      asked == metadata.end() ? "" : std::string_view(asked->second.data(), asked->second.size()));
  context->AddInitialMetadata(kRequestIdKey, credentials.request_id);
  if (const auto found = metadata.find("authorization"); found != metadata.end()) {
    credentials.authorization = {found->second.data(), found->second.size()};
  }
  const auto shown = context->auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (shown.empty()) {
    credentials.local = local.Of(context->peer());
    return credentials;
  }
  credentials.has_certificate = true;
  const auto names = NamesOfCertificate({shown.front().data(), shown.front().size()});
  if (names.ok()) credentials.certificate = *names;
  return credentials;
}

std::string PeerAddress(const std::string& peer) {
  const size_t scheme = peer.find(':');
  const size_t port = peer.rfind(':');
  if (scheme == std::string::npos || peer.starts_with("unix")) return "unix";
  const auto decoded = PercentDecode(peer.substr(scheme + 1, port - scheme - 1));
  std::string address = decoded.ok() ? *decoded : peer;
  if (address.size() > 2 && address.front() == '[') address = address.substr(1, address.size() - 2);
  return address;
}

}  // namespace weir
