// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/matrices.h"

namespace weir {

StatusOr<std::vector<MatrixPart>> SplitIntoMatrices(const CodecTraits& traits, size_t n,
                                                    const EncodeContext& context) {
  std::vector<MatrixPart> parts;
  if (context.shape.empty()) {
    if (n == 0) return parts;
    auto rows = static_cast<size_t>(std::sqrt(static_cast<double>(n)));
    const size_t columns = n / rows;
    parts.push_back({.at = 0, .rows = rows, .columns = columns});
    if (rows * columns < n) {
      parts.push_back({.at = rows * columns, .rows = 1, .columns = n - rows * columns});
    }
    return parts;
  }
  size_t at = 0;
  for (const TensorShape& shape : context.shape) {
    // Division instead of multiplication, so that a wrong shape cannot overflow.
    const bool fits =
        shape.rows == 0 || shape.columns == 0 || shape.columns <= (n - at) / shape.rows;
    if (!fits) {
      return InvalidArgument(StrCat(traits.name, ": shape ", shape.rows, " x ", shape.columns,
                                    " at element ", at, " exceeds the bucket of ", n));
    }
    parts.push_back({.at = at, .rows = shape.rows, .columns = shape.columns});
    at += shape.elements();
  }
  if (at != n) {
    return InvalidArgument(StrCat(traits.name, ": shapes hold ", at, " elements, the bucket ", n));
  }
  return parts;
}

kernels::Sums MeasureOperands(const PassOperands& operands, GradientStatistics* statistics) {
  return ForEachBlock({.gradient = operands.gradient, .residual = operands.residual}, statistics,
                      [](const kernels::Block& block, size_t, float*, kernels::Sums* sums) {
                        kernels::Measure(block, nullptr, sums);
                      });
}

std::vector<float> LoadFloats(std::span<const std::byte> payload, size_t first, size_t count) {
  WEIR_CHECK((first + count) * sizeof(float) <= payload.size());
  std::vector<float> values(count);
  if (count > 0) {
    std::memcpy(values.data(), payload.data() + first * sizeof(float), count * sizeof(float));
  }
  return values;
}

void StoreFloats(std::span<const float> values, std::span<std::byte> payload, size_t first) {
  WEIR_CHECK(first * sizeof(float) + values.size_bytes() <= payload.size());
  if (values.empty()) return;
  std::memcpy(payload.data() + first * sizeof(float), values.data(), values.size_bytes());
}

Status CheckFinite(const CodecTraits& traits, std::span<const std::byte> payload) {
  for (size_t at = 0; at + sizeof(float) <= payload.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, payload.data() + at, sizeof(value));
    if (!std::isfinite(value)) {
      return DataLoss(StrCat(traits.name, " payload: value at offset ", at, " is not finite"));
    }
  }
  return OkStatus();
}

}  // namespace weir
