#pragma once
// Where exceptions end. Our own code reports by Status; what the standard library throws (no memory
// above all) becomes one here, so that it neither crosses the C interface nor ends a process by
// leaving a thread's function.

#include <pthread.h>

#include <exception>
#include <functional>
#include <new>
#include <thread>
#include <utility>

#include "datapath/base/status.h"

namespace weir {

/// kResourceExhausted, "out of memory". Made when the process starts to use it first, so that
/// later calls allocate nothing. Thread-safe.
const Status& OutOfMemory() noexcept;

/// What `body` returns, a Status or nothing (then OK), or a status for what it throws:
/// `no_memory` for std::bad_alloc, kInternal with its text for anything else. Never throws.
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
    return no_memory;  // not even the text fitted into memory
  }
}

/// Starts a thread called `name` (at most 15 characters). `body` handles its own errors; an
/// exception that leaves it ends the thread, is logged under `name`, and harms nobody else.
/// Throws std::system_error where the system grants no thread.
std::thread StartThread(const char* name, std::function<void()> body);

}  // namespace weir
