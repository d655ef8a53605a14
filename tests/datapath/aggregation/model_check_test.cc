// SPDX-License-Identifier: Apache-2.0
// Exhaustive search of the slot protocol: every order in which a network may deliver, repeat and
// lose packets, for small worlds. A message that was sent may be delivered at any later time, any
// number of times or never, which covers all three. A worker behaves as WIRE section 4 says: it
// sends round r + 1 of a slot after the reply to r, and accepts only a reply to the round that it
// waits for.

#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "datapath/aggregation/slot_pool.h"
#include "tests/datapath/aggregation/published_switch.h"

namespace weir::aggregation {
namespace {

struct ModelWorld {
  int workers = 2;
  int slots = 2;
  int rounds = 4;  // both sets used twice
  int quorum = 0;  // where rounds end without some workers
};

/// Distinct for each worker, slot and round, so that a sum shows its contributions.
uint32_t ModelValue(int worker, int slot, int round) {
  return static_cast<uint32_t>(round + 1 + 8 * slot) << (8 * worker);
}

uint32_t ModelSum(const ModelWorld& world, int slot, int round) {
  uint32_t sum = 0;
  for (int w = 0; w < world.workers; ++w) sum += ModelValue(w, slot, round);
  return sum;
}

struct ModelReply {
  enum class To { kNobody, kSender, kAll } to = To::kNobody;
  int round = 0;  // modulo 2 where the plane does not say
  uint32_t value = 0;
  bool lost = false;  // told that the result is gone, so that there is no value
};

class OurModelPlane {
 public:
  explicit OurModelPlane(const ModelWorld& world)
      : pool_({.id = 1,
               .epoch = 1,
               .workers = world.workers,
               .slots = static_cast<uint16_t>(world.slots),
               .lanes = 1,
               .checked = false}) {}

  ModelReply Deliver(int worker, int slot, int round) {
    std::byte lane[4];
    const uint32_t value = ModelValue(worker, slot, round);
    StoreLanes({&value, 1}, false, lane);
    const Packet packet = {.header = {.epoch = 1,
                                      .slot = static_cast<uint16_t>(slot),
                                      .lanes = 1,
                                      .round = static_cast<uint32_t>(round),
                                      .offset = static_cast<uint32_t>(round)},
                           .payload = lane};
    const Outcome outcome = pool_.OnPacket(worker, packet, TimePoint{});
    if (outcome.reply.empty()) return {};
    const StatusOr<Packet> reply = DecodePacket(outcome.reply);
    EXPECT_TRUE(reply.ok());
    ModelReply result{.to = outcome.verdict == Verdict::kCompleted ? ModelReply::To::kAll
                                                                   : ModelReply::To::kSender,
                      .round = static_cast<int>(reply->header.round)};
    LoadLanes(reply->payload, false, {&result.value, 1});
    return result;
  }

  static bool SameRound(int reply, int waiting) { return reply == waiting; }
  void AppendState(std::vector<uint64_t>* out) const { pool_.AppendStateForTest(out); }

 private:
  SlotPool pool_;
};

/// Rounds may end without some workers at any time. A reply is right if it is the sum of its set of
/// contributors, that set is a quorum, and all replies to a round have the same set; its value is
/// then recorded as the sum of all workers, which is what the search compares.
class CutoffModelPlane {
 public:
  explicit CutoffModelPlane(const ModelWorld& world)
      : world_(world),
        pool_(LeaseOf(world)),
        sets_(static_cast<size_t>(world.slots * world.rounds)) {}

