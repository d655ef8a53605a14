// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/xdp/xdp_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "datapath/aggregation/quantise.h"
#include "datapath/aggregation/sum_worker.h"
#include "datapath/base/random.h"
#include "tests/datapath/aggregation/xdp/kernel_plane.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;

class XdpPlaneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    plane_ = LoadOrWhy(&why);
    if (plane_ == nullptr) GTEST_SKIP() << why;
  }
  std::unique_ptr<XdpPlane> plane_;
};

TEST_F(XdpPlaneTest, AnswersEveryTraceAsItMust) {
  uint32_t epochs = 0;
  for (const Trace& trace : SumTraces()) {
    KernelPlane plane(plane_.get(), epochs);
    EXPECT_EQ(RunTrace(trace, &plane), "");
    epochs += 10;
  }
}

/// The pure aggregator, whose answers are the right ones.
class OraclePlane : public ReplySink {
 public:
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    sent.push_back({.to = to, .packet = {packet.begin(), packet.end()}});
  }
  Aggregator aggregator{AggregatorLimits{}};
  std::vector<Emission> sent;
};

struct Shape {
  const char* name;
  PacketMode mode;
  int workers;
  uint16_t slots, lanes;
  int sum_bits = 0;
  bool little_endian = false;
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

Lease LeaseOf(const Shape& shape, uint32_t epoch) {
  Lease lease{.id = 7,
              .epoch = epoch,
              .cookie = 0x0123456789ABCDEF,
              .mode = shape.mode,
              .workers = shape.workers,
              .slots = shape.slots,
              .lanes = shape.lanes,
              .sum_bits = shape.sum_bits,
              .little_endian = shape.little_endian,
              .checked = false};
  for (uint8_t i = 0; shape.mode == PacketMode::kTable && i < kTableLevels; ++i) {
    // The levels are not consecutive, and as large as the sums permit.
    const int top = ((1 << shape.sum_bits) - 1) / shape.workers;
    lease.levels.push_back(static_cast<uint8_t>((i * 37) % (std::min(top, 255) + 1)));
  }
  return lease;
}

/// A packet of `round`, or with `faults` every second time an invalid one.
std::vector<std::byte> RandomPacket(const Lease& lease, uint16_t slot, uint32_t round, bool faults,
                                    Random* random) {
  const auto below = [&](uint64_t n) { return random->Below(n); };
  const uint64_t fault = faults ? below(24) : 24;
  PacketHeader header = RequestHeader(lease);
  header.slot = slot;
  header.round = round;
  if (fault == 0 && round > 0) header.round -= 1;
  if (fault == 1) header.round += 1;
  if (fault == 2) header.round -= 2;
  header.operation = 9;
  header.offset = header.round * 2;
  if (lease.mode == PacketMode::kSum) {
    header.exponent = static_cast<uint16_t>(below(4) == 0 ? 0xFFFF : below(500));
    if (header.round % 5 == 0) header.flags |= kPacketLead;
  }
  if (fault == 3) header.offset += 1;
  if (fault == 4) header.operation += 1;
  if (fault == 5) header.epoch -= 1;
  if (fault == 6) header.cookie ^= 1;
  if (fault == 7) header.slot = static_cast<uint16_t>(lease.slots + below(3));
  if (fault == 8 && lease.mode == PacketMode::kSum) header.flags ^= kPacketLead;
  std::vector<std::byte> packet(kPacketHeaderBytes + PayloadBytes(header));
  EncodePacketHeader(header, std::span(packet).first<kPacketHeaderBytes>());
  for (size_t i = kPacketHeaderBytes; i < packet.size(); ++i) {
    packet[i] = static_cast<std::byte>(below(256));
  }
  if (fault == 9 || fault == 10) {  // an octet of the header, but for the mode and the round
    constexpr size_t kTouched[] = {0, 1, 2, 4, 5, 6, 7, 8, 20, 22, 23, 36, 40, 43, 44, 47};
    packet[kTouched[below(std::size(kTouched))]] ^= static_cast<std::byte>(1 + below(255));
    packet[4] &= static_cast<std::byte>(~kPacketChecked);
  }
  if (fault == 11) packet.resize(below(packet.size() + 5));
  return packet;
}

class XdpOracleTest : public ::testing::TestWithParam<Shape> {};

std::string Differences(const AggregatorCounters& a, const AggregatorCounters& b) {
  std::string text;
  const auto compare = [&](const char* name, uint64_t left, uint64_t right) {
    if (left != right) text += StrCat(name, " ", left, " and ", right, "; ");
  };
  compare("added", a.added, b.added);
  compare("completed", a.completed, b.completed);
  compare("served", a.served, b.served);
  compare("noticed", a.noticed, b.noticed);
  compare("duplicate", a.duplicate, b.duplicate);
  compare("stale", a.stale, b.stale);
  compare("early", a.early, b.early);
  compare("malformed", a.malformed, b.malformed);
  compare("unknown", a.unknown, b.unknown);
  compare("foreign", a.foreign, b.foreign);
  return text;
}

/// Both aggregators, fed with the same packets.
class Pair {
 public:
  explicit Pair(XdpPlane* kernel) : kernel_(kernel) {}

