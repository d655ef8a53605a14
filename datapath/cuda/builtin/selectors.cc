// SPDX-License-Identifier: Apache-2.0
// Top-k and the selectors beside it on the device; the host's codecs (ThresholdCodec) describe the
// payload and choose the threshold. The first attempt takes one pass with a threshold, which is
// that of the last step or of the codec's rule, and nothing waits for it. Whether it missed is
// known when the host reads the size of the payload (Resolve), which then takes the two exact
// passes. Where there is no threshold, because top_k has no state yet, every payload takes them.
// Rules that ask for moments wait for each, so they run in Resolve. Means are sums in another order
// than the host's, so thresholds that were estimated from them may differ in the last bit.

#include "datapath/codec/select/selection_payload.h"
#include "datapath/codec/select/threshold_codec.h"
#include "datapath/cuda/memory.h"
#include "datapath/cuda/selection.h"

namespace weir::cuda {
namespace {

/// The part of a selection that the host reads, in pinned memory.
struct Readback {
  Outcome outcome;
  SelectionPlan plan;
  TailSums tails;
  uint32_t bins[GradientStatistics::kBins];
};

struct MomentumOf {
  const float *gradient, *current;
  float* next;
  float factor;
  WEIR_DEVICE void operator()(size_t i) const { next[i] = factor * current[i] + gradient[i]; }
};

/// The state of a call, or one that is only used in it.
class StateOf {
 public:
  explicit StateOf(const DeviceCall& call)
      : kept_(dynamic_cast<SelectionState*>(call.context.state)) {}
  SelectionState& operator*() { return kept_ != nullptr ? *kept_ : transient_; }
  SelectionState* operator->() { return &**this; }

 private:
  SelectionState* const kept_;
  SelectionState transient_;
};

class DeviceSelector : public DeviceCodec {
 public:
  explicit DeviceSelector(std::string_view name)
      : host_(dynamic_cast<const ThresholdCodec&>(**Codecs().Find(name))) {}

  const Codec& host() const override { return host_; }

  /// Some 20 bytes for each element that may be kept.
  size_t WorkspaceBytes(size_t n, const DeviceCall& call) const override {
    const size_t cap = host_.Cap(n, call.context);
    return std::max(SelectionWorkspace::ForEncode(nullptr, n, cap).bytes,
                    ReadingWorkspace::For(nullptr, MaxPayload(n, call), cap).bytes);
  }

  size_t PinnedBytes(size_t, const DeviceCall&) const override { return sizeof(Readback); }

  /// One pass with a warm state, or else two; O(n). kFailedPrecondition: the stream records a CUDA
  /// graph, which cannot read the size.
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    if (IsCaptured(call.stream)) {
      return FailedPrecondition(StrCat(host_.Traits().name,
                                       ": the size of its payload depends on data, so it cannot be "
                                       "part of a CUDA graph"));
    }
    StateOf state(call);
    SelectionJob job = MakeJob(operands, call, *state, out);
    if (!call.context.momentum.next.empty()) {
      WEIR_RETURN_IF_ERROR(AddMomentum(operands.gradient, call.context.momentum, call.stream));
    }
    if (Waits()) return MarkMissed(call);
    const SelectionRule rule = host_.Rule(TailsOf(job, call), *state);
    if (!Adopt(rule, *state, &job)) {
      WEIR_RETURN_IF_ERROR(CountSelection(job));
      WEIR_RETURN_IF_ERROR(MarkMissed(call));
    } else {
      WEIR_RETURN_IF_ERROR(Attempt(job));
    }
    // On the way by the time that Resolve waits for it.
    Readback* const read = PinnedOf(call);
    return read == nullptr ? OkStatus() : QueueRead(job, read);
  }

