// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Codec interface, which encodes a bucket into bytes and decodes it. Implementations are in
// builtin/, one file each, and know nothing of networks, plans or steps.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/registry.h"
#include "datapath/base/status.h"
#include "datapath/codec/residual/gradient_statistics.h"
#include "datapath/codec/shared_max.h"

namespace weir {

/// The kind of payload, which determines the exchange forms that can carry it.
enum class PayloadForm {
  kLanes,        // n fixed-size lanes; payloads of all ranks add lane by lane without decoding
  kOpaque,       // variable size; every rank needs the payloads of all ranks
  kSharedIndex,  // one rank's indices apply to all; the float32 values there are added (AR-Topk)
  kUnionIndex,   // the union of all ranks' indices applies to all; values as above
};

/// Returns true for payloads without values. The values are exchanged separately, once the ranks
/// have agreed on the indices.
constexpr bool HoldsIndicesOnly(PayloadForm form) {
  return form == PayloadForm::kSharedIndex || form == PayloadForm::kUnionIndex;
}

/// The value on which all ranks must agree before any of them encodes.
enum class SharedMetadata {
  kNone,
  kMax,  // the maximum over ranks of Codec::LocalMax
};

/// How the loss of a codec follows from statistics of the input, so that a planner can predict the
/// gain without knowing the codec. s is the setting in use.
enum class ErrorModel {
  kExact,  // gain 1
  // Keeps a `ratio` of the elements, the largest ones: the gain is that of the histogram's curve,
  // times 1 - s.relative_error_squared.
  kSelection,
  kUniformSelection,  // keeps a random `ratio`: gain = ratio
  kRelative,          // independent of the input: gain = 1 - s.relative_error_squared
  // A uniform grid of step max|x|/s.levels: error = n*(max/levels)^2/error_divisor, or up to twice
  // that with only one level left.
  kMaxScaled,
  kUnknown,  // size and loss follow the scale of the input and are only known once it runs
};

/// One representation of values by a codec, and its cost. A codec whose lanes widen with the world
/// size lists one setting per range of world sizes.
struct CodecSetting {
  int bits = 0;  // CodecParams.bits that selects this setting; 0 if the codec has no such parameter
  // Payload bits per dense element, over all rounds: fixed_bits + ratio * kept_bits, plus the
  // entropy of the kept positions (H(ratio) bits per element) if Traits().indices_coded.
  double fixed_bits = 0;
  double kept_bits = 0;
  double relative_error_squared = 0;  // kRelative; kSelection: of the kept values
  // kMaxScaled: levels at world size 1; divided by the world size if levels_divided_by_world.
  double levels = 0;
  int world_min = 1;
  int world_max = 0;  // largest world size; 0: any
  // If not empty, each lane of `bits` bits is one of these values minus half the greatest, which is
  // even. They are at most 16 ascending numbers, of which the first is 0.
  std::vector<uint8_t> lane_levels = {};
};

/// The properties of a codec as data. A planner needs nothing else.
struct CodecTraits {
  std::string name;     // with the parameter of a variant (datapath/base/registry.h)
  std::string summary;  // one line with the source paper
  bool lossy = true;
  bool unbiased = false;
  bool needs_error_feedback = false;
  bool needs_momentum = false;  // keeps a moving sum of gradients in addition to the residual
  // Encodes the change of the gradient, and delivers a running estimate of the mean gradient to the
  // optimiser. The caller keeps Ef21Buffers in place of a residual (ef21.h).
  bool ef21 = false;
  // Changes what the optimiser sees (momentum inside, dropped magnitudes), so it is only used where
  // a plan or policy names it.
  bool opt_in = false;
  PayloadForm form = PayloadForm::kOpaque;
  SharedMetadata shared_metadata = SharedMetadata::kNone;
  // kMax: one magnitude for each aligned block of this many elements; 0: one for the whole bucket.
  int shared_block = 0;
  // kLanes that count votes: the sum of all ranks' payloads decodes to (2 * count - world) *
  // shared_max. A single payload does not decode, and no payload represents zeros.
  bool lanes_are_votes = false;
  // kLanes whose additions are rounded at random: the mean square error of adding the payloads of
  // two ranks with normal input, divided by the square of their sum. Then the sum of payloads
  // decodes to the sum of their values only in the mean over seeds, and depends on how payloads are
  // cut into pieces. 0: additions are as exact as the precision of the lanes.
  double sum_error_squared = 0;
  // The number of rounds in which encoding and exchange alternate; above 1 for kLanes only. Each
  // round sees the sums of the rounds before.
  int rounds = 1;
  std::vector<CodecSetting> settings;  // at least one; the first is the default
  bool indices_coded = false;
  // The kept part consists of whole ranks or rows of matrices, so sizes are near those of the
  // settings only where the ratio leaves several of them. MaxEncodedBytes is exact.
  bool size_in_steps = false;
  bool uses_ratio = false;  // whether params.ratio has an effect
  double ratio_min = 1, ratio_max = 1;
  double count_tolerance = 0;  // bound on |kept count - ratio * n| / (ratio * n)
  int kept_block = 1;          // elements are kept in aligned blocks of this size
  ErrorModel error_model = ErrorModel::kExact;
  bool levels_divided_by_world = false;  // lanes must hold the sum of all ranks
  double peak_over_rms = 0;              // kMaxScaled: of the quantised data; 0: as the input's
  double error_divisor = 12;  // kMaxScaled: 12 for rounding, 6 for stochastic rounding (mean)
  // For every setting and every x: E|C(x) - x|^2 <= (1 - contraction * ratio) |x|^2, with ratio 1
  // if not uses_ratio. Convergence under error feedback depends on this. 0: there is no such bound.
  double contraction = 0;
  bool rotated = false;  // begins with a random rotation: arithmetic limits its speed
};

/// Returns true when the payload consists of the float32 elements themselves, so that their buffer
/// can serve as the payload. Thread-safe.
bool IsRawFloat(const CodecTraits& traits);

/// The parameters of one choice. A codec ignores the fields that it does not use.
struct CodecParams {
  double ratio = 1;  // kept fraction, 0 < ratio <= 1
  int bits = 0;      // one of the settings' `bits`; 0: the first setting that allows the world size
  friend bool operator==(const CodecParams&, const CodecParams&) = default;
};

/// The setting that `params` select at this world size, or null when there is none.
const CodecSetting* FindSetting(const CodecTraits& traits, const CodecParams& params, int world);

/// One tensor of a bucket, row-major. A vector has one row.
struct TensorShape {
  uint64_t rows = 1;
  uint64_t columns = 0;
  uint64_t elements() const { return rows * columns; }
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

/// Size and shape of a bucket.
struct BucketSize {
  uint64_t elements = 0;
  std::vector<TensorShape> shape;  // its tensors in order; empty: one vector
};

/// The data that a codec keeps for a bucket between steps (warm start, last threshold). NewState
/// creates it; only one thread at a time uses it.
class CodecState {
 public:
  virtual ~CodecState() = default;

