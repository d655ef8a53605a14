// A program may end, by exit() or by a return from main, with sessions open: their threads go on
// while the process's exit handlers run.
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

// Whatever destructors freed is written over, so that a use of it shows.
void OverwriteFreedMemory() {
  for (size_t size = 16; size <= 1024; size += 16) {
    for (int i = 0; i < 64; ++i) {
      // Never freed: the next one must be another.
      std::memset(std::malloc(size), 0xff, size);
    }
  }
}

// Handlers run in the reverse order of their registration, so the first use within the handlers'
// lifetime must come after: the child is started anew, not forked.
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
