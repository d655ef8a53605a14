// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a bucket is cut for the forms that encode sums: into one region for each rank, or into the
// parts of a node's sum.

#include <cstddef>
#include <vector>

#include "datapath/codec/codec.h"

namespace weir {

/// The elements begin .. begin + size - 1 of a bucket, which one rank sums for all.
struct Region {
  size_t begin = 0, size = 0;
  std::vector<TensorShape> shape;  // tensors within it; tensors that are cut count as vectors
};

/// One region for each rank, in rank order: almost equal runs of whole cache lines, so the last
/// ones are empty where a bucket has fewer lines than the world has ranks. Equal on all ranks and
/// independent of the ratio, because a codec's ratio applies to each region separately. O(world +
/// tensors). Thread-safe.
std::vector<Region> CutRegions(const BucketSize& bucket, int world);

}  // namespace weir
