// SPDX-License-Identifier: Apache-2.0
// Ranks that hold the job's key and ranks that hold none or another, over every transport.

#include <thread>

#include "tests/datapath/transport/conformance.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Key { kNone, kRight, kWrong };

class TransportKeys : public TransportConformance {
 protected:
  std::unique_ptr<Transport> New(int rank, Key key, bool encrypt = false) const {
    TransportOptions options = FreshJob();
    options.job = 78;
    options.rank = rank;
    options.world = 2;
    options.listen = ListenAddress(*GetParam(), rank);
    if (key != Key::kNone) UseKey(&options);
    if (key == Key::kWrong) (*options.job_key)[0] ^= std::byte{1};
    options.encrypt = encrypt;
    auto transport = GetParam()->Create(options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return std::move(*transport);
  }
};

// The error that rank 1 gets, and what rank 0 logs about it.
std::pair<std::string, std::string> Disagree(std::unique_ptr<Transport> rank0,
                                             std::unique_ptr<Transport> rank1) {
  Logged logged;
  const std::vector<TransportAddress> addresses = {rank0->address(), rank1->address()};
  Status status0;
  std::thread accepting([&] { status0 = rank0->Connect(addresses, Within(kPatience)); });
  const Status status1 = rank1->Connect(addresses, Within(kPatience));
  EXPECT_EQ(status1.code(), StatusCode::kFailedPrecondition) << status1;
  const TimePoint end = Within(5);  // rank 0 reads what rank 1 sent last
  while (logged.text().empty() && RealClock().Now() < end) std::this_thread::yield();
  rank0->Interrupt();
  accepting.join();
  return {Message(status1), logged.text()};
}

TEST_P(TransportKeys, OneSideWithoutAKeyLearnsWhich) {
  const auto [one, note_of_one] = Disagree(New(0, Key::kRight), New(1, Key::kNone));
  EXPECT_THAT(one, HasSubstr("refused rank 1: job key: rank 0 has one, rank 1 none"));
  EXPECT_THAT(note_of_one, HasSubstr("rank 0 has one, rank 1 none"));
  const auto [two, note_of_two] = Disagree(New(0, Key::kNone), New(1, Key::kRight));
  EXPECT_THAT(two, HasSubstr("refused rank 1: job key: rank 1 has one, rank 0 none"));
  EXPECT_THAT(note_of_two, HasSubstr("rank 1 has one, rank 0 none"));
}

TEST_P(TransportKeys, UnlikeKeysAreFoundOnBothSides) {
  auto rank0 = New(0, Key::kRight), rank1 = New(1, Key::kWrong);
  const std::string name = StrCat("rank 0 (", rank0->address(), ")");
  const auto [hears, notes] = Disagree(std::move(rank0), std::move(rank1));
  EXPECT_THAT(hears, HasSubstr(name + " does not hold the job's key of rank 1"));
  EXPECT_THAT(notes, AllOf(HasSubstr("rank 0 refused "),
                           HasSubstr("does not hold the job's key (it claims to be rank 1)")));
}

TEST_P(TransportKeys, UnlikeEncryptionIsFound) {
  const auto [hears, notes] = Disagree(New(0, Key::kRight, true), New(1, Key::kRight));
  EXPECT_THAT(hears, HasSubstr("encrypt: rank 0 does, rank 1 does not"));
  EXPECT_THAT(notes, HasSubstr("encrypt: rank 0 does, rank 1 does not"));
}

TEST_P(TransportKeys, AStrangerTakesNobodysPlace) {
  Logged logged;
  auto rank0 = New(0, Key::kRight), rank1 = New(1, Key::kRight), stranger = New(1, Key::kWrong);
  const std::vector<TransportAddress> addresses = {rank0->address(), rank1->address()};
  Status status0;
  std::thread accepting([&] { status0 = rank0->Connect(addresses, Within(kPatience)); });
  EXPECT_STATUS(stranger->Connect({addresses[0], stranger->address()}, Within(kPatience)),
                kFailedPrecondition, HasSubstr("does not hold the job's key"));
  const Status status1 = rank1->Connect(addresses, Within(kPatience));
  accepting.join();
  ASSERT_TRUE(status0.ok()) << status0;
  ASSERT_TRUE(status1.ok()) << status1;
  EXPECT_EQ(rank0->unauthenticated_peers(), 0);
  const Bytes payload = Pattern(1000, 3);
  Bytes buffer(1000);
  RunRanks(2, [&](int r) {
    if (r == 1) Done(*rank1, rank1->PostSend(0, {}, payload));
    if (r == 0) Done(*rank0, rank0->PostReceive(1, buffer));
  });
  EXPECT_EQ(buffer, payload);
}

INSTANTIATE_TEST_SUITE_P(EveryTransport, TransportKeys, ::testing::ValuesIn(UsableFactories()),
                         [](const auto& info) { return info.param->Traits().name; });

}  // namespace
}  // namespace weir::testing
