#pragma once
// One all-reduce of one bucket on its way through the session: the stages that encode it, move it
// and decode it, each run by the pipeline thread of that name. What they do depends only on the
// choice and on the payload form of its codec, never on names of codecs or collectives.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/base/clock.h"
#include "datapath/base/scratch_pool.h"
#include "datapath/base/status.h"
#include "datapath/codec/residual/error_feedback.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/offload.h"
#include "datapath/plan/plan.h"
#include "datapath/session/bucket_table.h"
#include "datapath/session/gathered_pool.h"
#include "datapath/session/region_work.h"

namespace weir {

/// When things happened to an operation.
struct OperationTimes {
  TimePoint submitted{}, delivered{};
  Duration metadata{0}, encode{0}, network{0}, decode{0};
  TimePoint network_begin{};
};

/// Created by the session, handed from stage to stage; one stage touches it at a time.
struct Operation {
  // What was asked for.
  Bucket* bucket = nullptr;
  void* data = nullptr;
  float scale = 1;
  uint64_t step = 0;
  uint64_t index = 0;  // position within the step
  std::shared_ptr<const Plan> plan;
  Choice choice;
  const Codec* codec = nullptr;
  const Collective* collective = nullptr;
  bool sample_statistics = false;
  bool hashed = false;  // the step's replicas are compared, see replicas.h
  std::function<void(const Status&)> done;
  // In place of a bucket: exchanges this on the network thread, and that is all.
  std::function<Status(Group&)> control;

  // Between the stages.
  bool in_place = false;  // dense float32: the network works on the caller's buffer
  ScratchLoan dense;      // float32 copy of a 16-bit bucket
  ScratchLoan payload;
  size_t payload_bytes = 0;   // of all rounds so far
  size_t round_at = 0;        // where this round's part of the payload begins
  std::span<float> gradient;  // the caller's buffer or `dense`
  std::optional<ResidualBuffers> residual;
  std::optional<Ef21Buffers> ef21;  // in place of a residual; `residual` then names the memory
  float estimate_scale = 1;         // ef21: what `scale` was asked to be
  EncodeContext context;
  bool encode_pending = false;  // shared_max is this rank's own so far
  double selection_energy = 0;  // shared index: energy of this rank's own selection
  LaneShares shares;            // of the lanes' sums
  std::vector<std::vector<std::byte>> gathered;
  std::optional<RegionWork> regions;  // when the collective carries them
  std::vector<uint32_t> indices;
  std::vector<float> values;
  std::vector<uint32_t> own_indices;  // own values: what this rank selected

  // Outcome.
  Status status;
  bool non_finite = false;  // equal on all ranks once the operation is done
  uint16_t flags = 0;       // what this rank announces: kFlagNonFinite
  OperationTimes times;
  double energy_in = 0;  // of gradient + residual
  double gain = 1;
  double residual_energy = -1;  // negative: no residual in use
  uint64_t bytes_sent = 0;
  std::string_view ran_instead;  // of the collective that was chosen; empty: that one ran
  std::optional<GainCurve> gain_curve;
  std::vector<CodecLoss> codec_losses;
  std::vector<BlockDensity> block_densities;
  uint64_t hash = 0;            // hashed: of what was delivered
  bool sums_gradients = false;  // the sum is exact, and of what the gradients hold alone
};

/// Whether the sum of this operation is encoded again on its way.
bool CarriesRegions(const Operation& op);

/// Whether it sums within nodes and only then encodes.
bool CarriesNodeSums(const Operation& op);

/// True when what a codec keeps under one choice serves the other.
bool SameStateChoice(const Choice& a, const Choice& b);

/// What the stages share. Thread-safe as each operation is in one stage at a time and no two
/// operations of one step name the same bucket.
class OperationStages {
 public:
  struct Options {
    std::string job;
    int rank = 0;
    int world = 1;
  };
  OperationStages(Options options, ResidualStore& residuals, const Clock& clock);

  /// Which ranks share a node, as Group::SetNodes; before the first operation.
  void SetNodes(std::vector<int> nodes) { nodes_ = std::move(nodes); }

  /// Encode threads: converts to float32, adds the residual, encodes (unless shared metadata must
  /// be agreed on first). Errors are the codec's.
  Status Encode(Operation& op);

