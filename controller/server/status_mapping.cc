// SPDX-License-Identifier: Apache-2.0
#include "controller/server/status_mapping.h"

#include <nlohmann/json.hpp>

namespace weir {

int GrpcCode(StatusCode code) { return static_cast<int>(code); }

int HttpCode(StatusCode code) {
  switch (static_cast<int>(code)) {
    case 0:
      return 200;
    case 1:
      return 499;  // cancelled
    case 3:
      return 400;  // invalid argument
    case 4:
      return 504;  // deadline exceeded
    case 5:
      return 404;  // not found
    case 6:
      return 409;  // already exists
    case 7:
      return 403;  // permission denied
    case 8:
      return 429;  // resource exhausted
    case 9:
      return 400;  // failed precondition
    case 10:
      return 409;  // aborted
    case 11:
      return 400;  // out of range
    case 12:
      return 501;  // unimplemented
    case 14:
      return 503;  // unavailable
    case 16:
      return 401;  // unauthenticated
  }
  return 500;  // unknown, internal, data loss
}

std::string_view CodeName(StatusCode code) {
  static constexpr std::string_view kNames[] = {"OK",
                                                "CANCELLED",
                                                "UNKNOWN",
                                                "INVALID_ARGUMENT",
                                                "DEADLINE_EXCEEDED",
                                                "NOT_FOUND",
                                                "ALREADY_EXISTS",
                                                "PERMISSION_DENIED",
                                                "RESOURCE_EXHAUSTED",
                                                "FAILED_PRECONDITION",
                                                "ABORTED",
                                                "OUT_OF_RANGE",
                                                "UNIMPLEMENTED",
                                                "INTERNAL",
                                                "UNAVAILABLE",
                                                "DATA_LOSS",
                                                "UNAUTHENTICATED"};
  const size_t index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

std::string ErrorJson(const Status& status) {
  nlohmann::ordered_json error;
  error["code"] = GrpcCode(status.code());
  error["message"] = Message(status);
  error["details"] = nlohmann::ordered_json::array();
  return error.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace weir
