// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/leaf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/sum_worker.h"
#include "datapath/base/random.h"
#include "tests/datapath/aggregation/lossy_world.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;

Lease TreeLease(uint16_t id, int workers, int world) {
  return {.id = id,
          .epoch = 1,
          .cookie = id,
          .mode = PacketMode::kSum,
          .workers = workers,
          .world = world,
          .slots = 3,
          .lanes = 4};
}

/// A root, leaves with workers each, and a bad network on every edge. Node 0 is the root, nodes
/// from 1 on the leaves, nodes from 100 on the workers.
class TreeWorld : public ReplySink {
 public:
  TreeWorld(int leaves, int workers_each, uint64_t seed)
      : each_(workers_each), random_(seed), root_(AggregatorLimits{}) {
    const int world = leaves * workers_each;
    const Lease above = TreeLease(1, leaves, 0);
    std::vector<SourceAddress> addresses;
    for (int l = 0; l < leaves; ++l) {
      addresses.push_back(static_cast<SourceAddress>(1 + l));
      const Lease below = TreeLease(static_cast<uint16_t>(10 + l), workers_each, world);
      auto leaf = Leaf::Create(below, above);
      WEIR_CHECK(leaf.ok());
      leaves_.push_back(*std::move(leaf));
      for (int w = 0; w < workers_each; ++w) {
        workers.push_back(std::make_unique<SumWorker>(below, kFastTimeouts, l * each_ + w));
      }
    }
    WEIR_CHECK(root_.Grant(above, addresses).ok());
  }

