#pragma once
// How a bucket is cut for collectives that carry regions (PayloadForm::kRegions) or parts of the
// sums of nodes (kNodeSums, kNodeShards), and what an operation and a bucket keep of each.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "datapath/base/scratch_pool.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/error_feedback.h"
#include "datapath/session/plan.h"

namespace weir {

/// Elements begin .. begin + size - 1 of a bucket, which one rank sums for all.
struct Region {
  size_t begin = 0, size = 0;
  std::vector<TensorShape> shape;  // tensors that lie in it whole; cut ones as vectors
};

/// One region for each rank, in rank order: almost equal runs of whole cache lines, so the last
/// ones are empty where a bucket has fewer lines than the world ranks. Equal on all ranks, whatever
/// the ratio: a codec's ratio holds for each region by itself. O(world + tensors). Thread-safe.
std::vector<Region> CutRegions(const BucketSize& bucket, int world);

/// What the codec keeps of one bucket under such a choice: of this rank's part of each region, and
/// last of the sum that it encodes for all; of the part of its node's sum, if it has one. Not part
/// of checkpoints: codecs begin anew there.
struct RegionStates {
  Choice choice;
  PayloadForm form = PayloadForm::kRegions;  // of the choice's collective
  std::vector<std::unique_ptr<CodecState>> states;
};

/// What an operation holds between the stages.
struct RegionWork {
  std::vector<Region> regions;  // or the parts of this rank's node
  int own = -1;                 // of those, whose sum this rank encodes; -1: none
  std::vector<std::span<const std::byte>> payloads;  // own, by region; parts of Operation::payload
  size_t payload_bytes_max = 0;                      // of any region
  std::optional<ResidualBuffers> server;             // second residual, of the own region
  ScratchLoan sum, sum_payload;                      // of the own region
};

}  // namespace weir