  /// The bytes for a checkpoint. After Load, a state that NewState made for the same bucket and
  /// parameters continues with the same payloads as this one. Empty when a fresh state serves as
  /// well. The layout belongs to the codec and begins with a version (proto/WIRE.md section 3).
  virtual std::vector<std::byte> Save() const;
  /// Restores bytes that Save gave, of any bucket. kDataLoss: other bytes; the state must not be
  /// used then. Trusts nothing: bytes that it accepts can make a step more expensive but never
  /// wrong.
  virtual Status Load(std::span<const std::byte> bytes);
  /// Announces that from the next step on gradients and residuals are `factor` times as large.
  /// factor is finite and positive. The default does nothing.
  virtual void Scale(double factor);
};

/// The moving sum of gradients of a codec with needs_momentum. Each span is as long as the bucket.
/// The two are the same memory or do not overlap.
struct MomentumBuffers {
  std::span<const float> current;  // as of the last step
  std::span<float> next;           // to be filled in this step
};

/// Everything that Encode needs besides the input. It is the same on all ranks except for rank,
/// momentum, state and statistics.
struct EncodeContext {
  CodecParams params;
  int world = 1;      // number of ranks whose payloads will be summed
  uint64_t seed = 0;  // differs for each (job, bucket, step)
  int rank = 0;  // the encoding rank, so that quantisation noise differs; kOpaque: of the payload
  // The tensors of the bucket in order. Their sizes add up to n. Empty: one vector.
  std::span<const TensorShape> shape;
  SharedMax shared_max;                      // if Traits().shared_metadata == kMax
  int round = 0;                             // below Traits().rounds
  std::span<const std::byte> previous;       // summed payloads of earlier rounds, concatenated
  MomentumBuffers momentum;                  // if Traits().needs_momentum; empty: zero, not kept
  CodecState* state = nullptr;               // from NewState; null: the call keeps no state
  GradientStatistics* statistics = nullptr;  // if set, filled in the pass (last round)
};

/// The result of one call of Encode.
struct EncodeResult {
  size_t bytes = 0;         // written to `out`
  bool non_finite = false;  // input has NaN or infinity; `out` is a valid payload of zeros
  double energy_in = 0;     // sum of squares of the input (gradient plus residual)
  double energy_lost = 0;   // sum of squares of what the payload does not hold
};

/// A gradient compressor. Const methods are thread-safe; CodecState is not. Deterministic: the same
/// input, context and SIMD target class give the same bytes.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual const CodecTraits& Traits() const = 0;

