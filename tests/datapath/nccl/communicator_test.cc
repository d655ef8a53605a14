// SPDX-License-Identifier: Apache-2.0
// Errors of NCCL itself, where it is found and where it is not. Exchanges are tested in
// tests/datapath/session/devices/node_devices_test.cc.

#include "datapath/nccl/communicator.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir::nccl {
namespace {

using ::testing::HasSubstr;

TEST(CommunicatorTest, SaysWhetherTheLibraryIsThere) {
  if (dlopen("libnccl.so.2", RTLD_NOW) != nullptr) {
    // Without a driver it makes an id, but no communicator.
    const StatusOr<UniqueId> id = NewId();
    ASSERT_TRUE(id.ok()) << ToString(id.status());
    const auto joined = Communicator::Join(*id, 1, 1);  // no such place
    EXPECT_EQ(joined.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(ToString(joined.status()), HasSubstr("NCCL: ncclCommInitRankConfig: "));
    return;
  }
  for (const Status& status : {NewId().status(), Communicator::Join({}, 0, 2).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(ToString(status), HasSubstr("NCCL is not there: libnccl.so.2"));
  }
}

}  // namespace
}  // namespace weir::nccl
