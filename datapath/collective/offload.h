#pragma once
// What a group may hold besides its connections: somebody in the network who adds lanes. A
// collective that uses it knows no packets, leases or sockets.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

class Group;
struct CollectiveReport;
struct Lanes;

/// Whose the sums of lanes are where they may be of fewer than all ranks. The lanes are cut into
/// runs of run_bytes, the last one perhaps shorter; bit r of a run's set: rank r is in its sum.
/// Runs and sets are the same on every rank.
struct LaneShares {
  size_t run_bytes = 0;  // 0: all sums are of all ranks, and the rest is empty
  std::vector<uint64_t> contributors;
  // This rank's own lanes where it is not in the sum, zeros elsewhere; empty: it is in all.
  std::vector<std::byte> missed;
};

/// One rank's access to sums that are made elsewhere. All ranks call it alike; what it answers may
/// differ between them, so they agree on every outcome over their own connections. Not thread-safe.
class LaneOffload {
 public:
  /// Of Survey: it cannot add lanes like these, though it may add others.
  static constexpr uint32_t kNotTheseLanes = UINT32_MAX;

  virtual ~LaneOffload() = default;

  /// True once all ranks have agreed to leave it: equal on all ranks at every operation.
  virtual bool abandoned() const = 0;

  /// Looks at lanes that are to be summed (not empty). OK when this rank can try: a number of which
  /// all ranks need the greatest (a scale, say), or kNotTheseLanes; else why it cannot.
  virtual StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) = 0;

  /// Makes the sum of `lanes`, as Survey has seen them last, over all ranks, which all begin at
  /// about the same time, in memory of its own: the same bytes on every rank that succeeds.
  /// greatest: of what Survey answered on all ranks. Returns the bytes of payload that left. Ends
  /// at `deadline` at the latest, and much sooner where whoever adds does not answer any more.
  /// Errors name that party.
  virtual StatusOr<uint64_t> Sum(std::span<const std::byte> lanes, uint32_t greatest,
                                 TimePoint deadline) = 0;

  /// Whether sums may leave ranks out; equal on all ranks. A Sum then succeeds, too, where it lacks
  /// parts of what the others have.
  virtual bool partial() const { return false; }

  /// Where partial(): whether the last Sum lacks nothing.
  virtual bool complete() const { return true; }

  /// Where partial(): all that a rank needs of the last Sum's result, the same bytes on all ranks
  /// that are complete(), of equal sizes on all. A rank that is not may be given another's bytes.
  virtual std::span<std::byte> result() { return {}; }

  /// Makes `lanes` the sum, after a Sum of them that succeeded and is complete, and says whose it
  /// is. shares: not null where partial().
  virtual void Store(std::span<std::byte> lanes, LaneShares* shares) = 0;

  /// All ranks have agreed that `culprit`, the lowest of those that failed, was not ready or got no
  /// sum; from now on it is abandoned.
  virtual void Abandon(int culprit) = 0;
};

/// Sums `lanes` through the group's offload: the ranks agree that all of them are
/// here and ready, each gets the sum, they agree whether all have it, and only then do the lanes
/// change. In every other case (no offload or an abandoned one, one rank alone, lanes that it
/// cannot add, a failure of any rank) all ranks run `fallback` on the lanes as they were, in the
/// same operation. Control word and flags travel in the agreements. Errors: as Collective::Run.
/// Where sums may leave ranks out, the lanes' `shares` say whose they are; without a place for that
/// the fallback runs. A rank that lacks parts of such a sum gets it from another one; if all
/// lack some, the fallback runs, and the offload is used again afterwards.
/// fallback: the name of a collective that carries lanes. Cost beside the sum's own: two small
/// all-reduces.
/// `report` names the fallback where the offload was not tried.
Status SumThroughOffload(Group& group, Lanes& lanes, std::string_view fallback,
                         CollectiveReport* report);

}  // namespace weir
