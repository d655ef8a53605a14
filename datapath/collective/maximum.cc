// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/maximum.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "datapath/collective/circulant.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

/// Bytes of all ranks together. Up to this size latency matters more than bandwidth on most links.
constexpr size_t kGatheredBytesMax = 64 << 10;

void TakeGreater(std::span<float> greatest, std::span<const float> other) {
  for (size_t i = 0; i < greatest.size(); ++i) {
    // NaN counts as greater than every number and is kept.
    if (std::isnan(other[i]) || other[i] > greatest[i]) greatest[i] = other[i];
  }
}

void TakeGreaterBytes(std::span<std::byte> greatest, std::span<const std::byte> other) {
  // The received bytes have no alignment.
  std::vector<float> a(greatest.size() / sizeof(float)), b(a.size());
  std::memcpy(a.data(), greatest.data(), greatest.size());
  std::memcpy(b.data(), other.data(), other.size());
  TakeGreater(a, b);
  std::memcpy(greatest.data(), a.data(), greatest.size());
}

}  // namespace

Status AllReduceMax(Group& group, std::span<float> values) {
  const size_t world = static_cast<size_t>(group.size());
  if (world * values.size_bytes() > kGatheredBytesMax) {
    return CirculantAllReduce(group, {.bytes = std::as_writable_bytes(values),
                                      .lane_bytes = sizeof(float),
                                      .accumulate = TakeGreaterBytes});
  }
  std::vector<float> all(world * values.size());
  WEIR_RETURN_IF_ERROR(
      SmallAllGather(group, std::as_bytes(values), std::as_writable_bytes(std::span(all))));
  for (size_t rank = 0; rank < world; ++rank) {
    TakeGreater(values, std::span(all).subspan(rank * values.size(), values.size()));
  }
  return OkStatus();
}

}  // namespace weir
