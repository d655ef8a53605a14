// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of the C interfaces of Session and Communicator: codes, errors per thread,
// checked arguments. No exception crosses the C interface.

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "datapath/api/weir.h"
#include "datapath/base/caught.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"
#include "datapath/wire/channel_keys.h"

namespace weir::c_api {

weir_status ToC(const Status& status);

/// The last error of the calling thread, and the handle to which it belongs.
struct LastError {
  uint64_t owner = 0;  // 0: none
  std::string text;
};
LastError& Last();

/// A number for a handle. Numbers are never reused, unlike addresses. Thread-safe.
uint64_t NextOwner();

/// Runs `body` and converts its status, or its exception, to a code and the last error.
template <typename Body>
weir_status Guard(uint64_t owner, Body&& body) noexcept {
  const Status status = Caught(body);
  if (status.ok()) return WEIR_OK;
  (void)Caught([&] { Last() = {owner, Message(status)}; });
  return ToC(status);
}

/// The first part of every handle: its number and its process.
struct Handle {
  uint64_t id = NextOwner();       // never reused, unlike addresses
  const pid_t process = getpid();  // the process that made it and has its threads
};

/// Guard for a function of `handle`, which errors call `name`. kInvalidArgument: the handle is
/// null. kFailedPrecondition: a forked child called. `body` runs in neither case.
template <typename Body>
weir_status Guard(const Handle* handle, const char* name, Body&& body) noexcept {
  return Guard(handle == nullptr ? 0 : handle->id, [&]() -> Status {
    if (handle == nullptr) return InvalidArgument(StrCat(name, ": is null"));
    if (handle->process != getpid()) {
      return FailedPrecondition(StrCat(name, ": belongs to process ", handle->process,
                                       "; its threads are not in a forked child"));
    }
    return body();
  });
}

/// Copies the caller's struct, whose size shows the version of the header with which the caller was
/// built.
template <typename T>
StatusOr<T> ReadStruct(const T* given, const char* name) {
  if (given == nullptr) return InvalidArgument(StrCat(name, ": is null"));
  if (given->struct_size < sizeof(size_t) || given->struct_size > 4096) {
    return InvalidArgument(
        StrCat(name, ".struct_size: expected ", sizeof(T), ", found ", given->struct_size));
  }
  T copy{};
  std::memcpy(&copy, given, std::min(sizeof(T), given->struct_size));
  return copy;
}

/// `text`, or `otherwise` when it is null or empty.
std::string Text(const char* text, const char* otherwise);
/// `seconds`, or `otherwise` when 0. kInvalidArgument outside 0..1e6.
StatusOr<Duration> Timeout(double seconds, const char* name, double otherwise);
/// Reads the security fields of a struct into options with job_key, encrypt and unauthenticated.
/// kInvalidArgument: the bytes are not a key.
template <typename Given, typename Options>
Status ReadSecurity(const Given& given, Options* options) {
  if (given.job_key == nullptr && given.job_key_size != 0) {
    return InvalidArgument(StrCat("job_key: is null, its size ", given.job_key_size));
  }
  if (given.job_key != nullptr) {
    const auto* const bytes = static_cast<const std::byte*>(given.job_key);
    WEIR_ASSIGN_OR_RETURN(options->job_key, ToJobKey({bytes, given.job_key_size}));
  }
  options->encrypt = given.encrypt != 0;
  options->unauthenticated = given.unauthenticated != 0;
  return OkStatus();
}
/// Copies as much of `text` as fits, with a terminating zero. `buffer` may be null.
void CopyText(const std::string& text, char* buffer, size_t size);

}  // namespace weir::c_api
