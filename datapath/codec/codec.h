#pragma once
// The Codec interface: how one bucket becomes bytes and comes back. Implementations live in
// builtin/, one file each, and know nothing of networks, plans or steps.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/registry.h"
#include "datapath/base/status.h"
#include "datapath/codec/gradient_statistics.h"

namespace weir {

/// What a payload is, and so which collectives can carry it.
enum class PayloadForm {
  kLanes,        // n fixed-size lanes; payloads of all ranks add lane by lane without decoding
  kOpaque,       // variable size; every rank needs every payload
  kSharedIndex,  // one rank's indices serve all; float32 values at them add (AR-Topk)
};

/// What all ranks must agree on before any of them encodes.
enum class SharedMetadata {
  kNone,
  kMaxAbs,  // one float: the maximum over ranks of max|x|
};

/// How the loss of a codec follows from statistics of the input, so that whoever plans can predict
/// gain without knowing the codec.
enum class ErrorModel {
  kExact,      // gain 1
  kSelection,  // keeps a `ratio` of the elements, the largest: gain from the histogram's curve
  kUniformSelection,  // keeps a random `ratio`: gain = ratio
  kRelative,          // relative error independent of the input: gain = 1 - relative_error_squared
  kMaxScaled,         // uniform grid of step max|x|/levels: error = n*(max/levels)^2/error_divisor
};

/// A codec as data. A planner needs nothing else.
struct CodecTraits {
  std::string name;
  std::string summary;  // one line with the source paper
  bool lossy = true;
  bool unbiased = false;
  bool needs_error_feedback = false;
  PayloadForm form = PayloadForm::kOpaque;
  SharedMetadata shared_metadata = SharedMetadata::kNone;
  int rounds = 1;  // exchange rounds per encode; 2 for low-rank methods that all-reduce twice
  // Payload bits per dense element = fixed_bits + ratio * kept_bits, plus the entropy of the kept
  // positions (H(ratio) bits per element) when indices_coded.
  double fixed_bits = 0;
  double kept_bits = 0;
  bool indices_coded = false;
  bool uses_ratio = false;  // params.ratio matters
  double ratio_min = 1, ratio_max = 1;
  ErrorModel error_model = ErrorModel::kExact;
  double relative_error_squared = 0;  // kRelative
  double levels = 0;  // kMaxScaled: levels at world size 1; divided by the world when
  bool levels_divided_by_world = false;  // lanes must hold the sum of all ranks
  double error_divisor = 12;  // kMaxScaled: 12 for rounding, 6 for stochastic rounding (mean)
  int world_max = 0;          // largest world size; 0: any
};

/// The parameters of one choice. Fields that a codec does not use are ignored.
struct CodecParams {
  double ratio = 1;  // kept fraction, 0 < ratio <= 1
  friend bool operator==(const CodecParams&, const CodecParams&) = default;
};

/// What a codec keeps per bucket between steps (warm start, last threshold). Created by NewState,
/// used by one thread at a time.
class CodecState {
 public:
  virtual ~CodecState() = default;
};

/// Everything Encode needs besides the input.
struct EncodeContext {
  CodecParams params;
  int world = 1;                             // number of ranks whose payloads will be summed
  uint64_t seed = 0;                         // equal on all ranks for one (job, bucket, step)
  int rank = 0;                              // so that quantiser noise differs between ranks
  float shared_max_abs = 0;                  // when Traits().shared_metadata == kMaxAbs
  CodecState* state = nullptr;               // from NewState, or null: stateless call
  GradientStatistics* statistics = nullptr;  // when set, filled by the pass
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

  /// Exact worst case of Encode's output for n elements.
  virtual size_t MaxEncodedBytes(size_t n, const CodecParams& params) const = 0;

  /// State for one bucket of n elements; null when the codec keeps none.
  virtual std::unique_ptr<CodecState> NewState(size_t n, const CodecParams& params) const;

  /// Encodes x (n float32) into out (at least MaxEncodedBytes(n)). No overlap. Does not change x.
  /// Non-finite input is not an error: see EncodeResult. kInvalidArgument: params; kInternal: `out`
  /// too small. Complexity in the implementation.
  virtual StatusOr<EncodeResult> Encode(std::span<const float> x, const EncodeContext& context,
                                        std::span<std::byte> out) const = 0;

  /// Error feedback in the same pass: encodes gradient + residual and stores what was lost in
  /// `residual_out`. All three hold n floats; residual_out may be the same span as `residual`,
  /// never overlap otherwise. On non-finite input residual_out's content is unspecified: the caller
  /// keeps `residual`. The default composes add, Encode and DecodeAdd(-1).
  virtual StatusOr<EncodeResult> EncodeWithFeedback(std::span<const float> gradient,
                                                    std::span<const float> residual,
                                                    std::span<float> residual_out,
                                                    const EncodeContext& context,
                                                    std::span<std::byte> out) const;

  /// out += scale * decode(payload), out holds n floats. Trusts nothing in `payload`: kDataLoss
  /// with the offset, in which case `out` may hold a partial sum. `context` is the encoder's
  /// (params, world, seed, shared_max_abs).
  virtual Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext& context,
                           float scale, std::span<float> out) const = 0;

  // --- PayloadForm::kLanes only ---------------------------------------------------------------
  /// Bytes of one lane; payloads may be cut at multiples of it.
  virtual size_t LaneBytes() const { return 0; }
  /// sum[i] += addend[i] over whole lanes of equal-sized buffers. noexcept kernel.
  virtual void Accumulate(std::span<std::byte> sum, std::span<const std::byte> addend) const;

  // --- PayloadForm::kSharedIndex (and top_k under it) -------------------------------------------
  /// Indices of a payload made by Encode, ascending. kUnimplemented unless the codec selects.
  virtual Status DecodeIndices(std::span<const std::byte> payload, size_t n,
                               std::vector<uint32_t>* indices) const;
};

/// Every codec of this build: builtin_codecs.def. Thread-safe.
const Registry<Codec>& Codecs();

}  // namespace weir
