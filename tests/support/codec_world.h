// SPDX-License-Identifier: Apache-2.0
#pragma once
// All ranks of a job around one codec and one bucket, in one process and without a network: a
// session's use of a codec from step to step, for tests and tools that need its results only.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "datapath/codec/codec.h"

namespace weir::testing {

/// Keeps one residual, state and momentum per rank. Not thread-safe.
class CodecWorld {
 public:
  struct Options {
    const Codec* codec = nullptr;
    CodecParams params;
    int world = 1;
    size_t elements = 0;
    std::vector<TensorShape> shape;  // empty: one vector
    uint64_t seed = 1;
    std::optional<bool> feedback;  // by default as the traits ask
  };

  /// The results of one step. Seconds and energies are rank 0's.
  struct Step {
    bool non_finite = false;   // the step is skipped: residuals stay, the mean is zero
    size_t payload_bytes = 0;  // rank 0's payload, all rounds; with shared indices the values too
    double encode_s = 0;       // with the pass for the shared maximum
    double decode_s = 0;       // everything that one rank decodes, and the division
    double energy_in = 0;
    double energy_lost = 0;
  };

  /// kInvalidArgument: params or world size outside the codec's traits.
  static StatusOr<std::unique_ptr<CodecWorld>> Make(Options options);

  /// One step: mean = decoded sum / world. gradients: one span per rank, `elements` each. The
  /// codec's own errors come back as they are. O(world * elements).
  StatusOr<Step> Exchange(std::span<const std::span<const float>> gradients, std::span<float> mean);

  const std::vector<float>& residual(int rank) const { return ranks_[rank].residual; }

 private:
  struct Rank {
    EncodeContext context;
    std::unique_ptr<CodecState> state;
    std::vector<float> residual, next;  // empty without feedback
    std::vector<float> momentum, momentum_next;
    std::vector<std::byte> payload;
  };
  using Gradients = std::span<const std::span<const float>>;

  explicit CodecWorld(Options options);
  void BeginStep(Gradients gradients, Step* step);
  Status EncodeRound(Gradients gradients, int round, Step* step);
  void SumLanes(size_t at);
  Status Decode(std::span<float> mean, Step* step);
  Status DecodeShared(std::span<float> mean, Step* step);
  Status DecodeAll(Rank& rank, std::span<float> out);
  void Commit();

  Options options_;
  const CodecTraits& traits_;
  uint64_t step_ = 0;
  std::vector<float> estimate_;  // under EF21: of the mean gradient
  std::vector<Rank> ranks_;
  std::vector<float> scratch_;
};

}  // namespace weir::testing
