// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group's access to an aggregator in the network that adds lanes. Collectives that use it need
// not know about packets, leases or sockets.

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

/// Says which ranks contributed to a sum of lanes that may lack some of them. The lanes are cut
/// into runs of run_bytes, of which the last may be shorter. Bit r of a run's set says that rank r
/// is in its sum. Runs and sets are the same on every rank.
struct LaneShares {
  size_t run_bytes = 0;  // 0: all ranks are in all sums, and the vectors below are empty
  std::vector<uint64_t> contributors;
  // This rank's lanes where it is not in the sum, zeros elsewhere; empty: it is in all sums.
  std::vector<std::byte> missed;
};

/// One rank's access to sums that are made elsewhere. All ranks make the same calls. The answers
/// may differ between ranks, so the ranks agree on every outcome over their own connections. Not
/// thread-safe.
class LaneOffload {
 public:
  /// Survey's answer when it cannot add lanes like these, though it may add others.
  static constexpr uint32_t kNotTheseLanes = UINT32_MAX;

  virtual ~LaneOffload() = default;

  /// True once all ranks have agreed to stop using it. Equal on all ranks at every operation.
  virtual bool abandoned() const = 0;

  /// Looks at the lanes to sum, which are not empty. Returns kNotTheseLanes, or a number (a scale,
  /// say) whose maximum over all ranks Sum needs. An error says why this rank cannot take part.
  virtual StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) = 0;

  /// Sums `lanes`, which must be those of the last Survey, over all ranks, which begin at about the
  /// same time. The sum stays in the offload's own memory and has the same bytes on every rank that
  /// succeeds. `greatest` is the maximum of Survey's answers on all ranks. Returns the bytes of
  /// payload sent. Ends at `deadline` at the latest, and much sooner when the aggregator no longer
  /// answers. Errors name the aggregator.
  virtual StatusOr<uint64_t> Sum(std::span<const std::byte> lanes, uint32_t greatest,
                                 TimePoint deadline) = 0;

  /// Whether sums may leave ranks out; equal on all ranks. If so, Sum succeeds even when this rank
  /// lacks parts of the result that others have.
  virtual bool partial() const { return false; }

  /// If partial(): whether this rank has the whole result of the last Sum.
  virtual bool complete() const { return true; }

  /// If partial(): the result of the last Sum. It has the same size on all ranks and the same bytes
  /// on all that are complete(). A rank that is not complete() may be given another rank's bytes.
  virtual std::span<std::byte> result() { return {}; }

  /// Writes the sum into `lanes`, after a Sum of them that succeeded and is complete, and says in
  /// `shares` who contributed. `shares` must not be null if partial().
  virtual void Store(std::span<std::byte> lanes, LaneShares* shares) = 0;

  /// Stops using the offload: all ranks have agreed that `culprit`, the lowest rank that failed,
  /// was not ready or got no sum.
  virtual void Abandon(int culprit) = 0;
};

/// Sums `lanes` through the group's offload. The ranks agree that all of them are ready, each gets
/// the sum, they agree whether all have it, and only then do the lanes change. In every other case
/// (no offload or an abandoned one, a world of one, lanes that it cannot add, a failure of any
/// rank) all ranks run `fallback`, a collective that carries lanes, on the unchanged lanes in the
/// same operation. The control word and flags travel in the agreements. Errors: as Collective::Run.
/// If sums may leave ranks out, the lanes' `shares` say who contributed; without `shares` the
/// fallback runs. A rank that lacks parts of such a sum gets them from another rank; if all ranks
/// lack some, the fallback runs, and the offload is used again afterwards.
/// Cost in addition to the sum's own: two small all-reduces. `report` names the fallback where the
/// offload was not tried.
Status SumThroughOffload(Group& group, Lanes& lanes, std::string_view fallback,
                         CollectiveReport* report);

}  // namespace weir