  void Grant(const Lease& lease) {
    kernel_.Grant(lease);
    ASSERT_TRUE(oracle_.aggregator.Grant(lease, AddressesOf(lease.workers)).ok());
  }
  void Feed(SourceAddress source, std::span<const std::byte> packet) {
    oracle_.sent.clear();
    oracle_.aggregator.OnPacket(source, packet, TimePoint{}, &oracle_);
    const std::vector<Emission> sent = kernel_.OnPacket(source, packet);
    ASSERT_EQ(sent.size(), oracle_.sent.size());
    for (size_t e = 0; e < sent.size(); ++e) {
      ASSERT_EQ(sent[e].to, oracle_.sent[e].to);
      ASSERT_EQ(sent[e].packet, oracle_.sent[e].packet) << "answer " << e;
    }
  }
  const AggregatorCounters& expected() const { return oracle_.aggregator.counters(); }
  std::string Differing() const { return Differences(kernel_.Counters(), expected()); }

 private:
  KernelPlane kernel_;
  OraclePlane oracle_;
};

TEST_P(XdpOracleTest, AnswersRandomPacketsOctetByOctetAsThePureAggregator) {
  std::string why;
  const std::unique_ptr<XdpPlane> kernel = LoadOrWhy(&why);
  if (kernel == nullptr) GTEST_SKIP() << why;
  constexpr uint32_t kEpochs = 2, kRounds = 8;
  Pair pair(kernel.get());
  Random random(11);
  const int workers = GetParam().workers;
  const auto feed = [&](const Lease& lease, int worker, uint32_t round, bool faults) {
    const auto slot = static_cast<uint16_t>(random.Below(lease.slots));
    const bool stranger = faults && random.Below(64) == 0;
    pair.Feed(stranger ? 9999 : AddressOf(worker),
              RandomPacket(lease, slot, round, faults, &random));
  };
  for (uint32_t epoch = 1; epoch <= kEpochs; ++epoch) {
    const Lease lease = LeaseOf(GetParam(), epoch);
    pair.Grant(lease);
    for (uint32_t round = 0; round < kRounds; ++round) {
      // The first packet of a round determines the others; at the end every round completes.
      for (uint16_t slot = 0; slot < lease.slots; ++slot) {
        pair.Feed(AddressOf(0), RandomPacket(lease, slot, round, false, &random));
      }
      for (int i = 0; i < workers * lease.slots * 4; ++i) {
        feed(lease, static_cast<int>(random.Below(static_cast<uint64_t>(workers))), round, true);
        if (HasFatalFailure()) return;
      }
      for (int w = 0; w < workers * lease.slots; ++w) {
        const auto slot = static_cast<uint16_t>(w / workers);
        pair.Feed(AddressOf(w % workers), RandomPacket(lease, slot, round, false, &random));
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_EQ(pair.Differing(), "");
  const AggregatorCounters& all = pair.expected();
  EXPECT_GE(all.completed, uint64_t{kEpochs} * kRounds * GetParam().slots);
  for (const uint64_t count :
       {all.served, all.noticed, all.duplicate, all.malformed, all.foreign}) {
    EXPECT_GT(count, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, XdpOracleTest,
    ::testing::Values(Shape{"sum_1", PacketMode::kSum, 2, 2, 1},
                      Shape{"sum_7", PacketMode::kSum, 3, 2, 7},
                      Shape{"sum_8_little", PacketMode::kSum, 3, 1, 8, 0, true},
                      Shape{"sum_251", PacketMode::kSum, 4, 2, 251},
                      Shape{"sum_256", PacketMode::kSum, 2, 3, 256},
                      Shape{"sum_256_little", PacketMode::kSum, 5, 1, 256, 0, true},
                      Shape{"sum_of_64_workers", PacketMode::kSum, 64, 1, 16},
                      Shape{"table_2", PacketMode::kTable, 2, 2, 2, 8},
                      Shape{"table_1022", PacketMode::kTable, 3, 2, 1022, 8},
                      Shape{"table_1024", PacketMode::kTable, 4, 1, 1024, 8},
                      Shape{"table_30_wide", PacketMode::kTable, 3, 2, 30, 16},
                      Shape{"table_512_wide", PacketMode::kTable, 4, 1, 512, 16},
                      Shape{"table_512_little", PacketMode::kTable, 2, 1, 512, 16, true},
                      Shape{"table_of_64_workers", PacketMode::kTable, 64, 1, 64, 16}),
    [](const auto& info) { return std::string(info.param.name); });

std::vector<float> Ramp(int worker, size_t size) {
  std::vector<float> tensor(size);
  for (size_t i = 0; i < size; ++i) {
    tensor[i] =
        static_cast<float>(static_cast<int>(i * 7 + static_cast<size_t>(worker)) % 201 - 100);
  }
  return tensor;
}

/// Workers of SwitchML over a simulated network with the kernel as the aggregator. Empty if all
/// sums are exact.
std::string RunWorkers(XdpPlane* kernel, uint32_t epoch, const LinkFaults& faults,
                       uint64_t* datagrams = nullptr) {
  constexpr int kWorkers = 2;
  const Lease lease{.id = 3,
                    .epoch = epoch,
                    .cookie = 5,
                    .workers = kWorkers,
                    .slots = 2,
                    .lanes = 8,
                    .checked = false};
  KernelPlane plane(kernel);
  LossyWorld world(lease, faults, &plane);
  std::vector<std::vector<float>> tensors;
  std::vector<std::unique_ptr<SumWorker>> workers;
  std::vector<Worker*> pointers;
  for (int w = 0; w < kWorkers; ++w) tensors.push_back(Ramp(w, 5 * lease.lanes));
  std::vector<float> expected(tensors[0].size());
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = tensors[0][i] + tensors[1][i];
  for (int w = 0; w < kWorkers; ++w) {
    workers.push_back(std::make_unique<SumWorker>(lease, kFastTimeouts, w));
    const Status begun = workers.back()->Begin(tensors[static_cast<size_t>(w)], 1,
                                               world.now() + std::chrono::seconds(20));
    if (!begun.ok()) return Message(begun);
    pointers.push_back(workers.back().get());
  }
  world.Run(pointers);
  if (datagrams != nullptr) *datagrams = world.datagrams();
  for (int w = 0; w < kWorkers; ++w) {
    const auto at = static_cast<size_t>(w);
    if (!workers[at]->done()) return StrCat("worker ", w, " is not done");
    if (!workers[at]->status().ok()) return Message(workers[at]->status());
    if (tensors[at] != expected) return StrCat("worker ", w, " has another sum");
  }
  return "";
}

TEST_F(XdpPlaneTest, SurvivesTheLossOfEverySingleDatagramInTurn) {
  uint64_t datagrams = 0;
  ASSERT_EQ(RunWorkers(plane_.get(), 1, {}, &datagrams), "");
  ASSERT_GT(datagrams, 20u);
  for (uint64_t lost = 0; lost < datagrams; ++lost) {
    LinkFaults faults;
    faults.lose = [lost](uint64_t n, bool) { return n == lost; };
    const auto epoch = static_cast<uint32_t>(lost + 2);
    EXPECT_EQ(RunWorkers(plane_.get(), epoch, faults), "") << "datagram " << lost;
  }
}

TEST_F(XdpPlaneTest, SumsExactlyWhenPacketsAreLostRepeatedAndReordered) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    EXPECT_EQ(RunWorkers(plane_.get(), seed, BadNetwork(seed)), "") << "seed " << seed;
  }
}

TEST_F(XdpPlaneTest, ACrashedWorkerIsNamed) {
  KernelPlane plane(plane_.get());
  const Trace trace{.name = "", .workers = 3, .steps = {}};
  plane.Grant(TraceLease(trace, 1));
  EXPECT_FALSE(plane_->OldestOpenRound(kTraceLease).has_value());
  EXPECT_FALSE(plane_->LastUsed(kTraceLease).has_value());
  const TimePoint before = RealClock().Now();
  for (const int worker : {0, 2}) {
    plane.OnPacket(AddressOf(worker), TracePacket({.worker = worker, .slot = 1, .operation = 6}));
  }
  const auto open = plane_->OldestOpenRound(kTraceLease);
  ASSERT_TRUE(open.has_value());
  EXPECT_EQ(open->slot, 1);
  EXPECT_EQ(open->round, 0u);
  EXPECT_EQ(open->operation, 6u);
  EXPECT_EQ(open->missing, 2u);
  EXPECT_GT(open->opened_at, before - std::chrono::seconds(1));
  EXPECT_LT(open->opened_at, before + std::chrono::seconds(10));
  EXPECT_GE(*plane_->LastUsed(kTraceLease), open->opened_at);
  plane.OnPacket(AddressOf(1), TracePacket({.worker = 1, .slot = 1, .operation = 6}));
  EXPECT_FALSE(plane_->OldestOpenRound(kTraceLease).has_value());
}

TEST_F(XdpPlaneTest, LeavesToTheSocketWhatIsNotOfItsLeases) {
  KernelPlane plane(plane_.get());
  plane.Grant(TraceLease({.name = "", .steps = {}}, 1));
  const std::vector<std::byte> packet = TracePacket({});
  const std::vector<std::byte> frame = FrameOf(AddressOf(0), kKernelAddress, packet);
  const auto action = [&](size_t at, int value) {
    std::vector<std::byte> changed = frame;
    if (at < changed.size()) changed[at] = static_cast<std::byte>(value);
    return plane_->RunForTest(changed)->action;
  };
  EXPECT_EQ(action(12, 0x86), uint32_t{XDP_PASS});  // not IPv4
  EXPECT_EQ(action(14, 0x46), uint32_t{XDP_PASS});  // options in the IP header
  EXPECT_EQ(action(20, 0x20), uint32_t{XDP_PASS});  // the first part of a datagram
  EXPECT_EQ(action(21, 0x01), uint32_t{XDP_PASS});  // a later one
  EXPECT_EQ(action(23, 6), uint32_t{XDP_PASS});     // TCP
  EXPECT_EQ(action(33, 1), uint32_t{XDP_PASS});     // another host's
  EXPECT_EQ(action(37, 1), uint32_t{XDP_PASS});     // another port
  EXPECT_EQ(action(39, 1), uint32_t{XDP_PASS});     // lengths that contradict each other
  EXPECT_EQ(action(42, 0), uint32_t{XDP_PASS});     // not a packet
  EXPECT_EQ(action(49, 9), uint32_t{XDP_PASS});     // another lease
  for (size_t size = 14; size < frame.size(); ++size) {
    EXPECT_EQ(plane_->RunForTest(std::span(frame).first(size))->action, uint32_t{XDP_PASS}) << size;
  }
  EXPECT_EQ(plane_->Counters()->packets.added, 0u);
  EXPECT_EQ(action(frame.size(), 0), uint32_t{XDP_DROP});  // it is added
  EXPECT_EQ(plane_->Counters()->packets.added, 1u);
}

TEST_F(XdpPlaneTest, SaysWhatItCannotDo) {
  Lease lease{.id = 1, .epoch = 1, .cookie = 1, .workers = 2, .slots = 1};
  const auto refused = [&](const char* names) {
    const auto range = plane_->Grant(lease, AddressesOf(2), kKernelAddress);
    EXPECT_EQ(range.status().code(), StatusCode::kUnimplemented) << names;
    EXPECT_THAT(Message(range.status()), HasSubstr(names));
  };
  refused("checksums");
  lease.checked = false;
  lease.mode = PacketMode::kMax;
  refused("modes sum and table");
  lease.mode = PacketMode::kSum;
  EXPECT_TRUE(plane_->Grant(lease, AddressesOf(2), kKernelAddress).ok());
  const Status again = plane_->Grant(lease, AddressesOf(2), kKernelAddress).status();
  EXPECT_EQ(again.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(plane_->Revoke(1, 2).code(), StatusCode::kNotFound);
  EXPECT_TRUE(plane_->Revoke(1, 1).ok());
  const Status missing = plane_->Attach("no-such-device", XdpAttachMode::kAny);
  EXPECT_THAT(Message(missing), HasSubstr("no interface 'no-such-device'"));
  EXPECT_THAT(Message(ParseXdpAttachMode("fast").status()), HasSubstr("native or generic"));
  EXPECT_EQ(XdpPlane::Load({.ring_bytes = 5000}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(XdpPlaneTest, ARevokedLeaseIsTheSocketsBusiness) {
  KernelPlane plane(plane_.get());
  plane.Grant(TraceLease({.name = "", .steps = {}}, 1));
  ASSERT_TRUE(plane.OnPacket(AddressOf(0), TracePacket({})).empty());
  ASSERT_TRUE(plane_->Revoke(kTraceLease, 1).ok());
  ASSERT_TRUE(plane.OnPacket(AddressOf(1), TracePacket({.worker = 1})).empty());
  EXPECT_EQ(plane.Counters().unknown, 1u);
  // The next grant has the same slots, which are empty.
  plane.Grant(TraceLease({.name = "", .steps = {}}, 2));
  plane.OnPacket(AddressOf(1), TracePacket({.worker = 1, .value = 7, .epoch = 2}));
  EXPECT_EQ(plane_->OldestOpenRound(kTraceLease)->missing, 1u);
}

TEST_F(XdpPlaneTest, AFullRingLosesRepliesAndCountsThem) {
  auto small = XdpPlane::Load(
      {.limits = {.slots = 64, .slots_per_job = 64, .leases = 4}, .ring_bytes = 4096});
  ASSERT_TRUE(small.ok()) << small.status();
  const Trace trace{.name = "", .steps = {}};
  ASSERT_TRUE((*small)->Grant(TraceLease(trace, 1), AddressesOf(2), kKernelAddress).ok());
  for (uint32_t round = 0; round < 200; ++round) {
    for (int w = 0; w < 2; ++w) {
      const auto packet = TracePacket({.worker = w, .round = round, .value = 1});
      ASSERT_TRUE((*small)->RunForTest(FrameOf(AddressOf(w), kKernelAddress, packet)).ok());
    }
  }
  const auto counters = (*small)->Counters();
  EXPECT_EQ(counters->packets.completed, 200u);
  EXPECT_EQ(counters->handed + counters->ring_full, 200u);
  EXPECT_GT(counters->ring_full, 50u);
  OraclePlane sink;
  EXPECT_TRUE((*small)->SendReplies(&sink));
  EXPECT_EQ(sink.sent.size(), counters->handed);
  EXPECT_FALSE((*small)->SendReplies(&sink));
}

}  // namespace
}  // namespace weir::aggregation
