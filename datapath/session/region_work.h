#pragma once
// What an operation and a bucket keep of each region of a bucket (PayloadForm::kRegions), or of
// each part of the sums of nodes (kNodeSums, kNodeShards).

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "datapath/base/scratch_pool.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/residual/error_feedback.h"
#include "datapath/exchange/regions.h"
#include "datapath/plan/plan.h"

namespace weir {

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
