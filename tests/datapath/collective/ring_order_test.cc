// SPDX-License-Identifier: Apache-2.0
// Rings in another order than that of the ranks: each rank sends to the right one, and every sum is
// right and the same on all ranks.

#include "tests/datapath/collective/harness.h"

namespace weir::testing {
namespace {

/// Records the ranks to which one rank sends.
class NotingTransport : public Transport {
 public:
  explicit NotingTransport(Transport& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  const TransportAddress& address() const override { return inner_.address(); }
  Status Connect(const std::vector<TransportAddress>&, TimePoint) override { return OkStatus(); }
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override {
    if (peers.empty() || peers.back() != peer) peers.push_back(peer);
    return inner_.PostSend(peer, header, payload);
  }
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override {
    return inner_.PostReceive(peer, buffer);
  }
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override {
    return inner_.Wait(ticket, deadline);
  }
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override {
    return inner_.WaitAny(tickets, deadline);
  }
  void Wake() override { inner_.Wake(); }
  void Abort(std::string_view reason) override { inner_.Abort(reason); }
  void Abandon(std::string_view reason) override { inner_.Abandon(reason); }
  void Interrupt() override { inner_.Interrupt(); }
  std::vector<PathSample> Samples() const override { return {}; }
  uint64_t bytes_sent() const override { return inner_.bytes_sent(); }

  std::vector<int> peers;

 private:
  Transport& inner_;
};

const std::vector<std::vector<int>> kOrders = {{0, 1}, {0, 2, 1}, {2, 0, 3, 1}, {4, 0, 3, 1, 2}};

/// Values whose sums depend on the order of addition.
std::vector<Contribution> ContributionsAlong(const std::vector<int>& order, size_t elements) {
  std::vector<Contribution> in(order.size());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    Contribution& one = in[rank];
    one.ring = order;
    one.dense.resize(elements);
    for (size_t i = 0; i < elements; ++i) {
      one.dense[i] = 0.1f * static_cast<float>((7 * i + 13 * rank) % 101) + 1e3f * (i % 3 == rank);
    }
    one.lanes = Bytes(one.dense);
    one.payload = Pattern(100 + 37 * rank, rank);
    for (uint32_t i = static_cast<uint32_t>(rank); i < elements; i += 5) one.selection.push_back(i);
  }
  return in;
}

/// Runs the operation and returns every rank's result. `peers[rank]` gets the ranks to which it
/// sent.
std::vector<Outcome> RunNoting(const std::vector<int>& order, const Collective& collective,
                               size_t elements, std::vector<std::vector<int>>* peers) {
  World world = MakeWorld("inproc", static_cast<int>(order.size()));
  const auto in = ContributionsAlong(order, elements);
  std::vector<Outcome> out(order.size());
  peers->assign(order.size(), {});
  RunRanks(static_cast<int>(order.size()), [&](int rank) {
    NotingTransport transport(*world[rank]);
    out[rank] = RunRank(transport, collective, in[rank], 256, Within(kPatience));
    (*peers)[rank] = transport.peers;
  });
  return out;
}

int NextOf(const std::vector<int>& order, int rank) {
  const auto place = std::find(order.begin(), order.end(), rank) - order.begin();
  return order[static_cast<size_t>(place + 1) % order.size()];
}

TEST(RingOrderTest, EveryRankSendsToTheNextOfTheOrderAlone) {
  for (const char* name : {"ring", "ring_all_gather"}) {
    for (const std::vector<int>& order : kOrders) {
      std::vector<std::vector<int>> peers;
      for (const Outcome& out : RunNoting(order, **Collectives().Find(name), 1000, &peers)) {
        ASSERT_TRUE(out.status.ok()) << name << ": " << out.status;
      }
      for (size_t rank = 0; rank < order.size(); ++rank) {
        EXPECT_EQ(peers[rank], std::vector{NextOf(order, static_cast<int>(rank))}) << name;
      }
    }
  }
}

TEST(RingOrderTest, SumsAreRightAndTheSameBytesOnEveryRank) {
  for (const std::vector<int>& order : kOrders) {
    for (const size_t elements : {0, 1, 3, 1000}) {
      std::vector<std::vector<int>> peers;
      const auto in = ContributionsAlong(order, elements);
      const auto out = RunNoting(order, **Collectives().Find("ring"), elements, &peers);
      for (size_t rank = 0; rank < order.size(); ++rank) {
        ASSERT_TRUE(out[rank].status.ok()) << out[rank].status;
        EXPECT_EQ(out[rank].lanes, out[0].lanes) << rank;
      }
      std::vector<float> sum(elements);
      if (elements > 0) std::memcpy(sum.data(), out[0].lanes.data(), out[0].lanes.size());
      for (size_t i = 0; i < elements; ++i) {
        double expected = 0;
        for (const Contribution& one : in) expected += one.dense[i];
        ASSERT_NEAR(sum[i], expected, 1e-6 * expected + 1e-6) << i;
      }
    }
  }
}

TEST(RingOrderTest, GatheredPayloadsStayInTheOrderOfRanks) {
  for (const std::vector<int>& order : kOrders) {
    std::vector<std::vector<int>> peers;
    const auto in = ContributionsAlong(order, 10);
    for (const Outcome& out :
         RunNoting(order, **Collectives().Find("ring_all_gather"), 10, &peers)) {
      ASSERT_TRUE(out.status.ok()) << out.status;
      ASSERT_EQ(out.gathered.size(), order.size());
      for (size_t rank = 0; rank < order.size(); ++rank) {
        EXPECT_EQ(out.gathered[rank], in[rank].payload) << rank;
      }
    }
  }
}

TEST(RingOrderTest, SharedIndexSumsFollowTheOrder) {
  for (const char* name : {"ar_topk_star", "ar_topk_var", "ar_topk_union"}) {
    const std::vector<int> order = {2, 0, 3, 1};
    std::vector<std::vector<int>> peers;
    const auto in = ContributionsAlong(order, 400);
    const auto out = RunNoting(order, **Collectives().Find(name), 400, &peers);
    for (const Outcome& one : out) {
      ASSERT_TRUE(one.status.ok()) << name << ": " << one.status;
      EXPECT_EQ(one.values, out[0].values) << name;
    }
    ASSERT_FALSE(out[0].values.empty());
    for (size_t k = 0; k < out[0].values.size(); ++k) {
      double expected = 0;
      for (const Contribution& one : in) expected += one.dense[out[0].indices[k]];
      ASSERT_NEAR(out[0].values[k], expected, 1e-6 * expected + 1e-6) << name << " " << k;
    }
  }
}

TEST(RingOrderTest, RanksThatDisagreeOnTheOrderFailAndDoNotHang) {
  World world = MakeWorld("inproc", 4);
  auto in = ContributionsAlong({0, 1, 2, 3}, 1000);
  in[2].ring = {0, 2, 1, 3};
  for (const Outcome& out : RunAll(world, **Collectives().Find("ring"), in, 1 << 20, 1)) {
    EXPECT_FALSE(out.status.ok());
  }
}

TEST(RingOrderTest, PartsOfAGroupGoByAscendingRanks) {
  World world = MakeWorld("inproc", 4);
  RunRanks(4, [&](int rank) {
    Group group(*world[rank]);
    group.SetRing({3, 1, 2, 0});
    group.Begin({.plan_version = 1, .op_sequence = 1, .bucket = 1}, {}, 0, Within(kPatience));
    EXPECT_EQ(group.RankAtRingPlace(group.ring_place()), rank);
    const GroupPart part(group, {rank}, 0);
    EXPECT_EQ(group.ring_place(), 0);
    EXPECT_EQ(group.RankAtRingPlace(0), 0);
  });
}

}  // namespace
}  // namespace weir::testing