  StatusOr<Outcome> Resolve(const PassOperands& operands, const DeviceCall& call,
                            std::span<std::byte> out) const override {
    StateOf state(call);
    SelectionJob job = MakeJob(operands, call, *state, out);
    std::unique_ptr<Readback> own;
    Readback* read = PinnedOf(call);
    const bool queued = read != nullptr && !Waits();
    if (read == nullptr) {
      own = std::make_unique<Readback>();
      read = own.get();
    }
    if (host_.ByTensor()) return EncodeByTensor(job, call, read);
    Status measured;
    Tails tails = TailsOf(job, call);
    tails.above = [&](float threshold, unsigned sampling, bool logs) {
      return Measure(job, {threshold, sampling, logs}, read, &measured);
    };
    tails.histogram = [&] { return ReadHistogram(job, read, &measured); };
    tails.magnitudes = [&](size_t stride) { return ReadMagnitudes(job, stride, &measured); };
    const SelectionRule rule = host_.Rule(tails, *state);
    WEIR_RETURN_IF_ERROR(measured);
    const bool attempted = Adopt(rule, *state, &job);
    SelectionOutcome learnt{.target = job.target, .n = job.in.n, .stale = attempted};
    if (attempted) learnt.stale_threshold = job.pass.threshold;
    if (host_.AsksForTails()) {
      WEIR_RETURN_IF_ERROR(job.banded ? SelectBand(job) : Attempt(job));
    }
    if (!queued) WEIR_RETURN_IF_ERROR(QueueRead(job, read));
    WEIR_RETURN_IF_ERROR(Synchronise(call.stream));
    const bool overflowed = !rule.largest && read->plan.staged > job.cap;
    if (read->outcome.missed != 0) {
      // The first attempt stored e as the rest.
      if (attempted && job.rest != nullptr) {
        job.in.gradient = job.rest;
        job.in.residual = nullptr;
      }
      learnt.stale = false;
      WEIR_RETURN_IF_ERROR(EncodeExactly(job, attempted, read));
    }
    WEIR_RETURN_IF_ERROR(KeepBins(job, call));
    if (read->outcome.max_bits < kInfinityBits) {
      learnt.count = read->plan.count;
      if (const auto momentum = call.context.momentum.next; !momentum.empty()) {
        WEIR_RETURN_IF_ERROR(ClearSelected(job, read->plan.count, momentum));
      }
      if (rule.largest) state->Learn(StatisticsOf(read->outcome, read->bins, job.in.n), learnt);
      host_.LearnCount(tails, read->plan.count, overflowed, *state);
    }
    return read->outcome;
  }

  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    const size_t n = out.size();
    if (payload.size() < kSelectionHeaderBytes || payload.size() > MaxPayload(n, call)) {
      return DataLoss(StrCat(host_.Traits().name, " payload: ", payload.size(), " bytes, expected ",
                             kSelectionHeaderBytes, " to ", MaxPayload(n, call)));
    }
    const size_t cap = host_.Cap(n, call.context);
    const auto work = ReadingWorkspace::For(call.workspace.data(), MaxPayload(n, call), cap);
    return AddSelection(payload, work, cap, scale, out, call.fault, call.stream);
  }

 private:
  /// Whether everything happens in Resolve.
  bool Waits() const { return host_.AsksForTails() || host_.ByTensor(); }
  size_t MaxPayload(size_t n, const DeviceCall& call) const {
    return host_.MaxEncodedBytes(n, call.context);
  }
  static Tails TailsOf(const SelectionJob& job, const DeviceCall& call) {
    return {.n = job.in.n, .ratio = job.ratio, .seed = call.context.seed};
  }
  /// The new momentum, which takes the place of the gradient.
  static Status AddMomentum(std::span<const float> gradient, const MomentumBuffers& momentum,
                            Stream stream) {
    return ForEachElement(stream, gradient.size(),
                          MomentumOf{gradient.data(), momentum.current.data(), momentum.next.data(),
                                     ThresholdCodec::kMomentumFactor});
  }
  /// The pass of the first attempt. Returns false where there is no threshold for one.
  static bool Adopt(const SelectionRule& rule, const SelectionState& state, SelectionJob* job) {
    if (!rule.largest) {
      job->pass = GivenPass(rule.threshold, job->in.n);
      job->accepts_few = rule.too_few == TooFew::kAccept;
      job->banded = rule.band.has_value();
      if (job->banded) job->band = *rule.band;
      return true;
    }
    if (state.histogram.count() == 0) return false;
    job->pass = state.StalePass(job->target, job->in.n);
    return true;
  }
  static Status Attempt(const SelectionJob& job) {
    WEIR_RETURN_IF_ERROR(SelectEntries(job, SelectionStore::kStage));
    WEIR_RETURN_IF_ERROR(PlaceTiles(job, SelectionStore::kStage));
    return PackSelection(job);
  }

  /// Selects by a threshold and a band, whose elements must be numbered before.
  static Status SelectBand(const SelectionJob& job) {
    WEIR_RETURN_IF_ERROR(SelectEntries(job, SelectionStore::kCount));
    WEIR_RETURN_IF_ERROR(PlaceTiles(job, SelectionStore::kCount));
    WEIR_RETURN_IF_ERROR(SelectEntries(job, SelectionStore::kPlace));
    // Selecting began with an empty plan.
    WEIR_RETURN_IF_ERROR(PlaceTiles(job, SelectionStore::kCount));
    return PackSelection(job);
  }
  /// Waits; failures as for Measure.
  static GradientStatistics ReadHistogram(const SelectionJob& job, Readback* read, Status* status) {
    if (status->ok()) status->Update(CountSelection(job));
    if (status->ok()) status->Update(ReadNow(job, read));
    if (!status->ok()) return {};
    return StatisticsOf(read->outcome, read->bins, job.in.n);
  }

