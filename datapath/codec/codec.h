#pragma once
// The Codec interface: how one bucket becomes bytes and comes back. Implementations live in
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

/// What a payload is, and so which exchange forms can carry it.
enum class PayloadForm {
  kLanes,        // n fixed-size lanes; payloads of all ranks add lane by lane without decoding
  kOpaque,       // variable size; every rank needs every payload
  kSharedIndex,  // one rank's indices serve all; float32 values at them add (AR-Topk)
  kUnionIndex,   // all ranks' indices together serve all; values as above
};

/// True for payloads without values, which travel beside them once the ranks agree on indices.
constexpr bool HoldsIndicesOnly(PayloadForm form) {
  return form == PayloadForm::kSharedIndex || form == PayloadForm::kUnionIndex;
}

/// What all ranks must agree on before any of them encodes.
enum class SharedMetadata {
  kNone,
  kMax,  // the maximum over ranks of Codec::LocalMax
};

/// How the loss of a codec follows from statistics of the input, so that whoever plans can predict
/// gain without knowing the codec. s is the setting in use.
enum class ErrorModel {
  kExact,             // gain 1
  kSelection,         // keeps a `ratio` of the elements, the largest: gain from the histogram's
                      // curve, times 1 - s.relative_error_squared
  kUniformSelection,  // keeps a random `ratio`: gain = ratio
  kRelative,          // independent of the input: gain = 1 - s.relative_error_squared
  kMaxScaled,  // uniform grid of step max|x|/s.levels: error = n*(max/levels)^2/error_divisor; with
               // one level left, that is up to twice the error
  kUnknown,    // follows the input's scale: size and loss show only when it runs
};

/// One way in which a codec represents values, and what it costs. A codec whose lanes widen with
/// the world lists one setting per range of world sizes.
struct CodecSetting {
  int bits = 0;  // CodecParams.bits that asks for it; 0 for codecs without that parameter
  // Payload bits per dense element, all rounds together = fixed_bits + ratio * kept_bits, plus the
  // entropy of the kept positions (H(ratio) bits per element) when Traits().indices_coded.
  double fixed_bits = 0;
  double kept_bits = 0;
  double relative_error_squared = 0;  // kRelative; kSelection: of what is kept
  double levels = 0;  // kMaxScaled: levels at world size 1; divided by the world when
                      // levels_divided_by_world
  int world_min = 1;
  int world_max = 0;  // largest world size; 0: any
  // Not empty: each of `bits` wide lanes is one of these, at most 16 ascending numbers from 0 on,
  // minus half the greatest, which is even.
  std::vector<uint8_t> lane_levels = {};
};

/// A codec as data. A planner needs nothing else.
struct CodecTraits {
  std::string name;     // of a variant with its parameter (datapath/base/registry.h)
  std::string summary;  // one line with the source paper
  bool lossy = true;
  bool unbiased = false;
  bool needs_error_feedback = false;
  bool needs_momentum = false;  // keeps a moving sum of gradients beside the residual
  // Encodes what changed in the gradient, and what the optimiser sees is a running estimate of the
  // mean gradient: the caller keeps Ef21Buffers in place of a residual (ef21.h).
  bool ef21 = false;
  // Changes what the optimiser sees (momentum inside, magnitudes dropped): used only where a plan
  // or policy names it.
  bool opt_in = false;
  PayloadForm form = PayloadForm::kOpaque;
  SharedMetadata shared_metadata = SharedMetadata::kNone;
  // kMax: one magnitude for each aligned block of so many elements; 0: one for the bucket.
  int shared_block = 0;
  // kLanes that count votes: the sum of all ranks decodes to (2 * count - world) * shared_max, a
  // payload alone does not, and no payload stands for zeros.
  bool lanes_are_votes = false;
  // kLanes whose additions are rounded at random: the mean square error of adding the payloads of
  // two ranks with normal input, over the square of their sum. The sum of payloads then decodes to
  // the sum of what they decode to only in the mean over seeds, and depends on how the payloads are
  // cut. 0: it does so as exactly as the lanes' own precision allows.
  double sum_error_squared = 0;
  // Encode and exchange alternate this often; kLanes only. A round sees the sums of those before.
  int rounds = 1;
  std::vector<CodecSetting> settings;  // at least one; the first is the default
  bool indices_coded = false;
  // The kept part is whole ranks or rows of matrices: sizes are near those of the settings where
  // the ratio leaves several of them. MaxEncodedBytes is exact.
  bool size_in_steps = false;
  bool uses_ratio = false;  // params.ratio matters
  double ratio_min = 1, ratio_max = 1;
  double count_tolerance = 0;  // the kept count may miss ratio * n by this fraction of it
  int kept_block = 1;          // elements are kept in aligned blocks of this many
  ErrorModel error_model = ErrorModel::kExact;
  bool levels_divided_by_world = false;  // lanes must hold the sum of all ranks
  double peak_over_rms = 0;              // kMaxScaled: of what is quantised; 0: the input's own
  double error_divisor = 12;  // kMaxScaled: 12 for rounding, 6 for stochastic rounding (mean)
  // Of every setting and every x: E|C(x) - x|^2 <= (1 - contraction * ratio) |x|^2, ratio 1 without
  // uses_ratio; what convergence under error feedback rests on. 0: nothing is promised.
  double contraction = 0;
  bool rotated = false;  // a random rotation comes first: arithmetic sets its speed, not memory
};

