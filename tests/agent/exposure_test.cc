// SPDX-License-Identifier: Apache-2.0
// Nothing of the agent is open to other machines unless the operator said so.
#include "agent/exposure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir::agent {
namespace {

using ::testing::HasSubstr;

TEST(ExposureTest, OnLoopbackNothingIsAskedFor) {
  EXPECT_TRUE(CheckExposure({.address = "127.0.0.1",
                             .metrics = "127.0.0.1:7790",
                             .health = "localhost:7791",
                             .ranks = "[::1]:7447"})
                  .ok());
}

TEST(ExposureTest, EveryOpenListenerMustBeNamed) {
  const std::string elsewhere = "10.0.0.7:1";
  for (const auto& [exposure, name, flag] :
       {std::tuple<Exposure, std::string, std::string>{
            {.address = "10.0.0.7"}, "probes", "--address 10.0.0.7"},
        {{.address = "::1", .metrics = elsewhere}, "metrics", "--metrics"},
        {{.address = "127.0.0.1", .health = "0.0.0.0:1"}, "health", "--health"},
        {{.address = "127.0.0.1", .ranks = "127.evil.example:1"}, "ranks", "--listen-ranks"}}) {
    const Status refused = CheckExposure(exposure);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(Message(refused), HasSubstr(flag));
    EXPECT_THAT(Message(refused), HasSubstr("--unprotected " + name));
    Exposure named = exposure;
    named.unprotected = {"probes", "metrics", "health", "ranks"};
    EXPECT_TRUE(CheckExposure(named).ok()) << name;
    std::erase(named.unprotected, name);
    EXPECT_FALSE(CheckExposure(named).ok()) << name;
  }
}

TEST(ExposureTest, TlsAndATokenProtectMetrics) {
  EXPECT_TRUE(
      CheckExposure({.address = "127.0.0.1", .metrics = "10.0.0.7:1", .metrics_protected = true})
          .ok());
}

TEST(ExposureTest, AnUnknownNameIsAnError) {
  EXPECT_THAT(Message(CheckExposure({.address = "127.0.0.1", .unprotected = {"all"}})),
              HasSubstr("valid: probes, metrics, health, ranks"));
}

}  // namespace
}  // namespace weir::agent
