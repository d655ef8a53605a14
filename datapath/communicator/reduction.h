// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element types, and the element-wise operations of dense reductions.

#include <cstdint>
#include <functional>
#include <span>

#include "datapath/base/status.h"

namespace weir {

enum class ElementType : uint8_t {
  kFloat32,
  kFloat16,
  kBrain16,
  kFloat64,
  kInt8,
  kUint8,
  kInt32,
  kInt64
};

/// kAverage is the sum divided by the number of ranks, for floating-point elements only. Float16 is
/// divided before it is summed: the sum of numbers that it can hold is often one that it cannot.
enum class ReduceOperation : uint8_t { kSum, kProduct, kMin, kMax, kAverage };

/// The number of bytes of one element.
size_t ElementBytes(ElementType type);

/// result[i] = result[i] op addend[i] for equal numbers of whole, aligned elements.
using Accumulate = std::function<void(std::span<std::byte> result, std::span<const std::byte>)>;

/// The function for an element type and a reduction. Sums and products of integers wrap around.
/// 16-bit floats are computed in float32 and rounded to nearest after every step. A minimum or
/// maximum with NaN is NaN. kInvalidArgument: an average of integers. The function is thread-safe
/// and O(n).
StatusOr<Accumulate> MakeAccumulate(ElementType type, ReduceOperation operation);

/// Whether the operation divides every contribution, or the sum; at most one is true. O(1).
bool DividesFirst(ElementType type, ReduceOperation operation);
bool DividesLast(ElementType type, ReduceOperation operation);

/// Divides floating-point elements by `divisor`, in place. Other types are not changed. O(n).
void Divide(ElementType type, std::span<std::byte> elements, int divisor);

}  // namespace weir