/// True when the payload is the float32 elements themselves, so that their buffer can be the
/// payload. Thread-safe.
bool IsRawFloat(const CodecTraits& traits);

/// The parameters of one choice. Fields that a codec does not use are ignored.
struct CodecParams {
  double ratio = 1;  // kept fraction, 0 < ratio <= 1
  int bits = 0;      // of the codec's settings; 0: the first that allows the world size
  friend bool operator==(const CodecParams&, const CodecParams&) = default;
};

/// The setting that `params` ask for at this world size; null when there is none.
const CodecSetting* FindSetting(const CodecTraits& traits, const CodecParams& params, int world);

/// One tensor of a bucket, row-major. A vector has one row.
struct TensorShape {
  uint64_t rows = 1;
  uint64_t columns = 0;
  uint64_t elements() const { return rows * columns; }
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

/// What a bucket is to a codec.
struct BucketSize {
  uint64_t elements = 0;
  std::vector<TensorShape> shape;  // of its tensors in order; empty: one vector
};

/// What a codec keeps per bucket between steps (warm start, last threshold). Created by NewState,
/// used by one thread at a time.
class CodecState {
 public:
  virtual ~CodecState() = default;

  /// What a checkpoint must hold so that Load, on a state that NewState made for the same bucket
  /// and parameters, goes on with the same bytes as this one; empty when a fresh state does as
  /// well. The layout is the codec's own and begins with a version (proto/WIRE.md section 3).
  virtual std::vector<std::byte> Save() const;
  /// Takes what Save gave, of whatever bucket. kDataLoss: anything else; the state is then good for
  /// nothing. Trusts nothing: what it accepts can make a step cost more, never go wrong.
  virtual Status Load(std::span<const std::byte> bytes);
  /// From the next step on gradients and residuals are `factor` times as large, finite and
  /// positive. The default does nothing.
  virtual void Scale(double factor);
};

/// The moving sum of gradients of a codec with needs_momentum, each span as long as the bucket. The
/// spans may be the same, never overlap otherwise.
struct MomentumBuffers {
  std::span<const float> current;  // after the last step
  std::span<float> next;           // to be filled in this step
};

/// Everything Encode needs besides the input. Equal on all ranks but for rank, momentum, state and
/// statistics.
struct EncodeContext {
  CodecParams params;
  int world = 1;      // number of ranks whose payloads will be summed
  uint64_t seed = 0;  // one for each (job, bucket, step)
  int rank = 0;       // who encodes, so that quantiser noise differs; kOpaque: who encoded
  // The tensors of the bucket in order; their sizes add up to n. Empty: one vector.
  std::span<const TensorShape> shape;
  SharedMax shared_max;                 // when Traits().shared_metadata == kMax
  int round = 0;                        // below Traits().rounds
  std::span<const std::byte> previous;  // summed payloads of the rounds before, one after another
  MomentumBuffers momentum;             // when Traits().needs_momentum; empty: zero, and not kept
  CodecState* state = nullptr;          // from NewState, or null: stateless call
  GradientStatistics* statistics = nullptr;  // when set, filled by the pass (of the last round)
};

/// What one encode did.
struct EncodeResult {
  size_t bytes = 0;         // written to `out`
  bool non_finite = false;  // input held NaN or infinity: `out` is a valid all-zero payload
  double energy_in = 0;     // sum of squares of what was encoded (gradient plus residual)
  double energy_lost = 0;   // sum of squares of what stayed behind
};

/// A gradient compressor. Const methods are thread-safe; CodecState is not. Deterministic: the same
/// input, context and SIMD target class give the same bytes.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual const CodecTraits& Traits() const = 0;

