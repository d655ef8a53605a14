// SPDX-License-Identifier: Apache-2.0
#pragma once
// Credentials of a gRPC server whose certificate is renewed while it runs.

#include <memory>

#include "deploy/program/tls/tls_files.h"

namespace grpc {
class ServerCredentials;
}

namespace weir {

/// Each handshake uses what `files` hold when it begins. With a CA among them clients must show a
/// certificate that it signs. `files` have a certificate, are good now and outlive the server.
std::shared_ptr<grpc::ServerCredentials> RenewedServerCredentials(TlsFiles* files);

}  // namespace weir