  void Run() {
    const TimePoint end = now + std::chrono::seconds(60);
    while (now < end) {
      bool done = true;
      for (size_t w = 0; w < workers.size(); ++w) {
        workers[w]->OnTimer(now);
        Pump(w);
        done = done && workers[w]->done();
      }
      if (done) return;
      const TimePoint until = now + std::chrono::milliseconds(1);
      while (!events_.empty() && events_.begin()->first <= until) {
        const Message message = events_.begin()->second;
        now = events_.begin()->first;
        events_.erase(events_.begin());
        Deliver(message);
      }
      now = until;
    }
  }

  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    Post(0, static_cast<int>(to), packet);
  }

  std::vector<std::unique_ptr<SumWorker>> workers;
  TimePoint now = TimePoint(std::chrono::seconds(1));
  bool cut_uplinks = false;
  const Leaf& leaf(size_t index) const { return *leaves_[index]; }

 private:
  struct Message {
    int from, to;
    std::vector<std::byte> bytes;
  };

  void Post(int from, int to, std::span<const std::byte> packet) {
    if (packet.empty() || random_.Uniform() < 0.03 || (cut_uplinks && to == 0)) return;
    for (int copies = random_.Uniform() < 0.05 ? 2 : 1; copies > 0; --copies) {
      const auto delay = static_cast<int64_t>(random_.Below(600'000));
      events_.emplace(now + Duration(delay), Message{from, to, {packet.begin(), packet.end()}});
    }
  }

  void Pump(size_t w) {
    for (auto p = workers[w]->NextPacket(now); !p.empty(); p = workers[w]->NextPacket(now)) {
      Post(100 + static_cast<int>(w), 1 + static_cast<int>(w) / each_, p);
    }
  }

  void Deliver(const Message& message) {
    if (message.to == 0) {
      root_.OnPacket(static_cast<SourceAddress>(message.from), message.bytes, now, this);
    } else if (message.to >= 100) {
      const auto w = static_cast<size_t>(message.to - 100);
      workers[w]->OnPacket(message.bytes, now);
      Pump(w);
    } else {
      const int leaf = message.to - 1;
      LeafOutput output;
      if (message.from == 0) {
        output = leaves_[static_cast<size_t>(leaf)]->OnReply(message.bytes);
      } else {
        const StatusOr<Packet> packet = DecodePacket(message.bytes);
        WEIR_CHECK(packet.ok());
        output = leaves_[static_cast<size_t>(leaf)]->OnRequest((message.from - 100) % each_,
                                                               *packet, now);
      }
      Post(message.to, 0, output.up);
      Post(message.to, message.from, output.to_sender);
      for (int w = 0; w < each_; ++w) Post(message.to, 100 + leaf * each_ + w, output.to_all);
    }
  }

  const int each_;
  Random random_;
  Aggregator root_;
  std::vector<std::unique_ptr<Leaf>> leaves_;
  std::multimap<TimePoint, Message> events_;
};

TEST(LeafTest, ATreeSumsExactlyOverABadNetwork) {
  for (const auto& [leaves, each] : {std::pair(1, 1), {2, 2}, {3, 4}, {8, 20}}) {
    SCOPED_TRACE(::testing::Message() << leaves << " leaves of " << each);
    const size_t world_size = static_cast<size_t>(leaves * each);
    std::vector<std::vector<float>> data(world_size);
    TreeWorld world(leaves, each, world_size);
    for (uint32_t operation = 0; operation < 3; ++operation) {
      const size_t size = 30 * operation + 7;
      std::vector<float> expected(size);
      for (size_t w = 0; w < world_size; ++w) {
        data[w].resize(size);
        // Multiples of 1/16 below 8 are exact on the grid of any world here.
        for (size_t i = 0; i < size; ++i) {
          data[w][i] = static_cast<float>((w * 31 + i * 7) % 100) / 16.0f - 3.0f;
          expected[i] += data[w][i];
        }
        ASSERT_TRUE(
            world.workers[w]->Begin(data[w], operation, world.now + std::chrono::seconds(50)).ok());
      }
      world.Run();
      for (size_t w = 0; w < world_size; ++w) {
        ASSERT_TRUE(world.workers[w]->done() && world.workers[w]->status().ok())
            << world.workers[w]->status();
        ASSERT_EQ(data[w], expected);
      }
    }
    if (world_size > 4) {
      EXPECT_GT(world.leaf(0).counters().reforwarded, 0u);
    }
  }
}

TEST(LeafTest, ACutAboveEndsInTheWorkersDeadline) {
  std::vector<std::vector<float>> data(4, std::vector<float>(9, 1.0f));
  TreeWorld world(2, 2, 1);
  world.cut_uplinks = true;
  for (size_t w = 0; w < 4; ++w) {
    ASSERT_TRUE(world.workers[w]->Begin(data[w], 0, world.now + std::chrono::seconds(2)).ok());
  }
  world.Run();
  for (const auto& worker : world.workers) {
    EXPECT_EQ(worker->status().code(), StatusCode::kDeadlineExceeded);
  }
  EXPECT_GT(world.leaf(0).counters().reforwarded, 0u);
}

TEST(LeafTest, LeasesThatDoNotMatchAreRefused) {
  Lease above = TreeLease(1, 2, 0);
  EXPECT_TRUE(Leaf::Create(TreeLease(2, 2, 4), above).ok());
  EXPECT_FALSE(Leaf::Create(TreeLease(2, 2, 0), above).ok());
  EXPECT_THAT(Message(Leaf::Create(TreeLease(2, 3, 2), above).status()), HasSubstr("world"));
  above.lanes = 8;
  EXPECT_THAT(Message(Leaf::Create(TreeLease(2, 2, 4), above).status()), HasSubstr("same mode"));
}

TEST(LeafTest, ForeignDatagramsFromAboveAreCounted) {
  const Lease above = TreeLease(1, 2, 0);
  auto leaf = *Leaf::Create(TreeLease(2, 2, 4), above);
  std::vector<std::byte> bytes(kPacketHeaderBytes + 16);
  PacketHeader header = RequestHeader(above);
  header.flags |= kPacketReply;
  EncodePacketHeader(header, std::span(bytes).first<kPacketHeaderBytes>());
  SealPacket(bytes);
  EXPECT_TRUE(leaf->OnReply(bytes).to_all.empty());  // no round of this is under way
  EXPECT_TRUE(leaf->OnReply(std::span(bytes).first(9)).to_all.empty());
  EXPECT_EQ(leaf->counters().unexpected, 2u);
}

/// An aggregator whose only lease, 2 with two workers, lies below lease 7 of address 900.
class BelowParentTest : public ::testing::Test, public ReplySink {
 protected:
  static constexpr SourceAddress kParent = 900, kFirst = 101, kSecond = 102;

  BelowParentTest() : below_(TreeLease(2, 2, 4)), above_(TreeLease(7, 2, 0)) {
    const ParentLease parent{kParent, above_.id, above_.epoch, above_.cookie, above_.workers};
    EXPECT_TRUE(aggregator_.Grant(below_, Workers(), parent).ok());
  }

  static std::vector<SourceAddress> Workers() { return {kFirst, kSecond}; }

  std::vector<std::byte> Bytes(const Lease& lease, uint8_t flags, uint16_t contributions) {
    std::vector<std::byte> bytes(kPacketHeaderBytes + size_t{lease.lanes} * 4);
    PacketHeader header = RequestHeader(lease);
    header.flags |= flags;
    header.contributions = contributions;
    EncodePacketHeader(header, std::span(bytes).first<kPacketHeaderBytes>());
    SealPacket(bytes);
    return bytes;
  }
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    const StatusOr<Packet> decoded = DecodePacket(packet);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->header.lease, to == kParent ? above_.id : below_.id);
    sent_.push_back(to);
  }
  /// The addresses to which a datagram is sent because of this packet.
  std::vector<SourceAddress> From(SourceAddress source, std::span<const std::byte> packet) {
    sent_.clear();
    aggregator_.OnPacket(source, packet, TimePoint(std::chrono::seconds(1)), this);
    return sent_;
  }

  const Lease below_, above_;
  Aggregator aggregator_{AggregatorLimits{}};
  std::vector<SourceAddress> sent_;
};