  /// Network thread, operations in order: the metadata exchange if any, then the collective.
  /// `begin` starts sub-operation n (0, 1, ...) of this operation on the group; `finish` hears of
  /// each sub- operation that succeeded. Errors are the collective's, annotated with bucket, codec,
  /// collective.
  struct NetworkHooks {
    std::function<void(Group&, const Operation&, int sub_operation)> begin;
    std::function<Status(Group&)> finish;
  };
  Status Exchange(Operation& op, Group& group, const NetworkHooks& hooks);

  /// Decode thread: writes scale times the sum into the caller's buffer, or NaN everywhere when
  /// some rank met NaN or infinity or the sum overflowed.
  Status Decode(Operation& op);

 private:
  Status PrepareGradient(Operation& op);
  Status TakeResidual(Operation& op);
  Status TakeServerResidual(Operation& op);
  Status TakeEf21(Operation& op);
  Status EncodeLanesOrOpaque(Operation& op);
  Status EncodeShared(Operation& op);
  Status RunEncoder(Operation& op);
  Status EncodeRound(Operation& op, int round);
  void Sample(Operation& op, const GradientStatistics& fused);
  /// Before a residual is added.
  void SampleBlocks(Operation& op) const;
  /// Once the sum is there.
  void SampleSummedBlocks(Operation& op) const;
  Status RunMetadata(Operation& op, Group& group, const NetworkHooks& hooks);
  Status RunCollective(Operation& op, Group& group);
  Status RunSubOperation(Operation& op, Group& group, const NetworkHooks& hooks, int number,
                         const std::function<Status()>& run);
  Status OpenShared(Operation& op, std::span<const std::byte> index_payload);
  /// As OpenShared, of the union of the selections of all ranks.
  Status OpenUnion(Operation& op, std::span<const std::vector<std::byte>> index_payloads);
  /// Fills op.values at op.indices.
  void FillShared(Operation& op);
  /// FillShared, and accounts for what those values take.
  void TakeShared(Operation& op);
  /// Where each rank sends its own selection: this rank's.
  Status OpenOwn(Operation& op, std::span<const std::byte> index_payload);
  /// Leaves in op.own_indices what the ranks kept of it, and accounts for that.
  void TakeOwn(Operation& op);
  // Regions, region_stages.cc.
  enum class Encoding { kPart, kSum };  // of what: a rank's part of a region, or its sum
  void PrepareRegions(Operation& op);
  /// True when what codecs keep of regions is not of the operation's choice, and empty now.
  static bool RenewsRegionStates(Operation& op);
  /// How `encoder` encoded a region; without state.
  EncodeContext RegionContext(const Operation& op, size_t region, int encoder,
                              Encoding encoding) const;
  Status EncodeRegions(Operation& op);
  Status RunRegions(Operation& op, Group& group);
  /// Of the own region, whose sum `sum` is.
  StatusOr<std::span<const std::byte>> EncodeSum(Operation& op, Group& group,
                                                 std::span<const float> sum);
  /// out += scale * what the payload of a region decodes to; out has the region's size.
  Status DecodeRegion(const Operation& op, size_t region, int encoder, Encoding encoding,
                      std::span<const std::byte> payload, float scale, std::span<float> out) const;
  Status DecodeRegions(Operation& op);
  // Sums of fewer than all ranks, partial_sums.cc.
  /// What of this rank's lanes is in no sum goes back into its residual.
  Status KeepMissed(Operation& op) const;
  /// op.gradient += op.scale times the sum, each run times world over contributors.
  Status DecodeShares(Operation& op) const;
  // Sums of nodes, node_stages.cc.
  void PrepareNodeParts(Operation& op);
  Status TakeNodeResidual(Operation& op);
  Status RunNodeParts(Operation& op, Group& group);
  Status DeliverNodeSums(Operation& op);
  Status DecodeDense(Operation& op);
  Status DecodeShared(Operation& op);
  void Deliver(Operation& op);

  const Options options_;
  std::vector<int> nodes_;
  const uint64_t job_hash_;
  ResidualStore& residuals_;
  const Clock& clock_;
  const CodecLossProbe loss_probe_;
  const std::set<uint32_t> block_sizes_;  // that some collective leaves out
  ScratchPool pool_{16};
  GatheredPool gathered_pool_{8};
};

}  // namespace weir