  /// kInvalidArgument when Traits() do not permit `params` or the world size.
  virtual Status Validate(const CodecParams& params, int world) const;

  /// The exact worst case of Encode's output for n elements, over all rounds. It depends only on
  /// params, world and shape of the context, which must be valid.
  virtual size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const = 0;

  /// A new state for a bucket of n elements, or null when the codec keeps none. Context as above.
  virtual std::unique_ptr<CodecState> NewState(size_t n, const EncodeContext& context) const;

  /// This rank's contribution to shared_max, with as many values as Traits().shared_block implies.
  /// Each is at least 0, and +infinity where gradient + residual is not finite, so that all ranks
  /// learn of it. `residual` is empty or as long as `gradient`. The default is MaxAbs of the
  /// bucket. O(n).
  virtual SharedMax LocalMax(std::span<const float> gradient, std::span<const float> residual,
                             const EncodeContext& context) const;

  /// Encodes x (n float32) into `out`, which has at least MaxEncodedBytes(n) less the bytes of
  /// earlier rounds and does not overlap x. Non-finite input is not an error; see EncodeResult, of
  /// which only bytes and non_finite are valid before the last round. kInvalidArgument: params,
  /// world size or shape are wrong. kInternal: `out` is too small. Implementations state the
  /// complexity.
  virtual StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                        std::span<std::byte> out) const = 0;

  /// Error feedback in the same pass: encodes gradient + residual and, in the last round, stores
  /// what the payload lacks in `residual_out`. All three have n floats; residual_out is the same
  /// span as `residual` or overlaps neither. On non-finite input the content of residual_out is
  /// unspecified, and the caller keeps `residual`. The default is for one round and composes
  /// addition, Encode and DecodeAdd(-1).
  virtual StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                                    std::span<const float> residual,
                                                    std::span<float> residual_out,
                                                    const EncodeContext& context,
                                                    std::span<std::byte> out) const;

  /// out += scale * decode(payload), where `out` has n floats. With several rounds the payload is
  /// the concatenation of all rounds' sums. Trusts nothing in `payload`: kDataLoss with the offset,
  /// in which case `out` may hold a partial sum. `context` is that of the encoder; its state, if
  /// any, learns what all ranks decode.
  virtual Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context,
                           float scale, std::span<float> out) const = 0;

  /// out = scale * the sum of the payloads of ranks 0, 1 and so on, added in this order and
  /// followed by Finish. `done` is called with one part of `out` after the other, when the part is
  /// complete and still in the cache; it may change the part. Errors as for DecodeAdd, naming the
  /// rank. `context` may be that of any rank. The default calls DecodeAdd for every payload.
  virtual Status DecodeSum(std::span<const std::vector<std::byte>> payloads,
                           const EncodeContext& context, float scale, std::span<float> out,
                           const std::function<void(std::span<float>)>& done) const;

  /// Completes the decoded sum, once, where aggregation is not a sum (majority vote). `out` is
  /// scale times the sum over all ranks. The default does nothing. O(n).
  virtual void Finish(const EncodeContext& context, float scale, std::span<float> out) const;

  // --- PayloadForm::kLanes only ---------------------------------------------------------------
  /// Payloads may be cut at multiples of this many bytes.
  virtual size_t LaneBytes(const EncodeContext& context) const;
  /// sum += addend, lane by lane, over whole lanes of equal-sized buffers. Gives the same bytes
  /// when the operands are exchanged, and on every rank. Never fails.
  virtual void Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                          std::span<const std::byte> addend) const;

  // --- HoldsIndicesOnly(form) (and top_k under it) -------------------------------------------
  /// The indices of a payload made by Encode, ascending. kUnimplemented unless the codec selects.
  virtual Status DecodeIndices(std::span<const std::byte> payload, size_t n,
                               std::vector<uint32_t>* indices) const;

  /// Tells context.state that the ranks have agreed to keep `kept` of n positions, the same on all
  /// ranks. The default does nothing. O(1).
  virtual void LearnSelection(const EncodeContext& context, size_t kept, size_t n) const;
};

/// All codecs of this build: builtin_codecs.def. Thread-safe.
const Registry<Codec>& Codecs();

}  // namespace weir
