// SPDX-License-Identifier: Apache-2.0
#include "datapath/api/c_support.h"

#include <atomic>
#include <cmath>

namespace weir::c_api {

weir_status ToC(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return WEIR_OK;
    case StatusCode::kInvalidArgument:
      return WEIR_INVALID_ARGUMENT;
    case StatusCode::kNotFound:
      return WEIR_NOT_FOUND;
    case StatusCode::kFailedPrecondition:
      return WEIR_FAILED_PRECONDITION;
    case StatusCode::kDataLoss:
      return WEIR_DATA_LOSS;
    case StatusCode::kUnavailable:
      return WEIR_PEER_UNAVAILABLE;
    case StatusCode::kDeadlineExceeded:
      return WEIR_DEADLINE_EXCEEDED;
    case StatusCode::kResourceExhausted:
      return WEIR_RESOURCE_EXHAUSTED;
    case StatusCode::kAborted:
      return WEIR_ABORTED;
    default:
      return WEIR_INTERNAL;  // codes of absl that this library never uses
  }
}

LastError& Last() {
  thread_local LastError last;
  return last;
}

uint64_t NextOwner() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1);
}

std::string Text(const char* text, const char* otherwise) {
  return text == nullptr || *text == '\0' ? otherwise : text;
}

StatusOr<Duration> Timeout(double seconds, const char* name, double otherwise) {
  if (std::isnan(seconds) || seconds < 0 || seconds > 1e6) {
    return InvalidArgument(StrCat(name, ": expected 0..1e6 seconds, found ", seconds));
  }
  return FromSeconds(seconds == 0 ? otherwise : seconds);
}

void CopyText(const std::string& text, char* buffer, size_t size) {
  if (buffer == nullptr || size == 0) return;
  const size_t copied = std::min(size - 1, text.size());
  std::memcpy(buffer, text.data(), copied);
  buffer[copied] = '\0';
}

}  // namespace weir::c_api
