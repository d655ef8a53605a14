// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/select/threshold_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "datapath/base/check.h"
#include "datapath/base/random.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/select/selection_payload.h"

namespace weir {
namespace {

/// The number of elements that DecodeSum adds at a time; they fit a first-level cache.
constexpr size_t kSumPiece = 8192;
constexpr size_t kSampledCountMin = 2048 * kHistogramSampling;
constexpr size_t kSampledWanted = 32768;
constexpr unsigned kSamplingMax = 512;
/// Groups between the one being read and the one being prefetched.
constexpr size_t kGroupsAhead = 16;

/// The number of elements from `at` to the next multiple of 64 bytes.
size_t ElementsToAlignment(const float* at) {
  return -reinterpret_cast<uintptr_t>(at) % 64 / sizeof(float);
}

/// Calls visit(block, group) for every block, or for one group in `stride` (SampledGroup).
template <typename Visit>
void ForEachSampled(const SelectionRequest& request, size_t stride, Visit&& visit) {
  const size_t n = request.gradient.size();
  const float* gradient = request.gradient.data();
  const float* residual = request.residual.empty() ? nullptr : request.residual.data();
  const size_t step = stride <= 1 ? kernels::kBlockElements : kernels::kSampleGroup;
  const auto place = [&](size_t index) { return SampledGroup(index, stride) * step; };
  for (size_t index = 0; index * std::max<size_t>(stride, 1) * step < n; ++index) {
    if (stride > 1) {
      const size_t ahead = place(index + kGroupsAhead);
      const size_t run = ahead + kernels::SampledRun(ahead / step) * kernels::kSampleRun;
      if (run < n) {
        __builtin_prefetch(gradient + run);
        if (residual != nullptr) __builtin_prefetch(residual + run);
      }
    }
    const size_t at = place(index);
    if (at >= n) continue;
    visit(kernels::Block{.gradient = gradient + at,
                         .residual = residual == nullptr ? nullptr : residual + at,
                         .size = std::min(step, n - at)},
          at / kernels::kSampleGroup);
  }
}

/// See Tails::above.
kernels::TailMoments MomentsAbove(const SelectionRequest& request, float threshold,
                                  unsigned sampling, bool with_logs) {
  kernels::TailMoments moments;
  const bool sampled = sampling > 1;
  ForEachSampled(request, sampling / kHistogramSampling,
                 [&](const kernels::Block& block, uint64_t group) {
                   kernels::MomentsAbove(block, threshold, sampled, group, &moments);
                   if (with_logs) kernels::LogsAbove(block, threshold, sampled, group, &moments);
                 });
  moments.count *= sampling;
  moments.sum *= sampling;
  moments.sum_squares *= sampling;
  moments.sum_logs *= sampling;
  return moments;
}

SelectionRequest RequestOfTensor(const SelectionRequest& whole, size_t at, size_t size) {
  SelectionRequest part{.gradient = whole.gradient.subspan(at, size), .ratio = whole.ratio};
  if (!whole.residual.empty()) part.residual = whole.residual.subspan(at, size);
  if (!whole.rest.empty()) part.rest = whole.rest.subspan(at, size);
  part.format = ValueFormat::kFloat;
  return part;
}

/// Selects from one tensor and appends the result to `all` in `state`.
void AppendTensor(SelectionRequest part, size_t at, SelectionState& scratch,
                  GradientStatistics* statistics, SelectionState& state, Selection* all) {
  GradientStatistics seen;
  if (statistics != nullptr) part.statistics = &seen;
  scratch.histogram.Clear();  // no steering, because there is no last step of this tensor
  const Selection one = SelectLargest(part, scratch);
  if (statistics != nullptr) statistics->Merge(seen);
  all->sums.energy_in += one.sums.energy_in;
  all->sums.energy_lost += one.sums.energy_lost;
  all->sums.max_bits = std::max(all->sums.max_bits, one.sums.max_bits);
  for (size_t i = 0; i < one.count; ++i) {
    state.indices[all->count + i] = static_cast<uint32_t>(scratch.indices[i] + at);
  }
  std::memcpy(state.values.get() + all->count, scratch.values.get(), one.count * sizeof(float));
  all->count += one.count;
}

/// Two passes for each tensor; O(n). The state is scratch memory with room for the selection.
Selection ChooseByTensor(const SelectionRequest& request, std::span<const size_t> sizes,
                         SelectionState& state) {
  GradientStatistics* const statistics = request.statistics;
  if (statistics != nullptr) statistics->Clear();
  SelectionState scratch;
  Selection all;
  all.format = ValueFormat::kFloat;
  size_t at = 0;
  for (const size_t size : sizes) {
    AppendTensor(RequestOfTensor(request, at, size), at, scratch, statistics, state, &all);
    at += size;
  }
  if (all.sums.non_finite()) return {.sums = all.sums};
  RepresentValues(request.format, request.rest, state, &all);
  return all;
}

}  // namespace

std::vector<CodecSetting> ThresholdSettings() {
  // In addition to the codes, 8 and 4 bits send a float32 step for every kValueBlock values.
  constexpr double kStepBits = 32.0 / kValueBlock;
  return {{.bits = 16, .kept_bits = 16},
          {.bits = 8, .kept_bits = 8 + kStepBits, .relative_error_squared = 4e-6},
          {.bits = 4, .kept_bits = 4 + kStepBits, .relative_error_squared = 1.3e-3}};
}

CodecTraits ThresholdTraits(std::string name, std::string summary) {
  CodecTraits traits;
  traits.name = std::move(name);
  traits.summary = std::move(summary);
  traits.needs_error_feedback = true;
  traits.form = PayloadForm::kOpaque;
  traits.settings = {{.kept_bits = 16}};
  traits.indices_coded = true;
  traits.uses_ratio = true;
  traits.ratio_min = 1e-6;
  traits.ratio_max = 1;
  traits.error_model = ErrorModel::kSelection;
  // At least half of the largest are kept, and those in the last bin may be up to 1/16 smaller.
  traits.contraction = 0.4;
  return traits;
}

unsigned SamplingFor(size_t expected) {
  if (expected < kSampledCountMin) return 1;
  unsigned sampling = kHistogramSampling;
  while (sampling < kSamplingMax && expected / (2 * sampling) >= kSampledWanted) sampling *= 2;
  return sampling;
}

Tails TailsOf(const SelectionRequest& request, uint64_t seed) {
  return {
      .n = request.gradient.size(),
      .ratio = request.ratio,
      .seed = seed,
      .above = [&request](float threshold, unsigned sampling,
                          bool logs) { return MomentsAbove(request, threshold, sampling, logs); },
      .histogram =
          [&request] {
            GradientStatistics histogram;
            ForEachSampled(request, 1, [&](const kernels::Block& block, uint64_t) {
              kernels::Histogram(block, /*sampled=*/false, 0, 1, histogram.bins().data());
            });
            return histogram;
          },
      .magnitudes =
          [&request](size_t stride) {
            std::vector<float> magnitudes;
            magnitudes.reserve(request.gradient.size() / stride + 1);
            for (size_t i = 0; i < request.gradient.size(); i += stride) {
              const float residual = request.residual.empty() ? 0 : request.residual[i];
              const float magnitude = std::abs(request.gradient[i] + residual);
              magnitudes.push_back(magnitude <= std::numeric_limits<float>::max() ? magnitude : 0);
            }
            return magnitudes;
          }};
}

std::vector<size_t> ThresholdCodec::TensorSizes(size_t n, const EncodeContext& context) {
  std::vector<size_t> sizes;
  size_t elements = 0;
  for (const TensorShape& tensor : context.shape) {
    sizes.push_back(tensor.elements());
    elements += sizes.back();
  }
  if (sizes.empty() || elements != n) return {n};
  return sizes;
}

double ThresholdCodec::RatioOf(const EncodeContext& context, const SelectionState&) const {
  return context.params.ratio;
}

SelectionRule ThresholdCodec::Rule(const Tails&, SelectionState&) const { return {}; }

void ThresholdCodec::LearnCount(const Tails&, size_t, bool, SelectionState&) const {}

Selection ThresholdCodec::Choose(SelectionRequest request, const EncodeContext& context,
                                 SelectionState& state) const {
  request.ratio = RatioOf(context, state);
  const std::span<float> momentum = context.momentum.next;
  if (!momentum.empty()) {
    kernels::AddMomentum(request.gradient.data(), context.momentum.current.data(), momentum.size(),
                         kMomentumFactor, momentum.data());
    request.gradient = momentum;
  }
  if (ByTensor()) {
    const size_t n = request.gradient.size();
    state.Reserve(Cap(n, context) + kernels::kBlockElements + kernels::kSelectSlack);
    return ChooseByTensor(request, TensorSizes(n, context), state);
  }
  const Tails tails = TailsOf(request, context.seed);
  const SelectionRule rule = Rule(tails, state);
  if (rule.band.has_value()) {
    request.keep = [band = *rule.band, seen = uint64_t{0}](float value) mutable {
      if (std::abs(value) >= band.upper) return true;
      const uint64_t position = seen++;
      return position >= band.first && position < band.first + band.needed;
    };
  }
  Selection selection = rule.largest ? SelectLargest(request, state)
                                     : SelectAbove(request, rule.threshold, rule.too_few, state);
  if (selection.sums.non_finite()) return selection;
  for (size_t i = 0; i < selection.count && !momentum.empty(); ++i) momentum[state.indices[i]] = 0;
  LearnCount(tails, selection.count, selection.overflowed, state);
  return selection;
}

ValueFormat ThresholdCodec::Format(const EncodeContext& context) const {
  switch (context.params.bits) {
    case 8:
      return ValueFormat::kInt8;
    case 4:
      return ValueFormat::kInt4;
    default:
      return ValueFormat::kHalf;
  }
}

size_t ThresholdCodec::Cap(size_t n, const EncodeContext& context) const {
  if (!ByTensor()) return SelectionCap(n, context.params.ratio);
  size_t cap = 0;
  for (const size_t size : TensorSizes(n, context)) {
    cap += SelectionCap(size, context.params.ratio);
  }
  return std::min(n, cap);
}

size_t ThresholdCodec::MaxEncodedBytes(size_t n, const EncodeContext& context) const {
  return MaxSelectionBytes(n, Cap(n, context), Format(context));
}

std::unique_ptr<CodecState> ThresholdCodec::NewState(size_t, const EncodeContext&) const {
  return std::make_unique<SelectionState>();
}

Status ThresholdCodec::DecodeAdd(std::span<const std::byte> payload, const EncodeContext&,
                                 float scale, std::span<float> out) const {
  WEIR_ASSIGN_OR_RETURN(SelectionReader reader, SelectionReader::Open(payload, out.size()));
  WEIR_RETURN_IF_ERROR(reader.AddNext(scale, out));
  return reader.Finish();
}

Status ThresholdCodec::DecodeSum(std::span<const std::vector<std::byte>> payloads,
                                 const EncodeContext&, float scale, std::span<float> out,
                                 const std::function<void(std::span<float>)>& done) const {
  std::vector<SelectionReader> readers;
  readers.reserve(payloads.size());
  const auto annotate = [](const Status& status, size_t rank) {
    return status.ok() ? status : Annotate(status, StrCat("payload of rank ", rank));
  };
  for (const std::vector<std::byte>& payload : payloads) {
    StatusOr<SelectionReader> reader = SelectionReader::Open(payload, out.size());
    WEIR_RETURN_IF_ERROR(annotate(reader.status(), readers.size()));
    readers.push_back(*std::move(reader));
  }
  // Adds the elements of all ranks' payloads piece by piece, each piece in the cache. Pieces of a
  // long sum are made in a separate buffer and written with non-temporal stores, because filling
  // cold lines with zeros would take as long as everything else.
  alignas(64) float beside[kSumPiece];
  const bool streamed = out.size() >= kStreamedElementsMin;
  size_t size = streamed ? ElementsToAlignment(out.data()) : 0;
  if (size == 0) size = kSumPiece;
  for (size_t at = 0; at < out.size(); at += size, size = kSumPiece) {
    const std::span<float> part = out.subspan(at, std::min(size, out.size() - at));
    const bool past = streamed && size == kSumPiece;
    const std::span<float> piece = past ? std::span(beside).first(part.size()) : part;
    std::fill(piece.begin(), piece.end(), 0.0f);
    for (size_t rank = 0; rank < readers.size(); ++rank) {
      WEIR_RETURN_IF_ERROR(annotate(readers[rank].AddNext(scale, piece), rank));
    }
    done(piece);
    if (past) kernels::CopyPast(piece.data(), part.data(), piece.size());
  }
  if (streamed) kernels::FlushStreams();
  for (size_t rank = 0; rank < readers.size(); ++rank) {
    WEIR_RETURN_IF_ERROR(annotate(readers[rank].Finish(), rank));
  }
  return OkStatus();
}

Status ThresholdCodec::DecodeIndices(std::span<const std::byte> payload, size_t n,
                                     std::vector<uint32_t>* indices) const {
  return ReadSelectionIndices(payload, n, indices);
}

StatusOr<EncodeResult> ThresholdCodec::Pass(const PassOperands& operands,
                                            const EncodeContext& context,
                                            std::span<std::byte> out) const {
  WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
  const size_t n = operands.gradient.size();
  WEIR_CHECK(operands.residual.empty() || operands.residual.size() == n);
  WEIR_CHECK(operands.rest.empty() || operands.rest.size() == n);
  uint64_t in_shape = 0;
  for (const TensorShape& tensor : context.shape) in_shape += tensor.elements();
  if (!context.shape.empty() && in_shape != n) {
    return InvalidArgument(
        StrCat(traits_.name, ": expected tensors of ", n, " elements in all, found ", in_shape));
  }
  WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, MaxEncodedBytes(n, context)));
  const SelectionRequest request{.gradient = operands.gradient,
                                 .residual = operands.residual,
                                 .rest = operands.rest,
                                 .ratio = context.params.ratio,
                                 .format = Format(context),
                                 .statistics = context.statistics};
  SelectionState transient;
  auto* kept = dynamic_cast<SelectionState*>(context.state);
  SelectionState& state = kept != nullptr ? *kept : transient;
  const Selection selection = Choose(request, context, state);
  EncodeResult result{.bytes = WriteSelection(selection, state, n, out),
                      .non_finite = selection.sums.non_finite()};
  if (!result.non_finite) {
    result.energy_in = selection.sums.energy_in;
    result.energy_lost = selection.sums.energy_lost;
  }
  return result;
}

}  // namespace weir