TEST_F(BelowParentTest, SumsGoUpResultsDownAndADuplicateAsksAboveUntilThereIsOne) {
  const auto request = Bytes(below_, 0, 0), result = Bytes(above_, kPacketReply, 4);
  using Sent = std::vector<SourceAddress>;
  EXPECT_EQ(From(kFirst, request), Sent{});
  EXPECT_EQ(From(kFirst, request), Sent{}) << "the second worker's is missing";
  EXPECT_EQ(From(kSecond, request), Sent{kParent});
  EXPECT_EQ(From(kFirst, request), Sent{kParent}) << "complete here, not above: asked again";
  EXPECT_EQ(From(kSecond, request), Sent{kParent});
  EXPECT_EQ(From(kFirst, result), Sent{}) << "only the parent has results";
  EXPECT_EQ(From(kParent, result), Workers());
  EXPECT_EQ(From(kParent, result), Sent{}) << "once";
  EXPECT_EQ(From(kFirst, request), Sent{kFirst}) << "complete above: answered from here";
  const AggregatorCounters& counted = aggregator_.counters();
  EXPECT_EQ(counted.forwarded, 1u);
  EXPECT_EQ(counted.forwarded_again, 2u);
  EXPECT_EQ(counted.delivered, 1u);
  EXPECT_EQ(counted.unknown, 1u);
  EXPECT_EQ(counted.foreign, 1u);
  EXPECT_EQ(counted.completed, 1u);
}

TEST_F(BelowParentTest, ResultsOfAnotherLeaseOrEpochAreNotBelieved) {
  const auto request = Bytes(below_, 0, 0);
  (void)From(kFirst, request);
  (void)From(kSecond, request);
  Lease stale = above_;
  ++stale.epoch;
  EXPECT_TRUE(From(kParent, Bytes(stale, kPacketReply, 4)).empty());
  Lease other = above_;
  other.id = 8;
  EXPECT_TRUE(From(kParent, Bytes(other, kPacketReply, 4)).empty());
  EXPECT_EQ(aggregator_.counters().delivered, 0u);
  EXPECT_EQ(From(kParent, Bytes(above_, kPacketReply, 4)), Workers());
}

TEST_F(BelowParentTest, TermsThatNoTreeCanHaveAreRefusedAndTheEarlierEpochStands) {
  Lease next = below_;
  next.epoch = 2;
  next.world = 0;
  const ParentLease parent{kParent, above_.id, 2, above_.cookie, above_.workers};
  EXPECT_EQ(aggregator_.Grant(next, Workers(), parent).status().code(),
            StatusCode::kInvalidArgument);
  next.world = 4;
  next.id = 3;
  EXPECT_THAT(Message(aggregator_.Grant(next, Workers(), parent).status()),
              HasSubstr("lease 2 is below lease 7 of that parent already"));
  const auto request = Bytes(below_, 0, 0);
  (void)From(kFirst, request);
  EXPECT_EQ(From(kSecond, request), std::vector<SourceAddress>{kParent});
}

}  // namespace
}  // namespace weir::aggregation