  /// kInvalidArgument when `params` or the world size are outside Traits().
  virtual Status Validate(const CodecParams& params, int world) const;

  /// Exact worst case of Encode's output for n elements, all rounds together. Of the context only
  /// params, world and shape count; they are valid.
  virtual size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const = 0;

  /// State for one bucket of n elements; null when the codec keeps none. Context as above.
  virtual std::unique_ptr<CodecState> NewState(size_t n, const EncodeContext& context) const;

  /// This rank's part of shared_max: at least 0, +infinity where gradient + residual is not finite,
  /// so that all ranks learn of it; as many as Traits().shared_block says. `residual` is empty or
  /// as long as `gradient`. The default is MaxAbs of the bucket. O(n).
  virtual SharedMax LocalMax(std::span<const float> gradient, std::span<const float> residual,
                             const EncodeContext& context) const;

  /// Encodes x (n float32) into out (at least MaxEncodedBytes(n), less what earlier rounds wrote).
  /// No overlap. Does not change x. Non-finite input is not an error: see EncodeResult, which
  /// counts in the last round but for bytes and non_finite. kInvalidArgument: params, world size,
  /// shape; kInternal: `out` too small. Complexity in the implementation.
  virtual StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                        std::span<std::byte> out) const = 0;

  /// Error feedback in the same pass: encodes gradient + residual and stores what was lost in
  /// `residual_out` (in the last round; before it is untouched). All three hold n floats;
  /// residual_out may be the same span as `residual`, never overlap otherwise. On non-finite input
  /// residual_out's content is unspecified: the caller keeps `residual`. The default composes add,
  /// Encode and DecodeAdd(-1), for one round.
  virtual StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                                    std::span<const float> residual,
                                                    std::span<float> residual_out,
                                                    const EncodeContext& context,
                                                    std::span<std::byte> out) const;

  /// out += scale * decode(payload), out holds n floats. With several rounds the payload is the
  /// concatenation of all rounds' sums. Trusts nothing in `payload`: kDataLoss with the offset, in
  /// which case `out` may hold a partial sum. `context` is the encoder's; with a state, the state
  /// learns what all ranks decoded.
  virtual Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context,
                           float scale, std::span<float> out) const = 0;

  /// out = scale * the sum of the payloads of ranks 0, 1 and so on, added in this order, and Finish
  /// done. `done` gets one part of it after the other when nothing is added any more, while it is
  /// in the cache; what it changes there is what `out` comes to hold. Errors as DecodeAdd's, naming
  /// the rank; `context` is anybody's. The default calls DecodeAdd for every payload.
  virtual Status DecodeSum(std::span<const std::vector<std::byte>> payloads,
                           const EncodeContext& context, float scale, std::span<float> out,
                           const std::function<void(std::span<float>)>& done) const;

  /// What is left to do to the decoded sum, once, where aggregation is not a sum (majority vote).
  /// `out` is scale times the sum over all ranks. The default does nothing. O(n).
  virtual void Finish(const EncodeContext& context, float scale, std::span<float> out) const;

  // --- PayloadForm::kLanes only ---------------------------------------------------------------
  /// Payloads may be cut at multiples of this many bytes.
  virtual size_t LaneBytes(const EncodeContext& context) const;
  /// sum += addend, lane by lane, over whole lanes of equal-sized buffers. The same bytes with the
  /// operands exchanged, and on every rank. Never fails.
  virtual void Accumulate(const EncodeContext& context, std::span<std::byte> sum,
                          std::span<const std::byte> addend) const;

  // --- HoldsIndicesOnly(form) (and top_k under it) -------------------------------------------
  /// Indices of a payload made by Encode, ascending. kUnimplemented unless the codec selects.
  virtual Status DecodeIndices(std::span<const std::byte> payload, size_t n,
                               std::vector<uint32_t>* indices) const;

  /// Tells context.state that the ranks came to keep `kept` of n positions, the same everywhere.
  /// The default does nothing. O(1).
  virtual void LearnSelection(const EncodeContext& context, size_t kept, size_t n) const;
};

/// Every codec of this build: builtin_codecs.def. Thread-safe.
const Registry<Codec>& Codecs();

}  // namespace weir
