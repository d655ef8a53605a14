// SPDX-License-Identifier: Apache-2.0
#pragma once
// WEIR_CHECK ends the process with file and line for a bug in our own code, in release builds, too.
// It is never used for anything that a peer, a file or a user can cause; those are a Status.

#include <cstdio>
#include <cstdlib>

#define WEIR_CHECK(condition)                                                                    \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      std::fprintf(stderr, "weir: check failed: %s at %s:%d\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                              \
    }                                                                                            \
  } while (false)
