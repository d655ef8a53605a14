// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/low_rank.h"

#include <algorithm>
#include <cmath>

#include "datapath/base/random.h"

namespace weir {
namespace {

constexpr float kUnit = 1.001f;  // bound on states; their columns have unit length

size_t RankOf(const MatrixPart& part, double ratio) {
  if (part.rows < 2 || part.columns < 2 || part.elements() < kMatrixElementsMin) return 0;
  const double ends = static_cast<double>(part.rows) + static_cast<double>(part.columns);
  const double elements = static_cast<double>(part.elements());
  const double rank = std::max(1.0, std::floor(ratio * elements / ends + 0.5));
  return rank * ends < elements ? static_cast<size_t>(rank) : 0;
}

/// Q of the first step: uniform in [-1, 1).
std::vector<float> DrawStart(uint64_t seed, size_t factor, size_t count) {
  const uint64_t stream = MixSeed(seed, factor);
  std::vector<float> q(count);
  for (size_t i = 0; i < count; ++i) {
    const auto top = static_cast<int64_t>(MixSeed(stream, i)) >> 40;  // 24 bits, signed
    q[i] = static_cast<float>(top) * 0x1p-23f;
  }
  return q;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sums[4] = {};
  for (size_t i = 0; i < a.size(); ++i) sums[i % 4] += a[i] * b[i];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

StatusOr<FactorLayout> MakeFactorLayout(const CodecTraits& traits, size_t n,
                                        const EncodeContext& context) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<MatrixPart> parts, SplitIntoMatrices(traits, n, context));
  FactorLayout layout;
  for (const MatrixPart& part : parts) {
    layout.factors.push_back({.part = part, .rank = RankOf(part, context.params.ratio)});
    layout.first_floats += layout.factors.back().first_floats();
    layout.last_floats += layout.factors.back().last_floats();
  }
  return layout;
}

std::vector<std::byte> PowerSgdState::Save() const {
  StateWriter writer;
  writer.Write(static_cast<uint32_t>(q.size()));
  for (const std::vector<float>& factor : q) {
    writer.Write(uint64_t{factor.size()});
    for (const float v : factor) writer.Write(v);
  }
  return writer.Take();
}

Status PowerSgdState::Load(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  uint32_t factors = 0;
  WEIR_RETURN_IF_ERROR(ReadStateVersion(reader));
  WEIR_RETURN_IF_ERROR(reader.Read(&factors));
  q.clear();
  for (uint32_t i = 0; i < factors; ++i) {
    uint64_t size = 0;
    WEIR_RETURN_IF_ERROR(
        ReadWithin<uint64_t>(reader, 0, reader.remaining() / sizeof(float), &size));
    std::vector<float>& factor = q.emplace_back(size);
    for (float& v : factor) WEIR_RETURN_IF_ERROR(ReadWithin(reader, -kUnit, kUnit, &v));
  }
  return CheckStateEnd(reader);
}

std::vector<float> StartOf(const Factor& factor, size_t index, const EncodeContext& context) {
  const auto* state = dynamic_cast<const PowerSgdState*>(context.state);
  const size_t floats = factor.last_floats();
  const bool warm = state != nullptr && index < state->q.size() && state->q[index].size() == floats;
  return warm ? state->q[index] : DrawStart(context.seed, index, floats);
}

void Orthonormalise(size_t rank, std::vector<float>& p) {
  /// A column shorter than this part of its length consists of rounding errors of the others.
  constexpr double kDependent = 1e-5;
  const size_t rows = p.size() / rank;
  std::vector<std::vector<double>> columns(rank, std::vector<double>(rows));
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < rank; ++k) columns[k][i] = p[i * rank + k];
  }
  for (size_t k = 0; k < rank; ++k) {
    std::vector<double>& column = columns[k];
    const double before = std::sqrt(Dot(column, column));
    for (size_t j = 0; j < k; ++j) {
      const double along = Dot(column, columns[j]);
      for (size_t i = 0; i < rows; ++i) column[i] -= along * columns[j][i];
    }
    const double length = std::sqrt(Dot(column, column));
    const bool keep = length > kDependent * before && length > 0;
    const double factor = keep ? 1 / length : 0;
    for (double& v : column) v *= factor;
    for (size_t i = 0; i < rows; ++i) p[i * rank + k] = static_cast<float>(column[i]);
  }
}

void NormaliseRows(size_t rank, std::vector<float>& q) {
  const size_t columns = q.size() / rank;
  for (size_t k = 0; k < rank; ++k) {
    const auto row = std::span(q).subspan(k * columns, columns);
    double square = 0;
    for (const float v : row) square += static_cast<double>(v) * v;
    const double factor = square > 0 ? 1 / std::sqrt(square) : 0;
    for (float& v : row) v = static_cast<float>(v * factor);
  }
}

}  // namespace weir
