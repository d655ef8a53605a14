#include "agent/credentials.h"

#include <grpcpp/security/credentials.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "agent/measure/socket.h"

namespace weir::agent {
namespace {

bool IsLoopback(const std::string& controller) {
  if (controller.starts_with("unix:")) return true;
  const auto parts = SplitHostPort(controller);
  if (!parts.ok()) return false;
  if (parts->first == "localhost") return true;
  const auto address = SocketAddress::FromIp(parts->first, parts->second);
  return address.ok() && address->is_loopback();
}

StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Unavailable(StrCat("read ", path, ": ", std::strerror(errno)));
  }
  return text.str();
}

}  // namespace

StatusOr<CredentialFactory> MakeCredentialFactory(const CredentialOptions& options) {
  const bool tls =
      !options.ca_file.empty() || !options.cert_file.empty() || !options.key_file.empty();
  if (options.cert_file.empty() != options.key_file.empty()) {
    return InvalidArgument("expected --cert and --key together, found one of them");
  }
  if (tls && options.insecure) {
    return InvalidArgument("expected either TLS files or --insecure, found both");
  }
  if (!tls && !options.insecure && !IsLoopback(options.controller)) {
    return InvalidArgument(StrCat("plain text to the controller at ", options.controller,
                                  " is refused: give --ca, --cert and --key, or --insecure"));
  }
  if (!tls) {
    return CredentialFactory([]() -> StatusOr<std::shared_ptr<grpc::ChannelCredentials>> {
      return grpc::InsecureChannelCredentials();
    });
  }
  return CredentialFactory([options]() -> StatusOr<std::shared_ptr<grpc::ChannelCredentials>> {
    grpc::SslCredentialsOptions ssl;
    WEIR_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem(options.ca_file));
    WEIR_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadPem(options.cert_file));
    WEIR_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem(options.key_file));
    return grpc::SslCredentials(ssl);
  });
}

}  // namespace weir::agent
