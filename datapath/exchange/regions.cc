// SPDX-License-Identifier: Apache-2.0
#include "datapath/exchange/regions.h"

#include <algorithm>
#include <optional>

namespace weir {
namespace {

constexpr size_t kCacheLineFloats = 16;

// The part of `tensor`, which begins at element `at`, within [begin, end).
std::optional<TensorShape> PartOf(const TensorShape& tensor, size_t at, size_t begin, size_t end) {
  const size_t first = std::max(at, begin), last = std::min<size_t>(at + tensor.elements(), end);
  if (first >= last) return std::nullopt;
  if (last - first == tensor.elements()) return tensor;
  return TensorShape{.rows = 1, .columns = last - first};
}

}  // namespace

std::vector<Region> CutRegions(const BucketSize& bucket, int world) {
  const size_t n = bucket.elements, parts = static_cast<size_t>(world);
  const size_t lines = (n + kCacheLineFloats - 1) / kCacheLineFloats;
  const auto begin_of = [&](size_t region) {
    const size_t line = region * (lines / parts) + std::min(region, lines % parts);
    return std::min(line * kCacheLineFloats, n);
  };
  std::vector<Region> regions(parts);
  size_t tensor = 0, at = 0;  // the first tensor that has not ended
  for (size_t r = 0; r < parts; ++r) {
    Region& region = regions[r];
    region.begin = begin_of(r);
    const size_t end = begin_of(r + 1);
    region.size = end - region.begin;
    while (tensor < bucket.shape.size()) {
      const TensorShape& shape = bucket.shape[tensor];
      if (const auto part = PartOf(shape, at, region.begin, end)) region.shape.push_back(*part);
      if (at + shape.elements() > end) break;
      at += shape.elements();
      ++tensor;
    }
  }
  return regions;
}

}  // namespace weir
