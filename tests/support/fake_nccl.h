// SPDX-License-Identifier: Apache-2.0
#pragma once
// The controls of the library of fake_nccl.cc, and its counts.

#include <dlfcn.h>

#include <atomic>
#include <functional>

namespace weir::testing {

struct FakeNccl {
  /// Lets a stream wait until the function returns true (cuda::AwaitOnHost). Must be set.
  std::function<void(void* stream, std::function<bool()> is_done)> await;
  std::atomic<bool> stuck = false;      // nothing moves any more, and nobody says so
  std::atomic<bool> fails = false;      // communicators report an error
  std::atomic<int> refuses_place = -1;  // this member cannot join
  std::atomic<int> exchanges = 0;       // groups of calls of one member that have moved
  std::atomic<int> aborts = 0;
};

/// Loads the library from `path`, so that programs which look for NCCL by its name find it, and
/// gives it `controls`, which must outlive the communicators; null takes them away. Returns false
/// if it cannot be loaded.
inline bool UseFakeNccl(const char* path, FakeNccl* controls) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto set = reinterpret_cast<void (*)(FakeNccl*)>(dlsym(library, "weir_fake_nccl_controls"));
  if (set != nullptr) set(controls);
  return set != nullptr;
}

}  // namespace weir::testing
