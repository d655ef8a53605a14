// SPDX-License-Identifier: Apache-2.0
// The HTTP server without the rest of the controller.

#include "controller/service/rest_server.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace weir {
namespace {

/// Gives the calling thread priority on its core until it waits, so that threads that it starts run
/// after it.
bool RunBeforeOthers() {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &allowed)) CPU_SET(core, &one);
  }
  const sched_param first{.sched_priority = 1};
  return sched_setaffinity(0, sizeof one, &one) == 0 &&
         sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0;
}

TEST(RestServerTest, StopsBeforeItsThreadHasRun) {
  const auto store = OpenSqliteStore(":memory:");
  ASSERT_TRUE(store.ok()) << ToString(store.status());
  EventHub events;
  Fleet fleet(FleetOptions{}, RealClock(), **store, events);
  Executor executor;
  const Authenticator anyone = Authenticator::Open();
  bool alone = false;
  std::thread runner([&] {  // a separate thread, so that core and priority end with it
    alone = RunBeforeOthers();
    auto server =
        RestServer::Start({.host = "127.0.0.1", .port = 0}, executor, fleet, events, anyone);
    ASSERT_TRUE(server.ok()) << ToString(server.status());
    (*server)->Stop();
  });
  runner.join();
  if (!alone) GTEST_SKIP() << "no right to a priority (CAP_SYS_NICE): the thread may have run";
}

}  // namespace
}  // namespace weir
