// SPDX-License-Identifier: Apache-2.0
#pragma once
// Our Status as gRPC's. Codes are the same numbers; see status_mapping.h.

#include <grpcpp/support/status.h>

#include "controller/server/status_mapping.h"

namespace weir {

inline grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(GrpcCode(status.code())), Message(status));
}

inline Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return MakeStatus(static_cast<StatusCode>(status.error_code()), status.error_message());
}

}  // namespace weir
