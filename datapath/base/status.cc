// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/status.h"

namespace weir {
namespace {
absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }
}  // namespace

Status MakeStatus(StatusCode code, std::string_view message) { return Status(code, Absl(message)); }
Status InvalidArgument(std::string_view m) { return MakeStatus(StatusCode::kInvalidArgument, m); }
Status NotFound(std::string_view m) { return MakeStatus(StatusCode::kNotFound, m); }
Status FailedPrecondition(std::string_view m) {
  return MakeStatus(StatusCode::kFailedPrecondition, m);
}
Status DataLoss(std::string_view m) { return MakeStatus(StatusCode::kDataLoss, m); }
Status Unavailable(std::string_view m) { return MakeStatus(StatusCode::kUnavailable, m); }
Status DeadlineExceeded(std::string_view m) { return MakeStatus(StatusCode::kDeadlineExceeded, m); }
Status ResourceExhausted(std::string_view m) {
  return MakeStatus(StatusCode::kResourceExhausted, m);
}
Status Unimplemented(std::string_view m) { return MakeStatus(StatusCode::kUnimplemented, m); }
Status Internal(std::string_view m) { return MakeStatus(StatusCode::kInternal, m); }
Status Aborted(std::string_view m) { return MakeStatus(StatusCode::kAborted, m); }

std::string Message(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}

std::string ToString(const Status& status) { return status.ToString(); }

Status Annotate(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  return MakeStatus(status.code(), StrCat(context, ": ", Message(status)));
}

}  // namespace weir
