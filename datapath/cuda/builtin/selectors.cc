// SPDX-License-Identifier: Apache-2.0
// Top-k on the device; datapath/codec/builtin/top_k.cc describes the payload and the choice of the
// threshold. The first attempt takes one pass with the threshold of the last step, and nothing
// waits for it. Whether it missed is known when the host reads the size of the payload (Resolve),
// which then takes the two exact passes. Without a state, or in its first step, there is no
// threshold, so every payload takes them.

#include "datapath/codec/select/selection_payload.h"
#include "datapath/cuda/memory.h"
#include "datapath/cuda/selection.h"

namespace weir::cuda {
namespace {

/// The part of a selection that the host reads, in pinned memory.
struct Readback {
  Outcome outcome;
  SelectionPlan plan;
  uint32_t bins[GradientStatistics::kBins];
};

class DeviceTopK : public DeviceCodec {
 public:
  explicit DeviceTopK(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }

  /// Some 20 bytes for each element that may be kept.
  size_t WorkspaceBytes(size_t n, const DeviceCall& call) const override {
    const size_t cap = SelectionCap(n, call.context.params.ratio);
    return std::max(SelectionWorkspace::ForEncode(nullptr, n, cap).bytes,
                    ReadingWorkspace::For(nullptr, MaxPayload(n, call), cap).bytes);
  }

  size_t PinnedBytes() const override { return sizeof(Readback); }

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
    SelectionJob job = MakeJob(operands, call, out);
    const SelectionMemory* memory = MemoryOf(call);
    if (memory == nullptr || memory->histogram.count() == 0) {
      WEIR_RETURN_IF_ERROR(CountSelection(job));
      WEIR_RETURN_IF_ERROR(MarkMissed(call));
    } else {
      job.pass = memory->StalePass(job.target, job.in.n);
      WEIR_RETURN_IF_ERROR(SelectEntries(job, SelectionStore::kStage));
      WEIR_RETURN_IF_ERROR(PlaceTiles(job, SelectionStore::kStage));
      WEIR_RETURN_IF_ERROR(PackSelection(job));
    }
    // On the way by the time that Resolve waits for it.
    Readback* const read = PinnedOf(call);
    return read == nullptr ? OkStatus() : QueueRead(job, read);
  }

  StatusOr<Outcome> Resolve(const PassOperands& operands, const DeviceCall& call,
                            std::span<std::byte> out) const override {
    SelectionJob job = MakeJob(operands, call, out);
    SelectionMemory* const memory = MemoryOf(call);
    const bool warm = memory != nullptr && memory->histogram.count() > 0;
    SelectionOutcome learnt{.target = job.target, .n = job.in.n, .stale = warm};
    if (warm) {
      job.pass = memory->StalePass(job.target, job.in.n);
      learnt.stale_threshold = job.pass.threshold;
    }
    std::unique_ptr<Readback> own;
    Readback* read = PinnedOf(call);
    if (read == nullptr) {
      own = std::make_unique<Readback>();
      read = own.get();
      WEIR_RETURN_IF_ERROR(QueueRead(job, read));
    }
    WEIR_RETURN_IF_ERROR(Synchronise(call.stream));
    if (read->outcome.missed != 0) {
      // The first attempt stored e as the rest.
      if (warm && job.rest != nullptr) {
        job.in.gradient = job.rest;
        job.in.residual = nullptr;
      }
      learnt.stale = false;
      WEIR_RETURN_IF_ERROR(EncodeExactly(job, warm, read));
    }
    if (call.bins != nullptr) {
      WEIR_RETURN_IF_ERROR(CopyOnDevice(call.bins, job.work.bins,
                                        GradientStatistics::kBins * sizeof(uint32_t), call.stream));
    }
    if (memory != nullptr && read->outcome.max_bits < kInfinityBits) {
      learnt.count = read->plan.count;
      memory->Learn(StatisticsOf(read->outcome, read->bins, job.in.n), learnt);
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
    const size_t cap = SelectionCap(n, call.context.params.ratio);
    const auto work = ReadingWorkspace::For(call.workspace.data(), MaxPayload(n, call), cap);
    return AddSelection(payload, work, cap, scale, out, call.fault, call.stream);
  }

 private:
  size_t MaxPayload(size_t n, const DeviceCall& call) const {
    return host_.MaxEncodedBytes(n, call.context);
  }
  static SelectionMemory* MemoryOf(const DeviceCall& call) {
    return dynamic_cast<SelectionState*>(call.context.state);
  }
  static Readback* PinnedOf(const DeviceCall& call) {
    if (call.pinned.size() < sizeof(Readback)) return nullptr;
    return reinterpret_cast<Readback*>(call.pinned.data());
  }

  SelectionJob MakeJob(const PassOperands& operands, const DeviceCall& call,
                       std::span<std::byte> out) const {
    const size_t n = operands.gradient.size();
    const double ratio = call.context.params.ratio;
    SelectionJob job{
        .in = {.gradient = operands.gradient.data(),
               .residual = operands.residual.empty() ? nullptr : operands.residual.data(),
               .rest = nullptr,
               .n = n,
               .partials = nullptr,
               .bins = nullptr,
               .sampled = false},
        .work = {},
        .pass = {},
        .format = call.context.params.bits == 8   ? ValueFormat::kInt8
                  : call.context.params.bits == 4 ? ValueFormat::kInt4
                                                  : ValueFormat::kHalf,
        .target = SelectionTarget(n, ratio),
        .cap = SelectionCap(n, ratio),
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
    WEIR_RETURN_IF_ERROR(PlaceTiles(job, SelectionStore::kCount));
    WEIR_RETURN_IF_ERROR(PackSelection(job));
    return ReadNow(job, read);
  }
  static Status CountTiles(const SelectionJob& job, Readback* read) {
    WEIR_RETURN_IF_ERROR(SelectEntries(job, SelectionStore::kCount));
    WEIR_RETURN_IF_ERROR(PlaceTiles(job, SelectionStore::kCount));
    return ReadNow(job, read);
  }

  const Codec& host_;
};

}  // namespace

void AddTopK(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new DeviceTopK(**Codecs().Find("top_k")));
  codecs.push_back(new DeviceTopK(**Codecs().Find("top_k:memory=ef21")));
}

}  // namespace weir::cuda
