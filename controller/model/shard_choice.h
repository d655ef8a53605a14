// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which shares of shards a job should run on, by the links that were measured, where collectives
// cut a bucket into one shard for each rank. The programme that finds shares is shard_shares.h;
// this file says what a link costs, when uneven shares are worth a change, and puts them into
// words.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "controller/model/snapshot.h"
#include "datapath/base/status.h"

namespace weir {

/// Uneven shares must move payloads this much faster than what runs, on the links as measured and
/// on links as alike as twice the deviation of the least certain one allows: estimates move, and on
/// equal links even shares are the best.
inline constexpr double kShardGainMin = 1.1;
/// Even shares are gone back to where they gain this much: uneven ones are for links that differ.
inline constexpr double kEvenGainMin = 1.05;

struct ShardChoice {
  std::vector<uint32_t> shares;  // of each rank, in 1/kShareUnits; empty: even
  double speedup = 1;            // see Snapshot::speedup
};

/// The shares that the next plan should have: the incumbent's unless others are better by
/// kShardGainMin, or even ones by kEvenGainMin. Ranks of a node own alike. Where a link between two
/// nodes was not measured, or fewer than 3 nodes leave nothing to choose, the incumbent's stay.
/// Pure. Complexity: BestShardShares of the nodes.
ShardChoice ChooseShards(const Snapshot& snapshot);

/// See ShardNetwork::unpipelined: over all buckets (anything with `elements`), by their bytes as
/// float32, of which a shard in segments of shard_segment_bytes waits for one of them; 1 where no
/// collective cuts by shares. What codecs make smaller has fewer segments than that.
template <typename Buckets>
double UnpipelinedShare(const Buckets& buckets, const std::vector<CollectiveModel>& collectives,
                        int world) {
  double segment_bytes = 0, bytes = 0, waiting = 0;
  for (const CollectiveModel& one : collectives) {
    segment_bytes = std::max(segment_bytes, static_cast<double>(one.shard_segment_bytes));
  }
  if (!(segment_bytes > 0)) return 1;
  for (const auto& bucket : buckets) {
    const double whole = static_cast<double>(bucket.elements) * sizeof(float);
    const double segments = std::floor(whole / std::max(1, world) / segment_bytes);
    bytes += whole;
    waiting += whole / std::max(1.0, segments);
  }
  return bytes > 0 ? waiting / bytes : 1;
}

/// Seconds per byte of a bucket under `shares` (empty: even); 0: some link was not measured.
double ShardSecondsPerByte(const NodeLinks& links, std::span<const uint32_t> shares,
                           double unpipelined);

/// The effect of shares.
struct ShardFacts {
  std::vector<uint32_t> shares;  // empty: even, and nothing to say
  double speedup = 0;            // over even shares; 0: none is known, and neither are the others
  int least_rank = 0, most_rank = 0;                   // that owns least, most
  double least_bytes_per_s = 0, most_bytes_per_s = 0;  // of the fastest link of those
  friend bool operator==(const ShardFacts&, const ShardFacts&) = default;
};
ShardFacts DescribeShards(const Snapshot& snapshot, std::span<const uint32_t> shares);
/// "ranks own 33 33 33 0 % of a bucket, which moves 1.44 times as fast as even shards: rank 3 owns
/// least, its fastest link gives 12 MB/s, that of rank 0 125 MB/s"; empty for even shares.
std::string ShardText(const ShardFacts& shards);
/// "33 33 33 0 %"; of more than 16 ranks the first ones and how many there are.
std::string ShareText(std::span<const uint32_t> shares);

/// Whether `shares` is empty or one of each of `world` ranks, together kShareUnits.
bool AreShardShares(std::span<const uint32_t> shares, int world);

/// kInvalidArgument: the shares or their speedup do not fit the world.
Status CheckShards(const Snapshot& snapshot);

}  // namespace weir
