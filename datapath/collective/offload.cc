// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/offload.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "datapath/collective/broadcast.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// Slots of the agreements, which differ from each other and from those of the fallback, which count
// from 0.
constexpr uint32_t kReadySlots = 1u << 30;
constexpr uint32_t kSummedSlots = 1u << 31;
constexpr uint32_t kWholeSlots = 3u << 30;
constexpr uint32_t kResultSlots = kWholeSlots + (1u << 29);
constexpr uint32_t kNobody = UINT32_MAX;

// The values on which the ranks agree.
struct Agreement {
  uint32_t failed = kNobody;  // the lowest rank that failed
  uint32_t greatest = 0;
};

std::vector<int> AllMembers(const Group& group) {
  std::vector<int> members(static_cast<size_t>(group.size()));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

/// Returns, the same on every rank, the lowest rank that failed and the greatest of all numbers.
Status Agree(Group& group, uint32_t slots, Agreement* agreement) {
  std::array<uint32_t, 2> words = {agreement->failed, agreement->greatest};
  Lanes lanes;
  lanes.bytes = std::as_writable_bytes(std::span(words));
  lanes.lane_bytes = sizeof words;
  lanes.accumulate = [](std::span<std::byte> sum, std::span<const std::byte> addend) {
    std::array<uint32_t, 2> a, b;
    if (sum.size() != sizeof a || addend.size() != sizeof b) return;
    std::memcpy(a.data(), sum.data(), sizeof a);
    std::memcpy(b.data(), addend.data(), sizeof b);
    a = {std::min(a[0], b[0]), std::max(a[1], b[1])};
    std::memcpy(sum.data(), a.data(), sizeof a);
  };
  WEIR_ASSIGN_OR_RETURN(const Collective* doubling, Collectives().Find("recursive_doubling"));
  const GroupPart all(group, AllMembers(group), slots);
  WEIR_RETURN_IF_ERROR(RunCollective(*doubling, group, lanes).status());
  *agreement = {.failed = words[0], .greatest = words[1]};
  return OkStatus();
}

/// After a Sum that succeeded on all ranks: gives every rank the whole result, from the lowest rank
/// that has it. Returns false if no rank has it.
StatusOr<bool> ShareResult(Group& group, LaneOffload& offload) {
  const auto world = static_cast<uint32_t>(group.size());
  const auto own = static_cast<uint32_t>(group.rank());
  // `failed` is the lowest rank that lacks something, `greatest` stands for the lowest that has
  // all.
  Agreement parts{.failed = offload.complete() ? kNobody : own,
                  .greatest = offload.complete() ? world - own : 0};
  WEIR_RETURN_IF_ERROR(Agree(group, kWholeSlots, &parts));
  if (parts.failed == kNobody) return true;
  if (parts.greatest == 0) return false;
  const GroupPart all(group, AllMembers(group), kResultSlots);
  WEIR_RETURN_IF_ERROR(
      Broadcast(group, static_cast<int>(world - parts.greatest), offload.result()));
  return true;
}

/// Returns true when `lanes` hold the sum. False: they are unchanged, and all ranks know it.
StatusOr<bool> SumElsewhere(Group& group, LaneOffload& offload, std::span<std::byte> lanes,
                            LaneShares* shares) {
  const auto own = static_cast<uint32_t>(group.rank());
  const StatusOr<uint32_t> found = offload.Survey(lanes);
  Agreement ready{.failed = found.ok() ? kNobody : own, .greatest = found.value_or(0)};
  WEIR_RETURN_IF_ERROR(Agree(group, kReadySlots, &ready));
  if (ready.failed != kNobody) {
    offload.Abandon(static_cast<int>(ready.failed));
    return false;
  }
  if (ready.greatest == LaneOffload::kNotTheseLanes) return false;
  // The sum gets at most half of the time; the rest is left for the fallback.
  const TimePoint now = RealClock().Now();
  const StatusOr<uint64_t> sent =
      offload.Sum(lanes, ready.greatest, now + (group.deadline() - now) / 2);
  Agreement summed{.failed = sent.ok() ? kNobody : own};
  WEIR_RETURN_IF_ERROR(Agree(group, kSummedSlots, &summed));
  if (summed.failed != kNobody) {
    offload.Abandon(static_cast<int>(summed.failed));
    return false;
  }
  if (offload.partial()) {
    WEIR_ASSIGN_OR_RETURN(const bool whole, ShareResult(group, offload));
    if (!whole) return false;
  }
  offload.Store(lanes, shares);
  group.CountSent(*sent);
  return true;
}

}  // namespace

Status SumThroughOffload(Group& group, Lanes& lanes, std::string_view fallback,
                         CollectiveReport* report) {
  LaneOffload* const offload = group.offload();
  const bool tries = offload != nullptr && !offload->abandoned() && group.size() > 1 &&
                     !lanes.bytes.empty() && (!offload->partial() || lanes.shares != nullptr);
  if (lanes.shares != nullptr) *lanes.shares = {};
  bool done = false;
  if (tries) {
    WEIR_ASSIGN_OR_RETURN(done, SumElsewhere(group, *offload, lanes.bytes, lanes.shares));
  }
  if (done) return OkStatus();
  const auto instead = Collectives().Find(fallback);
  if (!instead.ok()) return group.Fail(instead.status());
  WEIR_RETURN_IF_ERROR(RunCollective(**instead, group, lanes).status());
  if (!tries) report->ran_instead = (*instead)->Traits().name;
  return OkStatus();
}

}  // namespace weir
