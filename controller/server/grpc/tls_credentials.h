// SPDX-License-Identifier: Apache-2.0
#pragma once
// Credentials of a gRPC server whose certificate is renewed while it runs.

#include <memory>

#include "deploy/program/tls/tls_files.h"

namespace grpc {
class ServerCredentials;
}

namespace weir {

/// Each handshake uses the current contents of `files`. If they include a CA, clients must show a
/// certificate signed by it. `files` must have a valid certificate and outlive the server.
std::shared_ptr<grpc::ServerCredentials> RenewedServerCredentials(TlsFiles* files);

}  // namespace weir
