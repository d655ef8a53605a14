// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors as values. absl::Status represents them because its codes are those of gRPC. Only this
// header converts between absl's own string_view (Debian builds absl with it) and std types.

#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weir {

using absl::Status;
using absl::StatusCode;
using absl::StatusOr;

/// Concatenates the arguments as `operator<<` prints them. Too slow for hot paths.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

inline Status OkStatus() { return absl::OkStatus(); }

/// A status with `code` and `message`. Messages are lowercase without a full stop, and state what
/// was expected and found.
Status MakeStatus(StatusCode code, std::string_view message);

Status InvalidArgument(
    std::string_view message);              // the caller's argument or a policy value is wrong
Status NotFound(std::string_view message);  // an unknown name; lists the valid ones
Status FailedPrecondition(std::string_view message);  // right call, wrong state
Status DataLoss(std::string_view message);            // bytes from a peer or file are malformed
Status Unavailable(std::string_view message);         // a peer is gone; names it
Status DeadlineExceeded(std::string_view message);    // a wait ran out; names whom it waited for
Status ResourceExhausted(std::string_view message);   // a bound was reached; names the bound
Status Unimplemented(std::string_view message);
Status Internal(std::string_view message);
Status Aborted(std::string_view message);  // another rank or part ended the operation

/// The message of `status` as a std::string.
std::string Message(const Status& status);
/// "CODE: message", for logs.
std::string ToString(const Status& status);
/// The same status with "`context`: " before its message. OK remains OK.
Status Annotate(const Status& status, std::string_view context);

}  // namespace weir

#define WEIR_CONCAT_INNER(a, b) a##b
#define WEIR_CONCAT(a, b) WEIR_CONCAT_INNER(a, b)

/// Returns the status from the enclosing function when `expr` is not OK.
#define WEIR_RETURN_IF_ERROR(expr)             \
  do {                                         \
    ::weir::Status weir_status = (expr);       \
    if (!weir_status.ok()) return weir_status; \
  } while (false)

/// WEIR_ASSIGN_OR_RETURN(auto x, Make()) assigns the value or returns the error.
#define WEIR_ASSIGN_OR_RETURN(lhs, expr)                   \
  auto WEIR_CONCAT(weir_statusor_, __LINE__) = (expr);     \
  if (!WEIR_CONCAT(weir_statusor_, __LINE__).ok()) {       \
    return WEIR_CONCAT(weir_statusor_, __LINE__).status(); \
  }                                                        \
  lhs = std::move(WEIR_CONCAT(weir_statusor_, __LINE__)).value()
