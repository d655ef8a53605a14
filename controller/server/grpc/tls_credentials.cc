// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include "datapath/base/check.h"

namespace weir {
namespace {

// gRPC calls this before each handshake. It uses the result from then on, or the earlier result
// after a failure.
grpc_ssl_certificate_config_reload_status FetchTlsConfig(
    void* files, grpc_ssl_server_certificate_config** config) {
  const auto material = static_cast<TlsFiles*>(files)->Current();
  if (!material.ok()) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
  const TlsMaterial& now = **material;
  const grpc_ssl_pem_key_cert_pair pair = {now.key.c_str(), now.cert.c_str()};
  *config = grpc_ssl_server_certificate_config_create(now.ca.empty() ? nullptr : now.ca.c_str(),
                                                      &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

// gRPC 1.51 has FileWatcherCertificateProvider for C++ programs. It does not compare a key with its
// certificate, and with a wrong pair it refuses every handshake. The C interface has the callback
// that we need.
class FetchedCredentials : public grpc::ServerCredentials {
 public:
  FetchedCredentials(TlsFiles* files, grpc_ssl_client_certificate_request_type of_clients)
      : credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                of_clients, FetchTlsConfig, files))) {}
  ~FetchedCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    WEIR_CHECK(false);  // services authorize their calls themselves
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> RenewedServerCredentials(TlsFiles* files) {
  return std::make_shared<FetchedCredentials>(
      files, files->paths().ca.empty()
                 ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                 : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
}

}  // namespace weir
