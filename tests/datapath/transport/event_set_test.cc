// SPDX-License-Identifier: Apache-2.0
// The set of watched descriptors: which events it reports, when, and to which thread.

#include "datapath/transport/mesh/event_set.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <thread>

#include "datapath/transport/mesh/socket.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {
using mesh::EventSet;
using mesh::UniqueFd;
using std::chrono::milliseconds;
constexpr uint32_t kIn = EPOLLIN | EPOLLET;

UniqueFd NewEventFd() { return UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

void Signal(const UniqueFd& event_fd) {
  const uint64_t one = 1;
  ASSERT_EQ(write(event_fd.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

class EventSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StatusOr<std::unique_ptr<EventSet>> made = mesh::MakeEventSet();
    ASSERT_TRUE(made.ok()) << made.status();
    set = std::move(*made);
  }

  // Returns the bits, by data, of all events until there is one, and for a little longer.
  std::map<uint64_t, uint32_t> News(Duration patience = std::chrono::seconds(10)) {
    std::map<uint64_t, uint32_t> news;
    const TimePoint end = RealClock().Now() + patience;
    while (RealClock().Now() < end) {
      const auto events = set->Wait(news.empty() ? end - RealClock().Now() : milliseconds(20));
      EXPECT_TRUE(events.ok()) << events.status();
      if (!events.ok() || (events->empty() && !news.empty())) break;
      EXPECT_LE(events->size(), 64u);
      for (const mesh::Event& event : *events) news[event.data] |= event.bits;
    }
    return news;
  }
  void ExpectQuiet() { EXPECT_TRUE(News(milliseconds(50)).empty()); }

  std::unique_ptr<EventSet> set;
};

TEST_F(EventSetTest, TellsWhatIsTrueWhenAddedOnceOnly) {
  const UniqueFd event_fd = NewEventFd();
  Signal(event_fd);
  ASSERT_TRUE(set->Add(event_fd.get(), kIn, 7).ok());
  EXPECT_EQ(News(), (std::map<uint64_t, uint32_t>{{7, EPOLLIN}}));
  ExpectQuiet();  // it is still readable, but nothing new happened
  Signal(event_fd);
  EXPECT_EQ(News(), (std::map<uint64_t, uint32_t>{{7, EPOLLIN}}));
  ExpectQuiet();
}

TEST_F(EventSetTest, LookingWithoutWaitingFindsNews) {
  const UniqueFd event_fd = NewEventFd();
  ASSERT_TRUE(set->Add(event_fd.get(), kIn, 7).ok());
  ASSERT_TRUE(set->Wait(Duration(0))->empty());
  Signal(event_fd);
  const TimePoint end = Within(kPatience);
  size_t found = 0;
  while (found == 0 && RealClock().Now() < end) found = set->Wait(Duration(0))->size();
  EXPECT_EQ(found, 1u);
}

TEST_F(EventSetTest, WaitsAsLongAsItIsTold) {
  const UniqueFd event_fd = NewEventFd();
  ASSERT_TRUE(set->Add(event_fd.get(), kIn, 7).ok());
  const TimePoint begin = RealClock().Now();
  // A signal may end a wait earlier.
  int waits = 0;
  while (RealClock().Now() - begin < milliseconds(30) && ++waits < 20) {
    EXPECT_TRUE(set->Wait(milliseconds(30))->empty());
  }
  EXPECT_GE(RealClock().Now() - begin, milliseconds(30));
  EXPECT_LT(RealClock().Now() - begin, std::chrono::seconds(5));
}

TEST_F(EventSetTest, AnotherThreadEndsAWait) {
  const UniqueFd event_fd = NewEventFd();
  ASSERT_TRUE(set->Add(event_fd.get(), kIn, 7).ok());
  std::thread signaller([&] { Signal(event_fd); });
  EXPECT_EQ(News().count(7), 1u);
  signaller.join();
}

TEST_F(EventSetTest, AThreadMayAddAndEndAndOthersWait) {
  const UniqueFd event_fd = NewEventFd();
  std::thread([&] { ASSERT_TRUE(set->Add(event_fd.get(), kIn, 7).ok()); }).join();
  for (int turn = 0; turn < 3; ++turn) {
    (void)News(milliseconds(20));  // adding a descriptor may report its present state
    std::thread([&] {
      (void)News(milliseconds(20));
      Signal(event_fd);
      EXPECT_EQ(News().count(7), 1u);
    }).join();
    Signal(event_fd);
    EXPECT_EQ(News().count(7), 1u);
  }
}

TEST_F(EventSetTest, TellsOfHangUps) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd mine(fds[0]);
  UniqueFd other(fds[1]);
  ASSERT_TRUE(set->Add(mine.get(), kIn | EPOLLOUT | EPOLLRDHUP, 9).ok());
  EXPECT_EQ(News(), (std::map<uint64_t, uint32_t>{{9, EPOLLOUT}}));
  other.Reset();
  EXPECT_EQ(News()[9] & (EPOLLHUP | EPOLLRDHUP | EPOLLIN), EPOLLHUP | EPOLLRDHUP | EPOLLIN);
}

// More events than one call reports.
TEST_F(EventSetTest, TellsOfManyAndOfManyTimes) {
  constexpr uint64_t kCount = 200;
  std::vector<UniqueFd> event_fds;
  for (uint64_t i = 0; i < kCount; ++i) {
    event_fds.push_back(NewEventFd());
    ASSERT_TRUE(set->Add(event_fds.back().get(), kIn, i).ok());
  }
  ExpectQuiet();
  for (int turn = 0; turn < 20; ++turn) {
    for (const UniqueFd& event_fd : event_fds) Signal(event_fd);
  }
  EXPECT_EQ(News().size(), kCount);
  ExpectQuiet();
  for (const UniqueFd& event_fd : event_fds) Signal(event_fd);
  EXPECT_EQ(News().size(), kCount);
}

TEST_F(EventSetTest, ClearedItKeepsNothingOpen) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd mine(fds[0]);
  const UniqueFd other(fds[1]);
  ASSERT_TRUE(set->Add(mine.get(), kIn, 9).ok());
  ExpectQuiet();
  set->Clear();
  mine.Reset();
  const timeval patience = {.tv_sec = 10, .tv_usec = 0};
  ASSERT_EQ(setsockopt(other.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  char byte;
  ssize_t n;
  do {
    n = read(other.get(), &byte, 1);
  } while (n < 0 && errno == EINTR);
  EXPECT_EQ(n, 0);
  ExpectQuiet();
}

}  // namespace
}  // namespace weir::testing
