// SPDX-License-Identifier: Apache-2.0
#pragma once
// The credentials that a caller over gRPC shows.

#include <grpcpp/server_context.h>

#include <string>

#include "controller/server/auth/authenticator.h"
#include "controller/server/grpc/local_callers.h"

namespace weir {

/// The caller of `context`, which must outlive the result. gRPC has verified its certificate. The
/// answer gets the request's id as metadata "x-request-id".
Credentials CredentialsOf(grpc::ServerContextBase* context, const LocalCallers& local);

/// The address of gRPC's peer, without its port: "10.0.0.1" of "ipv4:10.0.0.1:5", "unix" of any
/// Unix socket.
std::string PeerAddress(const std::string& peer);

}  // namespace weir