  /// Waits; failures as for Measure. In pieces, since there is room for as many as may be kept.
  static std::vector<float> ReadMagnitudes(const SelectionJob& job, size_t stride, Status* status) {
    std::vector<float> magnitudes(TilesOf(job.in.n, stride));
    const auto read = [&]() -> Status {
      for (size_t at = 0; at < magnitudes.size(); at += job.cap) {
        const size_t size = std::min(job.cap, magnitudes.size() - at);
        WEIR_RETURN_IF_ERROR(SampleMagnitudes(job, at, stride, size));
        WEIR_RETURN_IF_ERROR(
            CopyToHost(&magnitudes[at], job.work.staged_values, size * sizeof(float), job.stream));
        WEIR_RETURN_IF_ERROR(Synchronise(job.stream));
      }
      return OkStatus();
    };
    if (status->ok()) status->Update(read());
    if (!status->ok()) magnitudes.clear();
    return magnitudes;
  }

  static Status KeepBins(const SelectionJob& job, const DeviceCall& call) {
    if (call.bins == nullptr) return OkStatus();
    return CopyOnDevice(call.bins, job.work.bins, GradientStatistics::kBins * sizeof(uint32_t),
                        call.stream);
  }

  /// The exact passes for each tensor, whose entries are appended, one pass for the statistics of
  /// the whole, and its payload. Waits twice or three times for each tensor.
  StatusOr<Outcome> EncodeByTensor(const SelectionJob& job, const DeviceCall& call,
                                   Readback* read) const {
    size_t at = 0;
    uint32_t count = 0, max_bits = 0;
    for (const size_t size : ThresholdCodec::TensorSizes(job.in.n, call.context)) {
      if (size == 0) continue;
      SelectionJob part = PartOf(job, at, size, count);
      WEIR_RETURN_IF_ERROR(PlaceExactly(part, /*recount=*/true, read));
      count += read->plan.count;
      max_bits = std::max(max_bits, read->outcome.max_bits);
      at += size;
    }
    SelectionJob whole = job;
    if (job.rest != nullptr) {  // where the passes have stored e
      whole.in.gradient = job.rest;
      whole.in.residual = nullptr;
    }
    // The exponent of half precision follows from the magnitudes alone, so no threshold counts.
    whole.pass.threshold = 0;
    const float largest = std::bit_cast<float>(std::min(max_bits, kInfinityBits - 1));
    whole.pass.exponent = count == 0 ? 0 : HalfExponent(largest, 0);
    WEIR_RETURN_IF_ERROR(CountSelection(whole));
    WEIR_RETURN_IF_ERROR(SetCount(whole, &count));
    WEIR_RETURN_IF_ERROR(PackSelection(whole));
    WEIR_RETURN_IF_ERROR(KeepBins(whole, call));
    WEIR_RETURN_IF_ERROR(ReadNow(whole, read));
    return read->outcome;
  }
  /// The job of one tensor, whose entries follow the first `count`.
  static SelectionJob PartOf(const SelectionJob& job, size_t at, size_t size, uint32_t count) {
    SelectionJob part = job;
    part.in.gradient += at;
    if (part.in.residual != nullptr) part.in.residual += at;
    if (part.rest != nullptr) part.rest += at;
    part.in.n = size;
    part.first = static_cast<uint32_t>(at);
    part.target = SelectionTarget(size, job.ratio);
    part.cap = SelectionCap(size, job.ratio);
    part.work.indices += count;
    part.work.values += count;
    return part;
  }

  struct TailRequest {
    float threshold;
    unsigned sampling;
    bool logs;
  };
  static Status ReadTails(const SelectionJob& job, const TailRequest& request, Readback* read) {
    WEIR_RETURN_IF_ERROR(MeasureTails(job, request.threshold, request.sampling, request.logs));
    WEIR_RETURN_IF_ERROR(
        CopyToHost(&read->tails, job.work.tails + kTeamsMax, sizeof(read->tails), job.stream));
    return Synchronise(job.stream);
  }
  /// Waits. After a failure, which `status` keeps, there is nothing above any threshold.
  static kernels::TailMoments Measure(const SelectionJob& job, const TailRequest& request,
                                      Readback* read, Status* status) {
    if (status->ok()) status->Update(ReadTails(job, request, read));
    if (!status->ok()) return {};
    const TailSums& found = read->tails;
    const double each = request.sampling;
    return {.count = found.count * request.sampling,
            .sum = found.sum * each,
            .sum_squares = found.squares * each,
            .smallest = found.smallest,
            .largest = found.largest,
            .sum_logs = found.logs * each};
  }