  ModelReply Deliver(int worker, int slot, int round) {
    // A byte holds two indices.
    const auto bytes = static_cast<std::byte>(IndexOf(worker, round) * 17);
    PacketHeader header = RequestHeader(LeaseOf(world_));
    header.slot = static_cast<uint16_t>(slot);
    header.round = static_cast<uint32_t>(round);
    header.offset = static_cast<uint32_t>(round);
    header.operation = static_cast<uint32_t>(round) / 2;  // so that some follow others
    const Outcome outcome =
        pool_.OnPacket(worker, {.header = header, .payload = {&bytes, 1}}, TimePoint{});
    if (outcome.reply.empty()) return {};
    return Read(outcome.reply, outcome.verdict == Verdict::kCompleted ? ModelReply::To::kAll
                                                                      : ModelReply::To::kSender)
        .second;
  }

  /// Ends all rounds that may end now; returns slot and reply of each.
  std::vector<std::pair<int, ModelReply>> CutOff() {
    std::vector<std::pair<int, ModelReply>> replies;
    pool_.OnTimer(TimePoint{} + Duration(1), [&](std::span<const std::byte> reply) {
      replies.push_back(Read(reply, ModelReply::To::kAll));
    });
    return replies;
  }

  static bool SameRound(int reply, int waiting) { return reply == waiting; }
  void AppendState(std::vector<uint64_t>* out) const {
    pool_.AppendStateForTest(out);
    out->insert(out->end(), sets_.begin(), sets_.end());
  }

 private:
  static uint8_t Level(int worker, int round) {
    constexpr int kWeights[] = {1, 5, 25};
    return static_cast<uint8_t>((round % 4 + 1) * kWeights[worker]);
  }
  static int IndexOf(int worker, int round) { return worker * 4 + round % 4; }

  static Lease LeaseOf(const ModelWorld& world) {
    Lease lease = {.id = 1,
                   .epoch = 1,
                   .mode = PacketMode::kTable,
                   .workers = world.workers,
                   .slots = static_cast<uint16_t>(world.slots),
                   .lanes = 2,
                   .sum_bits = 16,
                   .levels = std::vector<uint8_t>(kTableLevels),
                   .quorum = world.quorum,
                   .cutoff = Duration(1),
                   .checked = false};
    for (int w = 0; w < 3; ++w) {
      for (int r = 0; r < 4; ++r) lease.levels[static_cast<size_t>(IndexOf(w, r))] = Level(w, r);
    }
    return lease;
  }

  std::pair<int, ModelReply> Read(std::span<const std::byte> bytes, ModelReply::To to) {
    const StatusOr<Packet> reply = DecodePacket(bytes);
    EXPECT_TRUE(reply.ok());
    const PacketHeader& h = reply->header;
    const int slot = h.slot, round = static_cast<int>(h.round);
    if ((h.flags & kPacketNotice) != 0) {
      EXPECT_EQ(h.detail, static_cast<uint32_t>(Notice::kExpired));
      return {slot, {.to = to, .round = round, .lost = true}};
    }
    uint64_t set = 0, sum = 0, held = 0;
    int count = 0;
    for (size_t i = 0; i < 8; ++i) set = set << 8 | std::to_integer<uint64_t>(reply->payload[i]);
    for (size_t i = 8; i < 10; ++i) sum = sum << 8 | std::to_integer<uint64_t>(reply->payload[i]);
    for (int w = 0; w < world_.workers; ++w) {
      if ((set >> w & 1) == 0) continue;
      held += Level(w, round);
      ++count;
    }
    for (int old = 0; old + 1 < round; ++old) {  // there are no replies to those any more
      sets_[static_cast<size_t>(slot * world_.rounds + old)] = 0;
    }
    uint64_t& first = sets_[static_cast<size_t>(slot * world_.rounds + round)];
    const bool agrees = first == 0 || first == set;
    first = set;
    const bool right = agrees && sum == held && count >= world_.quorum && count == h.contributions;
    const uint32_t everybody = ModelSum(world_, slot, round);
    return {slot, {.to = to, .round = round, .value = right ? everybody : ~everybody}};
  }

  ModelWorld world_;
  SlotPool pool_;
  std::vector<uint64_t> sets_;  // of the first reply to each slot and round
};

class PublishedModelPlane {
 public:
  explicit PublishedModelPlane(const ModelWorld& world) : switch_(world.workers, world.slots) {}

