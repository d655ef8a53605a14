// SPDX-License-Identifier: Apache-2.0
// Replicas that differ are detected, named on every rank, and end the job.

#include "datapath/session/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "tests/datapath/session/session_world.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;

// Changes one byte of a payload that was received and verified, as broken memory would.
class DamagingTransport : public Transport {
 public:
  DamagingTransport(std::unique_ptr<Transport> inner, const std::atomic<bool>& damages)
      : inner_(std::move(inner)), damages_(damages) {}
  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  const TransportAddress& address() const override { return inner_->address(); }
  Status Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) override {
    return inner_->Connect(addresses, deadline);
  }
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override {
    return inner_->PostSend(peer, header, payload);
  }
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override {
    StatusOr<Ticket> ticket = inner_->PostReceive(peer, buffer);
    if (ticket.ok()) buffers_[*ticket] = buffer;
    return ticket;
  }
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override {
    StatusOr<FrameHeader> header = inner_->Wait(ticket, deadline);
    const auto buffer = buffers_.find(ticket);
    if (damages_ && header.ok() && buffer != buffers_.end() && header->payload_bytes > 100) {
      buffer->second[17] ^= std::byte{1};
    }
    return header;
  }
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override {
    return inner_->WaitAny(tickets, deadline);
  }
  void Wake() override { inner_->Wake(); }
  void Abort(std::string_view reason) override { inner_->Abort(reason); }
  void Abandon(std::string_view reason) override { inner_->Abandon(reason); }
  void Interrupt() override { inner_->Interrupt(); }
  std::vector<PathSample> Samples() const override { return inner_->Samples(); }
  uint64_t bytes_sent() const override { return inner_->bytes_sent(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::atomic<bool>& damages_;
  std::map<Ticket, std::span<std::byte>> buffers_;
};

constexpr int kWorld = 4;
constexpr int kDamaged = 2;

class ReplicasTest : public ::testing::Test {
 protected:
  explicit ReplicasTest(uint64_t every = 4) {
    const auto inproc = MakeInprocFactory();
    std::vector<TransportAddress> addresses;
    for (int rank = 0; rank < kWorld; ++rank) {
      SessionOptions options;
      options.job = "replicas";
      options.rank = rank;
      options.world = kWorld;
      options.operation_timeout = options.connect_timeout = std::chrono::seconds(20);
      options.compare_every_steps = every;
      TransportOptions transport;
      transport.job = 77;
      transport.rank = rank;
      transport.world = kWorld;
      SessionParts parts;
      parts.transport = std::make_unique<DamagingTransport>(inproc->Create(transport).value(),
                                                            rank == kDamaged ? damages : never);
      sessions.push_back(Session::Create(options, std::move(parts)).value());
      addresses.push_back(sessions.back()->address());
    }
    RunRanks(kWorld, [&](int rank) { EXPECT_TRUE(sessions[rank]->Connect(addresses).ok()); });
    for (int b = 0; b < 3; ++b) {
      for (auto& session : sessions) {
        keys[b] = session->DefineBucket({{StrCat("weight", b), 1000, 0}}, Dtype::kFloat32).value();
      }
    }
  }
  ~ReplicasTest() override {
    RunRanks(kWorld, [&](int rank) { sessions[rank]->Close(); });
  }

  std::vector<Status> Step(const std::function<void(int rank)>& within = {}) {
    std::vector<Status> statuses(kWorld);
    RunRanks(kWorld, [&](int rank) {
      std::vector<std::vector<float>> data(3, std::vector<float>(1000, 1.0f));
      Session& session = *sessions[rank];
      EXPECT_TRUE(session.BeginStep().ok());
      for (int b = 0; b < 3; ++b) {
        (void)session.AllReduce(keys[b], data[b].data(), 1, nullptr);  // EndStep returns the error
      }
      if (within) within(rank);
      statuses[rank] = session.EndStep().status();
    });
    return statuses;
  }

  std::atomic<bool> damages{false}, never{false};
  std::vector<std::unique_ptr<Session>> sessions;
  std::array<uint64_t, 3> keys{};
};

TEST_F(ReplicasTest, EqualReplicasAreComparedNowAndThen) {
  for (int step = 0; step < 10; ++step) {  // each comparison is part of the next step
    for (const Status& status : Step()) EXPECT_TRUE(status.ok()) << ToString(status);
  }
  for (auto& session : sessions) EXPECT_EQ(session->Stats().replicas_compared, 3u);  // 0, 4, 8
}

TEST_F(ReplicasTest, ADifferentSumIsNamedOnEveryRank) {
  for (int step = 0; step < 4; ++step) Step();
  damages = true;
  for (const Status& status : Step()) EXPECT_TRUE(status.ok()) << "4, which is compared in 5";
  const std::vector<Status> statuses = Step();
  for (int rank = 0; rank < kWorld; ++rank) {
    const std::string words = ToString(statuses[rank]);
    EXPECT_THAT(words, HasSubstr("step 4"));
    EXPECT_THAT(words, HasSubstr("different sums of bucket"));
    EXPECT_THAT(words, HasSubstr("'weight0'")) << "the first of three";
    EXPECT_EQ(statuses[rank].code(), StatusCode::kDataLoss);
    EXPECT_EQ(sessions[rank]->Stats().replicas_compared, 1u);
  }
}

TEST_F(ReplicasTest, ParametersAreComparedAmongThoseWhoReportThem) {
  const auto reports = [&](uint64_t of_rank_3) {
    return [this, of_rank_3](int rank) {
      EXPECT_TRUE(sessions[rank]->compares());
      if (rank != 1) sessions[rank]->ReportParameters(rank == 3 ? of_rank_3 : 5);
    };
  };
  for (const Status& status : Step(reports(5))) EXPECT_TRUE(status.ok()) << ToString(status);
  for (int step = 1; step < 4; ++step) {
    for (const Status& status : Step([&](int rank) { EXPECT_FALSE(sessions[rank]->compares()); })) {
      EXPECT_TRUE(status.ok()) << ToString(status);
    }
  }
  Step(reports(6));
  for (const Status& status : Step()) {
    EXPECT_THAT(ToString(status), HasSubstr("parameters differ: ranks 0, 2 hold "
                                            "0000000000000005, rank 3 holds 0000000000000006"));
  }
}

TEST_F(ReplicasTest, ARankThatLeavesLetsAComparisonEnd) {
  for (const Status& status : Step()) EXPECT_TRUE(status.ok()) << ToString(status);
  std::atomic<bool> leaving{false};
  RunRanks(kWorld, [&](int rank) {
    Session& session = *sessions[rank];
    while (rank != 0 && !leaving) std::this_thread::yield();
    EXPECT_TRUE(session.BeginStep().ok());  // compares what step 0 has delivered
    if (rank == 0) leaving = true;
    session.Close();
    EXPECT_TRUE(session.failure().ok()) << rank << ": " << ToString(session.failure());
    EXPECT_EQ(session.Stats().replicas_compared, 1u) << rank;
  });
}

TEST_F(ReplicasTest, ARankThatLeavesDoesNotWaitForLongForOthers) {
  for (const Status& status : Step()) EXPECT_TRUE(status.ok()) << ToString(status);
  EXPECT_TRUE(sessions[0]->BeginStep().ok());
  const TimePoint begin = RealClock().Now();
  sessions[0]->Close();
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 10) << "an operation may take 20 s";
}

class NeverComparedTest : public ReplicasTest {
 protected:
  NeverComparedTest() : ReplicasTest(0) {}
};

TEST_F(NeverComparedTest, WithoutComparisonADifferenceGoesUnseen) {
  damages = true;
  for (const Status& status : Step()) EXPECT_TRUE(status.ok()) << ToString(status);
  for (auto& session : sessions) EXPECT_EQ(session->Stats().replicas_compared, 0u);
}

}  // namespace
}  // namespace weir::testing