  static Readback* PinnedOf(const DeviceCall& call) {
    if (call.pinned.size() < sizeof(Readback)) return nullptr;
    return reinterpret_cast<Readback*>(call.pinned.data());
  }

  SelectionJob MakeJob(const PassOperands& operands, const DeviceCall& call,
                       const SelectionState& state, std::span<std::byte> out) const {
    const size_t n = operands.gradient.size();
    const double ratio = host_.RatioOf(call.context, state);
    const bool by_tensor = host_.ByTensor();
    const std::span<const float> momentum = call.context.momentum.next;
    SelectionJob job{
        .in = {.gradient = momentum.empty() ? operands.gradient.data() : momentum.data(),
               .residual = operands.residual.empty() ? nullptr : operands.residual.data(),
               .rest = nullptr,
               .n = n,
               .partials = nullptr,
               .bins = nullptr,
               .sampled = false},
        .work = {},
        .pass = {},
        .band = {},
        .banded = false,
        .format = host_.Format(call.context),
        .ratio = ratio,
        .target = SelectionTarget(n, ratio),
        .cap = by_tensor ? host_.Cap(n, call.context) : SelectionCap(n, ratio),
        .first = 0,
        .accepts_few = false,
        .rest = operands.rest.empty() ? nullptr : operands.rest.data(),
        .out = out.data(),
        .outcome = call.outcome,
        .stream = call.stream};
    job.work = SelectionWorkspace::ForEncode(call.workspace.data(), n, job.cap);
    job.in.partials = job.work.partials;
    return job;
  }

  Status MarkMissed(const DeviceCall& call) const {
    // Any octet other than 0 means missed.
    return FillDevice(&call.outcome->missed, 1, sizeof(call.outcome->missed), call.stream);
  }

  static Status QueueRead(const SelectionJob& job, Readback* read) {
    WEIR_RETURN_IF_ERROR(
        CopyToHost(&read->outcome, job.outcome, sizeof(read->outcome), job.stream));
    WEIR_RETURN_IF_ERROR(CopyToHost(&read->plan, job.work.plan, sizeof(read->plan), job.stream));
    return CopyToHost(read->bins, job.work.bins, sizeof(read->bins), job.stream);
  }
  static Status ReadNow(const SelectionJob& job, Readback* read) {
    WEIR_RETURN_IF_ERROR(QueueRead(job, read));
    return Synchronise(job.stream);
  }

  /// The passes of a selection without a threshold: a full histogram (unless `recount` is off and
  /// `read` has it), the numbers in each tile, and the selection.
  static Status EncodeExactly(SelectionJob& job, bool recount, Readback* read) {
    WEIR_RETURN_IF_ERROR(PlaceExactly(job, recount, read));
    WEIR_RETURN_IF_ERROR(PackSelection(job));
    return ReadNow(job, read);
  }
  /// The same without a payload. `read` has the number of entries and the sums.
  static Status PlaceExactly(SelectionJob& job, bool recount, Readback* read) {
    if (recount) {
      WEIR_RETURN_IF_ERROR(CountSelection(job));
      WEIR_RETURN_IF_ERROR(ReadNow(job, read));
    }
    const GradientStatistics seen = StatisticsOf(read->outcome, read->bins, job.in.n);
    job.pass = ExactPass(seen, job.target, job.in.n);
    WEIR_RETURN_IF_ERROR(CountTiles(job, read));
    if (!seen.non_finite() && KeepsTooFew(read->plan.count, job.target, job.pass.threshold)) {
      job.pass.threshold = EdgeBelow(job.pass.threshold);
      WEIR_RETURN_IF_ERROR(CountTiles(job, read));
    }
    WEIR_RETURN_IF_ERROR(SelectEntries(job, SelectionStore::kPlace));
    // Selecting began with an empty plan.
    return PlaceTiles(job, SelectionStore::kCount);
  }
  static Status CountTiles(const SelectionJob& job, Readback* read) {
    WEIR_RETURN_IF_ERROR(SelectEntries(job, SelectionStore::kCount));
    WEIR_RETURN_IF_ERROR(PlaceTiles(job, SelectionStore::kCount));
    return ReadNow(job, read);
  }

  const ThresholdCodec& host_;
};

}  // namespace

void AddSelectors(std::vector<const DeviceCodec*>& codecs) {
  for (const std::string_view name :
       {"top_k", "top_k:memory=ef21", "adaq", "threshold", "threshold:selector=hard",
        "threshold:selector=gaussian_k", "threshold:selector=redsync",
        "threshold:selector=ms_top_k", "threshold:selector=layer_wise", "sidco", "sidco:fit=e",
        "sidco:fit=gp", "sidco:fit=p", "dgc", "sketchml"}) {
    codecs.push_back(new DeviceSelector(name));
  }
}

}  // namespace weir::cuda