  ModelReply Deliver(int worker, int slot, int round) {
    const PublishedSwitch::Result result =
        switch_.OnPacket(worker, round % 2, slot, ModelValue(worker, slot, round));
    return {.to = static_cast<ModelReply::To>(result.to), .round = round, .value = result.value};
  }

  // The published packet also names the chunk, and the reply repeats that of the last packet.
  static bool SameRound(int reply, int waiting) { return reply == waiting; }
  void AppendState(std::vector<uint64_t>* out) const { switch_.AppendStateForTest(out); }

 private:
  PublishedSwitch switch_;
};

/// The round of every worker in every slot, and the replies to it that are in transit.
struct ModelPosition {
  int round = 0;  // waits for this one; the world's number: done
  bool reply_sent = false;
};

template <typename Plane>
struct ModelState {
  Plane plane;
  std::vector<ModelPosition> positions;  // worker * slots + slot
};

template <typename Plane>
class ModelCheck {
 public:
  explicit ModelCheck(const ModelWorld& world) : world_(world) {}

  /// Explores all states until one is wrong. Returns the error, or an empty text.
  std::string Run() {
    ModelState<Plane> start{Plane(world_), {}};
    start.positions.resize(static_cast<size_t>(world_.workers * world_.slots));
    Visit(std::move(start));
    while (!frontier_.empty() && wrong_.empty()) {
      const auto [number, state] = std::move(frontier_.front());
      frontier_.pop_front();
      from_ = number;
      ExpandCutOff(state);
      for (int w = 0; w < world_.workers; ++w) {
        for (int s = 0; s < world_.slots; ++s) Expand(state, w, s);
      }
    }
    return wrong_.empty() ? CheckThatAllCanEnd() : wrong_;
  }

  size_t states() const { return numbers_.size(); }

 private:
  ModelPosition& At(ModelState<Plane>* state, int worker, int slot) const {
    return state->positions[static_cast<size_t>(worker * world_.slots + slot)];
  }

  void Expand(const ModelState<Plane>& state, int worker, int slot) {
    const ModelPosition position =
        state.positions[static_cast<size_t>(worker * world_.slots + slot)];
    for (int round = 0; round <= position.round && round < world_.rounds; ++round) {
      ModelState<Plane> next = state;
      const ModelReply reply = next.plane.Deliver(worker, slot, round);
      if (!Tell(reply, worker, slot, &next)) return;
      Visit(std::move(next));
    }
    if (!position.reply_sent) return;
    ModelState<Plane> next = state;
    At(&next, worker, slot) = {.round = position.round + 1};
    Visit(std::move(next));
  }

  /// Records that the reply is in transit. Returns false if it is wrong.
  bool Tell(const ModelReply& reply, int sender, int slot, ModelState<Plane>* next) {
    for (int w = 0; w < world_.workers; ++w) {
      if (reply.to == ModelReply::To::kNobody) break;
      if (reply.to == ModelReply::To::kSender && w != sender) continue;
      ModelPosition& reached = At(next, w, slot);
      if (!Plane::SameRound(reply.round, reached.round)) continue;  // it will ignore it
      if (!reply.lost && reply.value != ModelSum(world_, slot, reached.round)) {
        wrong_ = "worker " + std::to_string(w) + " is told " + std::to_string(reply.value) +
                 " for slot " + std::to_string(slot) + " round " + std::to_string(reached.round);
        return false;
      }
      reached.reply_sent = true;
    }
    return true;
  }

  /// Ends rounds that have waited long enough.
  void ExpandCutOff(const ModelState<Plane>& state) {
    if constexpr (requires(Plane plane) { plane.CutOff(); }) {
      ModelState<Plane> next = state;
      for (const auto& [slot, reply] : next.plane.CutOff()) {
        if (!Tell(reply, 0, slot, &next)) return;
      }
      Visit(std::move(next));
    }
  }

