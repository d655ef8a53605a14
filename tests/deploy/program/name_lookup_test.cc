// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/name_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/controller/fleet/fake_lookups.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

TEST(NameLookupTest, NumbersNeedNoLookup) {
  FakeLookups lookups;
  FakeClock clock;
  for (const char* host : {"127.0.0.1", "::1"}) {
    NameLookup lookup(host, lookups.Start(), clock);
    EXPECT_EQ(lookup.Address(Duration::zero()).value_or(""), host);
  }
  EXPECT_EQ(lookups.started, 0);
}

TEST(NameLookupTest, NoAnswerIsAnErrorUntilALaterCallSucceeds) {
  FakeLookups lookups;
  FakeClock clock;
  NameLookup lookup("sum.svc", lookups.Start(), clock);
  const auto silent = lookup.Address(std::chrono::milliseconds(250));
  EXPECT_EQ(silent.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Message(silent.status()), "no name server answered for host sum.svc within 0.25 s");
  EXPECT_EQ(lookups.waited, Duration(std::chrono::milliseconds(250)));
  lookups.answer = PendingLookup::Answer(std::vector<std::string>{"10.0.0.9"});
  EXPECT_EQ(lookup.Address(std::chrono::seconds(1)).value_or(""), "10.0.0.9");
  EXPECT_EQ(lookups.started, 1) << "one at a time";
  EXPECT_EQ(lookups.last_host, "sum.svc");
}

TEST(NameLookupTest, AnAddressStaysInUseWhileItIsLookedUpAgain) {
  FakeLookups lookups;
  FakeClock clock;
  NameLookup lookup("sum.svc", lookups.Start(), clock);
  lookups.answer = PendingLookup::Answer(std::vector<std::string>{"10.0.0.9", "10.0.0.10"});
  EXPECT_EQ(lookup.Address(std::chrono::seconds(1)).value_or(""), "10.0.0.9");
  lookups.answer.reset();
  clock.Advance(FromSeconds(NameLookup::kFreshS + 1));
  EXPECT_EQ(lookup.Address(std::chrono::seconds(1)).value_or(""), "10.0.0.9");
  EXPECT_EQ(lookups.started, 2);
  EXPECT_EQ(lookups.waited, Duration::zero()) << "nobody waits for what is known";
  lookups.answer = PendingLookup::Answer(Unavailable("no such name"));
  EXPECT_EQ(lookup.Address(std::chrono::seconds(1)).value_or(""), "10.0.0.9");
  lookup.Failed();
  EXPECT_EQ(lookup.Address(std::chrono::seconds(1)).value_or(""), "10.0.0.10");
  lookup.Failed();
  EXPECT_EQ(Message(lookup.Address(std::chrono::seconds(1)).status()), "no such name");
}

TEST(NameLookupTest, TheSystemKnowsThisHost) {
  auto pending = StartSystemLookup("localhost");
  const auto answer = pending->Wait(std::chrono::seconds(20));
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->ok()) << ToString(answer->status());
  EXPECT_THAT(**answer, testing::Contains(testing::AnyOf("127.0.0.1", "::1")));
  const auto bad = StartSystemLookup(std::string(300, 'x'))->Wait(std::chrono::seconds(20));
  ASSERT_TRUE(bad.has_value());
  EXPECT_EQ(bad->status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(bad->status()), HasSubstr("cannot look up host xxx"));
  StartSystemLookup("localhost");  // given up at once
}

}  // namespace
}  // namespace weir
