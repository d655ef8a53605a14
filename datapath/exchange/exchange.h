// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exchange forms: how an operation's gradient is encoded, moved and decoded. A form defines its
// requirements on codecs, the operand of its collectives, its memory and its cost terms. An
// Exchange is one operation of a form. Forms are in builtin/, one file each, and know nothing of
// plans, sessions or agents.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/registry.h"
#include "datapath/base/scratch_pool.h"
#include "datapath/base/status.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/device.h"
#include "datapath/codec/measure/codec_loss.h"
#include "datapath/codec/residual/error_feedback.h"
#include "datapath/collective/collective.h"
#include "datapath/exchange/gathered_pool.h"

namespace weir {

/// The codecs that a form can carry, of those with the form's kind of payload.
enum class CodecNeed {
  kNone,      // all of them
  kRawFloat,  // IsRawFloat: the payload is the elements themselves
  kTable,     // codecs whose lanes are levels of a table, see CodecSetting::lane_levels
  // Codecs that need no metadata of the whole bucket and keep neither momentum nor an estimate,
  // which would not fit the sum of several ranks.
  kSumsOfRanks,
};

/// Where sums are encoded inside the collective.
enum class EncodedSums {
  kNone,
  kRegions,     // each rank encodes the sum of one of N equal regions from encoded parts
  kNodes,       // the first rank of each node encodes its node's exact sum
  kNodeShards,  // as kNodes, but each rank encodes a part if nodes have equally many ranks
};

/// A form as data. Planners need nothing else.
struct ExchangeTraits {
  std::string name;                           // as in CollectiveTraits::form
  std::string summary;                        // one line
  PayloadForm payload = PayloadForm::kLanes;  // the kind of payload that codecs must make
  CodecNeed need = CodecNeed::kNone;
  // Cost terms in addition to those of the collective.
  bool gathers = false;  // every rank decodes the payload of every rank
  EncodedSums encoded_sums = EncodedSums::kNone;
  // The part of the gain of the codec's own selection that remains when other ranks' selections
  // apply, until ranks have measured it; 1: all of it.
  double gain_prior = 1;
  // It can work on a gradient in a device's memory (ExchangeInput::device). Payloads are in the
  // host's in any case.
  bool on_devices = false;
};

/// Returns whether the form can carry the codec's payloads. Thread-safe.
bool Carries(const ExchangeTraits& form, const CodecTraits& codec);

/// The state that a codec and its exchange form keep for a bucket between steps. It is renewed when
/// codec, parameters or layout change. Not thread-safe.
struct CodecMemory {
  std::string codec;  // empty: nothing is kept
  CodecParams params;
  // The meaning of the states; static text. Empty: one state of the bucket as a whole, which
  // checkpoints contain. Otherwise as defined by the form of that name.
  std::string_view layout = {};
  std::vector<std::unique_ptr<CodecState>> states = {};
  SparseBalance balance = {};

