// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only mapping between our Status and the numbers of gRPC and HTTP. absl's codes are gRPC's
// codes.

#include <string>
#include <string_view>

#include "datapath/base/status.h"

namespace weir {

/// The gRPC status code of `code`, as an integer (also google.rpc.Status.code).
int GrpcCode(StatusCode code);
/// The HTTP status for an error in a REST answer; 200 for OK.
int HttpCode(StatusCode code);
/// "NOT_FOUND" and the like. Static text.
std::string_view CodeName(StatusCode code);
/// google.rpc.Status in its JSON form: {"code":5,"message":"...","details":[]}.
std::string ErrorJson(const Status& status);

}  // namespace weir
