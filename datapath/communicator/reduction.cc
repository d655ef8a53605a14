// SPDX-License-Identifier: Apache-2.0
#include "datapath/communicator/reduction.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "datapath/base/half.h"

namespace weir {
namespace {

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
// The second condition is true only for NaN.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

template <typename T, typename Op>
void Apply(std::span<std::byte> result, std::span<const std::byte> addend) {
  auto* a = reinterpret_cast<T*>(result.data());
  const auto* b = reinterpret_cast<const T*>(addend.data());
  const size_t n = result.size() / sizeof(T);
  for (size_t i = 0; i < n; ++i) a[i] = Op()(a[i], b[i]);
}

using ToFloats = void (*)(std::span<const uint16_t>, std::span<float>) noexcept;
using FromFloats = void (*)(std::span<const float>, std::span<uint16_t>) noexcept;

// Calls body(elements, floats) for blocks that stay in the first-level cache.
template <ToFloats kTo, typename Body>
void ForBlocks(std::span<std::byte> bytes, Body&& body) {
  constexpr size_t kBlock = 512;
  const std::span<uint16_t> all(reinterpret_cast<uint16_t*>(bytes.data()), bytes.size() / 2);
  std::array<float, kBlock> floats;
  for (size_t begin = 0; begin < all.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, all.size() - begin);
    kTo(all.subspan(begin, n), std::span(floats).first(n));
    body(begin, all.subspan(begin, n), std::span(floats).first(n));
  }
}

template <ToFloats kTo, FromFloats kFrom, typename Op>
void ApplyHalf(std::span<std::byte> result, std::span<const std::byte> addend) {
  const std::span<const uint16_t> others(reinterpret_cast<const uint16_t*>(addend.data()),
                                         addend.size() / 2);
  std::array<float, 512> b;
  ForBlocks<kTo>(result, [&](size_t begin, std::span<uint16_t> out, std::span<float> a) {
    kTo(others.subspan(begin, a.size()), std::span(b).first(a.size()));
    for (size_t i = 0; i < a.size(); ++i) a[i] = Op()(a[i], b[i]);
    kFrom(a, out);
  });
}

// Overflow is undefined for signed integers, and gives the same bits for unsigned ones.
template <typename T, typename Op>
Accumulate ForInteger() {
  if constexpr (std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>) {
    return Apply<std::make_unsigned_t<T>, Op>;
  } else {
    return Apply<T, Op>;
  }
}

template <typename Op>
Accumulate ForType(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return Apply<float, Op>;
    case ElementType::kFloat64:
      return Apply<double, Op>;
    case ElementType::kFloat16:
      return ApplyHalf<HalfToFloat, FloatToHalf, Op>;
    case ElementType::kBrain16:
      return ApplyHalf<BrainToFloat, FloatToBrain, Op>;
    case ElementType::kInt8:
      return ForInteger<int8_t, Op>();
    case ElementType::kUint8:
      return ForInteger<uint8_t, Op>();
    case ElementType::kInt32:
      return ForInteger<int32_t, Op>();
    case ElementType::kInt64:
      return ForInteger<int64_t, Op>();
  }
  return {};
}

template <typename T>
void DivideAs(std::span<std::byte> bytes, int divisor) {
  const std::span<T> elements(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
  for (T& element : elements) element /= static_cast<T>(divisor);
}

template <ToFloats kTo, FromFloats kFrom>
void DivideHalf(std::span<std::byte> bytes, int divisor) {
  ForBlocks<kTo>(bytes, [&](size_t, std::span<uint16_t> out, std::span<float> values) {
    for (float& value : values) value /= static_cast<float>(divisor);
    kFrom(values, out);
  });
}

bool IsFloatingPoint(ElementType type) {
  return type == ElementType::kFloat32 || type == ElementType::kFloat64 ||
         type == ElementType::kFloat16 || type == ElementType::kBrain16;
}

}  // namespace

size_t ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kInt8:
    case ElementType::kUint8:
      return 1;
    case ElementType::kFloat16:
    case ElementType::kBrain16:
      return 2;
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kFloat64:
    case ElementType::kInt64:
      return 8;
  }
  return 1;
}

StatusOr<Accumulate> MakeAccumulate(ElementType type, ReduceOperation operation) {
  switch (operation) {
    case ReduceOperation::kAverage:
      if (!IsFloatingPoint(type)) {
        return InvalidArgument(
            "operation: averages are of floating-point elements, found integers");
      }
      return ForType<Sum>(type);
    case ReduceOperation::kSum:
      return ForType<Sum>(type);
    case ReduceOperation::kProduct:
      return ForType<Product>(type);
    case ReduceOperation::kMin:
      return ForType<Min>(type);
    case ReduceOperation::kMax:
      return ForType<Max>(type);
  }
  return InvalidArgument(StrCat("operation: found ", static_cast<int>(operation)));
}

bool DividesFirst(ElementType type, ReduceOperation operation) {
  return operation == ReduceOperation::kAverage && type == ElementType::kFloat16;
}

bool DividesLast(ElementType type, ReduceOperation operation) {
  return operation == ReduceOperation::kAverage && !DividesFirst(type, operation);
}

void Divide(ElementType type, std::span<std::byte> elements, int divisor) {
  if (type == ElementType::kFloat32) DivideAs<float>(elements, divisor);
  if (type == ElementType::kFloat64) DivideAs<double>(elements, divisor);
  if (type == ElementType::kFloat16) DivideHalf<HalfToFloat, FloatToHalf>(elements, divisor);
  if (type == ElementType::kBrain16) DivideHalf<BrainToFloat, FloatToBrain>(elements, divisor);
}

}  // namespace weir
