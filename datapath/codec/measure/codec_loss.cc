// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/measure/codec_loss.h"

#include <algorithm>

namespace weir {
namespace {

constexpr size_t kElementsMin = 1024;
// The ratio at which selections are measured, and the least declared loss of kept values for which
// they are.
constexpr double kSelectionRatio = 0.05, kCoarse = 1e-3;
// Side of a block of a matrix. At 128 a ratio of 0.05 keeps three ranks or six rows, at 64 two or
// three.
constexpr uint64_t kSideMin = 64, kSideMax = 128;
// Steps before the measured one, for codecs that continue from the previous step.
constexpr int kLossWarmUpSteps = 2;

bool DependsOnInput(const CodecTraits& traits, const CodecSetting& setting) {
  if (traits.opt_in || traits.rounds > 1 || HoldsIndicesOnly(traits.form)) return false;
  return traits.error_model == ErrorModel::kRelative ||
         (traits.error_model == ErrorModel::kSelection &&
          setting.relative_error_squared >= kCoarse);
}

/// For such codecs the error model states the loss for input without structure.
bool KeepsBlocks(const CodecTraits& traits) {
  return !traits.opt_in && traits.error_model == ErrorModel::kUniformSelection &&
         (traits.size_in_steps || traits.kept_block > 1);
}

struct Matrix {
  size_t at = 0;
  TensorShape shape;
  bool large() const { return shape.rows >= kSideMin && shape.columns >= kSideMin; }
};

/// The matrix that contains element `position`, or the largest one if no matrix does.
Matrix FindMatrix(std::span<const TensorShape> shape, size_t position) {
  Matrix largest;
  size_t at = 0;
  for (const TensorShape& tensor : shape) {
    const Matrix matrix{at, tensor};
    at += tensor.elements();
    if (!matrix.large()) continue;
    if (position >= matrix.at && position < at) return matrix;
    if (tensor.elements() > largest.shape.elements()) largest = matrix;
  }
  return largest;
}

}  // namespace

/// A part of gradient + residual; empty if there is none.
struct CodecLossProbe::Slice {
  std::vector<float> x;
  TensorShape shape;

  void Append(std::span<const float> gradient, std::span<const float> residual, size_t at,
              size_t size) {
    for (size_t i = at; i < at + size; ++i) {
      x.push_back(residual.empty() ? gradient[i] : gradient[i] + residual[i]);
    }
  }
};

CodecLossProbe::CodecLossProbe(int world) : world_(world) {
  for (const Codec* codec : Codecs().All()) {
    const CodecTraits& traits = codec->Traits();
    for (const CodecSetting& setting : traits.settings) {
      const bool blocked = KeepsBlocks(traits);
      if (!blocked && !DependsOnInput(traits, setting)) continue;
      if (FindSetting(traits, {.bits = setting.bits}, world_) != &setting) continue;
      (blocked ? blocked_ : flat_).push_back({codec, setting.bits});
    }
  }
}

double CodecLossProbe::LossOf(const Setting& setting, double ratio, const Slice& slice,
                              uint64_t seed) const {
  const Codec& codec = *setting.codec;
  const size_t n = slice.x.size();
  EncodeContext context;
  context.params = {.ratio = ratio, .bits = setting.bits};
  context.world = world_;
  context.seed = seed;
  context.shape = {&slice.shape, 1};
  context.shared_max = codec.LocalMax(slice.x, {}, context);
  const bool warm = codec.Traits().rounds > 1;
  const std::unique_ptr<CodecState> state = warm ? codec.NewState(n, context) : nullptr;
  context.state = state.get();
  std::vector<std::byte> payload(codec.MaxEncodedBytes(n, context));
  std::vector<float> ignored(state != nullptr ? n : 0);
  EncodeResult last;
  for (int step = state != nullptr ? 0 : kLossWarmUpSteps; step <= kLossWarmUpSteps; ++step) {
    size_t bytes = 0;
    for (context.round = 0; context.round < codec.Traits().rounds; ++context.round) {
      context.previous = std::span(payload).first(bytes);
      const auto result = codec.Encode(slice.x, context, std::span(payload).subspan(bytes));
      if (!result.ok() || result->non_finite) return -1;
      last = *result;
      bytes += last.bytes;
    }
    if (state == nullptr) continue;
    if (!codec.DecodeAdd(std::span(payload).first(bytes), context, 1, ignored).ok()) return -1;
  }
  return last.energy_in > 0 ? last.energy_lost / last.energy_in : -1;
}

void CodecLossProbe::MeasureFlat(const Slice& slice, uint64_t seed,
                                 std::vector<CodecLoss>* losses) const {
  GradientStatistics statistics;
  statistics.Add(slice.x);
  const double selectable = statistics.GainAtRatio(kSelectionRatio);
  for (size_t i = 0; i < std::min(kSettingsPerCall - 1, flat_.size()); ++i) {
    const Setting& setting = flat_[flat_turn_.fetch_add(1) % flat_.size()];
    const CodecTraits& traits = setting.codec->Traits();
    const bool selects = traits.error_model == ErrorModel::kSelection;
    double loss = LossOf(setting, selects ? kSelectionRatio : 1, slice, seed);
    if (loss < 0) continue;
    if (selects) loss = std::max(0.0, 1 - (1 - loss) / selectable);
    losses->push_back({traits.name, static_cast<uint32_t>(setting.bits), loss});
  }
}

void CodecLossProbe::MeasureBlocked(const Slice& flat, const Slice& matrix, uint64_t seed,
                                    std::vector<CodecLoss>* losses) const {
  if (blocked_.empty()) return;
  const Setting& setting = blocked_[blocked_turn_.fetch_add(1) % blocked_.size()];
  const CodecTraits& traits = setting.codec->Traits();
  const Slice& slice = traits.size_in_steps ? matrix : flat;
  if (slice.x.empty()) return;
  const double loss = LossOf(setting, kSelectionRatio, slice, seed);
  if (loss < 0) return;
  losses->push_back(
      {traits.name, static_cast<uint32_t>(setting.bits), loss / (1 - kSelectionRatio)});
}

std::vector<CodecLoss> CodecLossProbe::Measure(std::span<const float> gradient,
                                               std::span<const float> residual,
                                               std::span<const TensorShape> shape,
                                               uint64_t seed) const {
  std::vector<CodecLoss> losses;
  if (gradient.size() < kElementsMin) return losses;
  Slice flat, matrix;
  const size_t size = std::min(kSliceElements, gradient.size());
  flat.shape = {1, size};
  flat.Append(gradient, residual, seed % (gradient.size() - size + 1), size);
  MeasureFlat(flat, seed, &losses);
  if (const Matrix from = FindMatrix(shape, seed % gradient.size()); from.large()) {
    const uint64_t rows = std::min(kSideMax, from.shape.rows);
    const uint64_t columns = std::min(kSideMax, from.shape.columns);
    matrix.shape = {rows, columns};
    const uint64_t first = seed / 7 % (from.shape.columns - columns + 1);
    for (uint64_t row = 0; row < rows; ++row) {
      const uint64_t taken = row * from.shape.rows / rows;
      matrix.Append(gradient, residual, from.at + taken * from.shape.columns + first, columns);
    }
  }
  MeasureBlocked(flat, matrix, seed, &losses);
  return losses;
}

}  // namespace weir
