#pragma once
// WEIR_CHECK: a bug in our own code ends the process with its place; it stays on in release builds.
// Never for anything that a peer, a file or a user can cause: those are Status.

#include <cstdio>
#include <cstdlib>

#define WEIR_CHECK(condition)                                                                    \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      std::fprintf(stderr, "weir: check failed: %s at %s:%d\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                              \
    }                                                                                            \
  } while (false)
