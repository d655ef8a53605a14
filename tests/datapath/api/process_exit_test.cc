// SPDX-License-Identifier: Apache-2.0
// A program may end by exit() or by a return from main while sessions are open. Their threads keep
// running while the process's exit handlers run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "datapath/base/clock.h"
#include "datapath/codec/codec.h"
#include "datapath/collective/collective.h"
#include "datapath/transport/transport.h"

namespace weir {
namespace {

bool EverythingIsThere() {
  return Codecs().Find("top_k").ok() && Collectives().Find("ring").ok() &&
         Transports().Find("tcp").ok() && RealClock().UnixSeconds() > 0;
}

// Overwrites memory that destructors freed, so that uses of it are detected.
void OverwriteFreedMemory() {
  for (size_t size = 16; size <= 1024; size += 16) {
    for (int i = 0; i < 64; ++i) {
      // It is never freed, so that the next block is another one.
      std::memset(std::malloc(size), 0xff, size);
    }
  }
}

// Exit handlers run in the reverse order of their registration. So the library must be used for the
// first time after this handler was registered, and the child is a new program, not a fork.
TEST(ProcessExitDeathTest, WhatThreadsUseOutlivesExitHandlers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit([] {
          OverwriteFreedMemory();
          _exit(EverythingIsThere() ? 0 : 2);
        });
        std::exit(EverythingIsThere() ? 0 : 3);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weir