  /// The state of the whole bucket; null when there is none.
  CodecState* whole() const {
    return layout.empty() && !states.empty() ? states.front().get() : nullptr;
  }
  /// Announces that gradients and residuals are `factor` times as large from the next step on.
  void Scale(double factor);
};

/// Shared by all operations of a session, which it outlives. The members are thread-safe or
/// constant.
struct ExchangeEnvironment {
  ResidualStore& residuals;
  const Clock& clock;
  int rank = 0, world = 1;
  std::vector<int> nodes = {};  // as Group::nodes
  ScratchPool pool{16};
  GatheredPool gathered{8};
  CodecLossProbe loss_probe{world};
};

/// The input of one operation. Codec, collective, gradient, memory and shape must outlive its
/// exchange.
struct ExchangeInput {
  const Codec& codec;
  const Collective& collective;
  uint64_t bucket = 0;  // key of its residuals
  uint64_t step = 0;
  std::span<float> gradient;  // in: that of this rank; out: scale times the sum
  float scale = 1;
  EncodeContext context;  // params, world, rank, seed and shape
  CodecMemory& memory;
  bool sample = false;  // whether to measure the gradient, see GradientSample
  // The gradient, if it is in a device's memory; otherwise null. The device runs the codec, the
  // form has on_devices, and no aggregate residual is left unless the form encodes sums of nodes.
  DeviceBucket* device = nullptr;
  std::span<const float> host_gradient = {};  // with a device and `sample`: a copy of the gradient
};

/// Measurements of a gradient for codecs that have not encoded it.
struct GradientSample {
  std::vector<double> gains;  // by kGainCurveRatios
  double peak_over_rms = 0;
  std::vector<CodecLoss> losses;
};

/// The result of an operation. Durations are those of this rank.
struct ExchangeOutcome {
  bool non_finite = false;  // some rank met NaN or infinity; equal on all ranks after the last part
  // This rank met it while encoding. False where the gradient is not encoded, but summed as it is.
  bool own_non_finite = false;
  double energy_in = 0;                   // of gradient + residual
  double gain = 1;                        // fraction of it that was sent
  double residual_energy = -1;            // negative: no residual is in use
  std::optional<double> gradient_energy;  // of the gradient alone, if sampled
  size_t payload_bytes = 0;               // of all rounds, with values beside indices
  std::string_view ran_instead;  // collective that ran instead of the chosen one; else empty
  std::optional<GradientSample> sample;
  Duration metadata{0}, encode{0}, network{0}, decode{0};
};

/// One operation in progress: one or more parts, each of which is prepared and then moved, followed
/// by delivery. Whatever takes time to compute belongs into Prepare and Deliver. Only one thread
/// may use it at a time; another one may take over between two calls.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Computes what the first or next part sends. Errors are those of the codec and of
  /// ResidualStore.
  virtual Status Prepare() = 0;
  /// The number of the prepared part. It is ascending within the operation and equal on all ranks:
  /// 0 is an exchange of maxima, 1 is the first round of payloads. It is below 8, because numbers
  /// of operations have three bits for it.
  virtual int part() const = 0;
  /// In part 0: this rank's maxima, which the caller replaces by the maxima over all ranks. Empty
  /// in other parts. Several operations may exchange theirs in one message.
  virtual std::span<float> maxima() = 0;
  /// The flags that this rank announces with the part: kFlagNonFinite.
  virtual uint16_t flags() const = 0;
  /// True when no rank can finish the part before the frames of this part, and of earlier parts for
  /// which this was false, have told it of every rank. False for a part that stays within nodes.
  /// Equal on all ranks; true for the last part.
  virtual bool reaches_all() const { return true; }
  /// Runs the prepared part, on a group that has begun an operation for this part only. Errors are
  /// those of the collective. Not for part 0: there the caller replaces maxima() and then calls
  /// MaximaMoved with the time that it took.
  virtual Status Move(Group& group) = 0;
  virtual void MaximaMoved(Duration took) = 0;
  /// After a part has moved: whether another part follows, which Prepare prepares. Equal on all
  /// ranks. O(1).
  virtual bool more() const = 0;
  /// Leaves scale times the sum in the gradient, or states in the outcome that it is not finite, in
  /// which case the gradient is unspecified. Errors are those of the codec: kDataLoss.
  virtual Status Deliver() = 0;

  virtual const ExchangeOutcome& outcome() const = 0;
};

/// The memory that a bucket needs.
struct ExchangeMemory {
  uint64_t payload_bytes = 0;   // while its operation is in progress
  uint64_t residual_bytes = 0;  // as long as the choice is in use
};

/// Stateless and thread-safe.
class ExchangeForm {
 public:
  virtual ~ExchangeForm() = default;
  virtual const ExchangeTraits& Traits() const = 0;
  /// The memory for a bucket of this many elements with a codec that the form carries. Params,
  /// world and shape of the context are used.
  virtual ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                  const EncodeContext& context) const = 0;
  /// Begins an operation. The collective serves this form, and the form carries the codec.
  virtual std::unique_ptr<Exchange> Begin(const ExchangeInput& input,
                                          ExchangeEnvironment& environment) const = 0;
};

/// All forms of this build: builtin_exchanges.def. Thread-safe.
const Registry<ExchangeForm>& ExchangeForms();

/// The form that `collective` serves. An unknown form is a bug. Thread-safe.
const ExchangeForm& FormOf(const Collective& collective);

}  // namespace weir
