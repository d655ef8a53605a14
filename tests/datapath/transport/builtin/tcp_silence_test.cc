// SPDX-License-Identifier: Apache-2.0
// Half-open connections: a host that no longer answers is distinguished from one that is alive and
// sends nothing. A socket filter that drops all input makes a host silent.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>

#include <thread>

#include "datapath/transport/mesh/connection.h"
#include "tests/datapath/transport/builtin/raw_peer.h"
#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank 0 of two, which gives up a silent host after a second, and a raw rank 1.
class TcpSilenceTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    TransportOptions options;
    options.job = 93;
    options.world = 2;
    options.connections = GetParam();
    options.host_silence_min = std::chrono::seconds(1);
    auto transport = (*Transports().Find("tcp"))->Create(options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    rank0_ = std::move(*transport);
    Status status;
    std::thread connecting([&] {
      status = rank0_->Connect({rank0_->address(), "raw"}, Within(kPatience));
    });
    for (int i = 0; i < GetParam(); ++i) {
      raw_.emplace_back(rank0_->address());
      EXPECT_TRUE(raw_.back()
                      .Introduce({.job = 93,
                                  .rank = 1,
                                  .world = 2,
                                  .connections = static_cast<uint16_t>(GetParam()),
                                  .connection = static_cast<uint16_t>(i)})
                      .ok());
    }
    connecting.join();
    ASSERT_TRUE(status.ok()) << status;
  }

  // From here on the host of rank 1 does not see its input.
  void CutOff() {
    sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program = {1, &drop};
    for (const RawPeer& raw : raw_) {
      ASSERT_EQ(setsockopt(raw.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
    }
  }

  Status WaitFor(const StatusOr<Ticket>& ticket, double seconds) {
    return ticket.ok() ? rank0_->Wait(*ticket, Within(seconds)).status() : ticket.status();
  }

  std::unique_ptr<Transport> rank0_;
  std::vector<RawPeer> raw_;
};

TEST_P(TcpSilenceTest, HostThatVanishedWhileItIsWaitedForIsNamedBeforeTheDeadline) {
  CutOff();
  Bytes buffer(8);
  const Status status = WaitFor(rank0_->PostReceive(1, buffer), kPatience);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1 (raw)"), HasSubstr("no sign of life"),
                                     HasSubstr("1 s were allowed")));
}

TEST_P(TcpSilenceTest, HostThatVanishedUnderASendIsNamedBeforeTheDeadline) {
  CutOff();
  const Bytes payload(32 << 20);  // more than the socket takes
  const Status status = WaitFor(rank0_->PostSend(1, {}, payload), kPatience);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1 (raw)"), HasSubstr("no sign of life")));
}

TEST_P(TcpSilenceTest, LivingHostWhoseRankSaysNothingIsLeftToTheDeadline) {
  Bytes buffer(8);
  const Status status = WaitFor(rank0_->PostReceive(1, buffer), 2.5);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
}

TEST_P(TcpSilenceTest, LivingHostWhoseRankReadsNothingIsLeftToTheDeadline) {
  const Bytes payload(32 << 20);
  const Status status = WaitFor(rank0_->PostSend(1, {}, payload), 2.5);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
}

INSTANTIATE_TEST_SUITE_P(Connections, TcpSilenceTest, ::testing::Values(1, 3));

// ---- how the kernel's information is interpreted

class SaidSilence : public mesh::ByteStream {
 public:
  Silence silence;
  ssize_t Write(std::span<const iovec> /*parts*/) override { return -EAGAIN; }
  ssize_t Read(std::span<const iovec> /*parts*/) override { return -EAGAIN; }
  void CloseWrite() override {}
  Status Register(mesh::EventSet& /*events*/, uint32_t /*index*/) override { return OkStatus(); }
  Silence HostSilence() const override { return silence; }
  PathSample Sample(int /*peer*/) const override { return {}; }
};

TEST(HostSilenceTest, TenRoundTripsTwiceInARowAreTooLong) {
  using std::chrono::seconds;
  SaidSilence stream;
  mesh::Connection connection(0, 1, "far", stream);
  const Duration least = seconds(10);
  const auto look = [&](Duration lasts, Duration round_trip) {
    stream.silence = {lasts, round_trip};
    return connection.CheckHost(least);
  };
  EXPECT_TRUE(look(seconds(11), seconds(0)).ok());  // the request may have been sent just now
  EXPECT_TRUE(look(seconds(9), seconds(0)).ok());
  EXPECT_TRUE(look(seconds(11), seconds(0)).ok());
  const Status status = look(seconds(12), seconds(0));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1 (far)"), HasSubstr("for 12 s"),
                                     HasSubstr("10 s were allowed")));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(look(seconds(30), seconds(3)).ok());  // a slow path
  EXPECT_TRUE(look(seconds(31), seconds(3)).ok());
  EXPECT_THAT(Message(look(seconds(31), seconds(3))), HasSubstr("30 s were allowed"));
}

}  // namespace
}  // namespace weir::testing
