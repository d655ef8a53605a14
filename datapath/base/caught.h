// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts exceptions to Status. Our own code reports errors by Status. Exceptions of the standard
// library, above all for lack of memory, must neither cross the C interface nor end the process by
// leaving the function of a thread.

#include <pthread.h>

#include <exception>
#include <functional>
#include <new>
#include <thread>
#include <utility>

#include "datapath/base/status.h"

namespace weir {

/// kResourceExhausted, "out of memory". It is made at the first use of this file in the process, so
/// later calls allocate nothing. Thread-safe.
const Status& OutOfMemory() noexcept;

/// Returns what `body` returns, a Status or nothing (then OK), or a status for the exception that
/// it throws: `no_memory` for std::bad_alloc, or kInternal with its text. Never throws.
template <typename Body>
Status Caught(Body&& body, const Status& no_memory = OutOfMemory()) noexcept {
  try {
    try {
      if constexpr (std::is_void_v<decltype(body())>) {
        body();
        return OkStatus();
      } else {
        return body();
      }
    } catch (const std::bad_alloc&) {
      return no_memory;
    } catch (const std::exception& error) {
      return Internal(error.what());
    } catch (...) {
      return Internal("an exception of unknown type");
    }
  } catch (...) {
    return no_memory;  // there was not enough memory for the text
  }
}

/// Starts a thread called `name` (at most 15 characters). `body` handles its own errors. An
/// exception that leaves it ends only this thread and is logged with `name`. Throws
/// std::system_error when the system does not grant a thread.
std::thread StartThread(const char* name, std::function<void()> body);

}  // namespace weir