  void Visit(ModelState<Plane> state) {
    std::vector<uint64_t> key;
    state.plane.AppendState(&key);
    bool ended = true;
    for (const ModelPosition& position : state.positions) {
      key.push_back(static_cast<uint64_t>(position.round) * 2 + (position.reply_sent ? 1 : 0));
      ended = ended && position.round == world_.rounds;
    }
    const auto [at, inserted] = numbers_.emplace(std::move(key), numbers_.size());
    if (inserted) {
      sources_.emplace_back();
      if (ended) ended_.push_back(at->second);
      frontier_.emplace_back(at->second, std::move(state));
    }
    if (at->second != from_) sources_[at->second].push_back(static_cast<uint32_t>(from_));
  }

  /// Checks that no state is a dead end: from each, some deliveries lead to the end.
  std::string CheckThatAllCanEnd() const {
    std::vector<bool> good(numbers_.size());
    std::vector<size_t> line = ended_;
    size_t reached = 0;
    while (!line.empty()) {
      const size_t number = line.back();
      line.pop_back();
      if (good[number]) continue;
      good[number] = true;
      ++reached;
      line.insert(line.end(), sources_[number].begin(), sources_[number].end());
    }
    if (reached == numbers_.size()) return "";
    return std::to_string(numbers_.size() - reached) + " states never end";
  }

  const ModelWorld world_;
  std::map<std::vector<uint64_t>, size_t> numbers_;
  std::deque<std::pair<size_t, ModelState<Plane>>> frontier_;
  std::vector<std::vector<uint32_t>> sources_;
  std::vector<size_t> ended_;
  size_t from_ = 0;
  std::string wrong_;
};

TEST(SlotProtocolModelTest, TwoWorkersAndTwoSlotsNeverSumWronglyNorStick) {
  ModelCheck<OurModelPlane> check({.workers = 2, .slots = 2, .rounds = 6});
  EXPECT_EQ(check.Run(), "");
  EXPECT_GT(check.states(), 1000u);
  RecordProperty("states", static_cast<int>(check.states()));
}

TEST(SlotProtocolModelTest, ThreeWorkersAndTwoSlotsNeverSumWronglyNorStick) {
  ModelCheck<OurModelPlane> check({.workers = 3, .slots = 2, .rounds = 4});
  EXPECT_EQ(check.Run(), "");
  EXPECT_GT(check.states(), 1000u);
  RecordProperty("states", static_cast<int>(check.states()));
}

TEST(SlotProtocolModelTest, ThreeWorkersThroughSixRoundsOfASlot) {
  ModelCheck<OurModelPlane> check({.workers = 3, .slots = 1, .rounds = 6});
  EXPECT_EQ(check.Run(), "");
  RecordProperty("states", static_cast<int>(check.states()));
}

TEST(SlotProtocolModelTest, RoundsThatEndWithoutAWorkerAreTheSameForAllAndNobodySticks) {
  for (const ModelWorld& world : {ModelWorld{3, 1, 4, 2}, ModelWorld{3, 1, 3, 1},
                                  ModelWorld{2, 2, 2, 1}, ModelWorld{2, 1, 6, 1}}) {
    ModelCheck<CutoffModelPlane> check(world);
    EXPECT_EQ(check.Run(), "") << world.workers << " workers, quorum " << world.quorum;
    std::printf("%d workers, %d slots, %d rounds, quorum %d: %zu states\n", world.workers,
                world.slots, world.rounds, world.quorum, check.states());
    EXPECT_GT(check.states(), 500u);
  }
}

TEST(SlotProtocolModelTest, TheSearchFindsThePublishedProtocolsWrongSum) {
  ModelCheck<PublishedModelPlane> check({.workers = 2, .slots = 1, .rounds = 3});
  EXPECT_NE(check.Run().find("is told"), std::string::npos);
}

}  // namespace
}  // namespace weir::aggregation
