#pragma once
// The exchange forms: how one operation's gradient is encoded, moved and decoded. A form says what
// a codec must give it, what collectives of its name must move, what memory that takes and what it
// costs; an Exchange is one operation of it. Forms live in builtin/, one file each, and know
// nothing of plans, sessions or agents.

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
#include "datapath/codec/measure/codec_loss.h"
#include "datapath/codec/residual/error_feedback.h"
#include "datapath/collective/collective.h"
#include "datapath/exchange/gathered_pool.h"

namespace weir {

/// Which of the codecs that make the form's kind of payload a form can carry.
enum class CodecNeed {
  kNone,      // all of them
  kRawFloat,  // IsRawFloat: the payload is the elements themselves
  kTable,     // lanes that are levels of a table, see CodecSetting::lane_levels
  // Those that need no metadata of the whole bucket and keep neither momentum nor an estimate,
  // which the sum of several ranks would not fit.
  kSumsOfRanks,
};

/// Where sums are encoded inside of the collective.
enum class EncodedSums {
  kNone,
  kRegions,     // each rank encodes the sum of one of N equal regions, of what ranks had encoded
  kNodes,       // the first rank of each node encodes its node's exact sum; nothing before it
  kNodeShards,  // as kNodes, but where nodes hold as many ranks each encodes a part
};

/// A form as data. Planners need nothing else.
struct ExchangeTraits {
  std::string name;                           // what CollectiveTraits::form names
  std::string summary;                        // one line
  PayloadForm payload = PayloadForm::kLanes;  // what a codec must make
  CodecNeed need = CodecNeed::kNone;
  // Cost terms, beside those of the collective.
  bool gathers = false;  // every rank decodes the payload of every rank
  EncodedSums encoded_sums = EncodedSums::kNone;
  // What part of the gain that the codec's own selection promises is left when others' selections
  // serve, until ranks have measured it; 1: all of it.
  double gain_prior = 1;
};

/// Whether a codec's payloads can go by that form. Thread-safe.
bool Carries(const ExchangeTraits& form, const CodecTraits& codec);

/// What a codec, and a form beside it, keep of one bucket between steps. It is renewed when codec,
/// parameters or layout change. Not thread-safe.
struct CodecMemory {
  std::string codec;  // empty: nothing is kept
  CodecParams params;
  // What the states are of; static text. Empty: one state, of the bucket as a whole, which
  // checkpoints hold. Otherwise as the form of that name has them.
  std::string_view layout = {};
  std::vector<std::unique_ptr<CodecState>> states = {};
  SparseBalance balance = {};

  /// The state of the whole bucket; null when there is none.
  CodecState* whole() const {
    return layout.empty() && !states.empty() ? states.front().get() : nullptr;
  }
  /// From the next step on gradients and residuals are `factor` times as large.
  void Scale(double factor);
};

/// What all operations of a session share; outlives them. The members are thread-safe or constant.
struct ExchangeEnvironment {
  ResidualStore& residuals;
  const Clock& clock;
  int rank = 0, world = 1;
  std::vector<int> nodes = {};  // as Group::nodes
  ScratchPool pool{16};
  GatheredPool gathered{8};
  CodecLossProbe loss_probe{world};
};

/// One operation. Codec, collective, gradient, memory and shape outlive its exchange.
struct ExchangeInput {
  const Codec& codec;
  const Collective& collective;
  uint64_t bucket = 0;  // key of its residuals
  uint64_t step = 0;
  std::span<float> gradient;  // in: this rank's; out: scale times the sum
  float scale = 1;
  EncodeContext context;  // params, world, rank, seed and shape
  CodecMemory& memory;
  bool sample = false;  // whether to measure the gradient, see GradientSample
};

/// What a codec that knows no gradient would have to be told of this one.
struct GradientSample {
  std::vector<double> gains;  // by kGainCurveRatios
  double peak_over_rms = 0;
  std::vector<CodecLoss> losses;
};

/// What an operation did. Durations are of this rank.
struct ExchangeOutcome {
  bool non_finite = false;      // some rank met NaN or infinity: equal on all once all parts moved
  double energy_in = 0;         // of gradient + residual
  double gain = 1;              // share of it that was sent
  double residual_energy = -1;  // negative: no residual in use
  std::optional<double> gradient_energy;  // of the gradient alone, where it was sampled
  size_t payload_bytes = 0;               // all rounds, and values beside index payloads
  std::string_view ran_instead;           // of the collective that was chosen; empty: that one ran
  std::optional<GradientSample> sample;
  Duration metadata{0}, encode{0}, network{0}, decode{0};
};

/// One operation on its way: parts that are prepared and moved in turn, at least one, then
/// delivered. All computing that takes time is in Prepare and Deliver. One thread at a time; any
/// thread may take over between two calls.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Computes what the first or next part sends. Errors are the codec's and ResidualStore's.
  virtual Status Prepare() = 0;
  /// Number of the part that was prepared, ascending within the operation and equal on all ranks: 0
  /// is an exchange of maxima, 1 the first round of payloads. Below 8: numbers of operations have
  /// three bits for it.
  virtual int part() const = 0;
  /// Of part 0: what this rank offers, to be replaced by the greatest of all ranks. Empty in other
  /// parts. Several operations may exchange theirs in one message.
  virtual std::span<float> maxima() = 0;
  /// What this rank has to announce with the part: kFlagNonFinite.
  virtual uint16_t flags() const = 0;
  /// True when the part, with those before that did not reach all, ends on no rank before it heard
  /// of every rank. False where a part stays within nodes. Equal on all ranks; true of the last
  /// one.
  virtual bool reaches_all() const { return true; }
  /// Runs the part that was prepared, on a group that has begun an operation for it alone. Errors
  /// are the collective's. Instead, for part 0: maxima() were agreed on, which took so long.
  virtual Status Move(Group& group) = 0;
  virtual void MaximaMoved(Duration took) = 0;
  /// After a part moved: whether another follows, which Prepare prepares. Equal on all ranks. O(1).
  virtual bool more() const = 0;
  /// Leaves scale times the sum in the gradient, or says in the outcome that it is not finite; the
  /// gradient is then unspecified. Errors are the codec's: kDataLoss.
  virtual Status Deliver() = 0;

  virtual const ExchangeOutcome& outcome() const = 0;
};

/// Memory that one bucket needs.
struct ExchangeMemory {
  uint64_t payload_bytes = 0;   // while its operation is under way
  uint64_t residual_bytes = 0;  // as long as the choice runs
};

/// Stateless and thread-safe.
class ExchangeForm {
 public:
  virtual ~ExchangeForm() = default;
  virtual const ExchangeTraits& Traits() const = 0;
  /// Of a bucket of so many elements with a codec that the form carries; params, world and shape of
  /// the context count.
  virtual ExchangeMemory MemoryOf(const Codec& codec, uint64_t elements,
                                  const EncodeContext& context) const = 0;
  /// The collective's form is this one, and it carries the codec.
  virtual std::unique_ptr<Exchange> Begin(const ExchangeInput& input,
                                          ExchangeEnvironment& environment) const = 0;
};

/// Every form of this build: builtin_exchanges.def. Thread-safe.
const Registry<ExchangeForm>& ExchangeForms();

/// The form that `collective` serves; a collective of an unknown form is a bug. Thread-safe.
const ExchangeForm& FormOf(const Collective& collective);

}  // namespace weir
