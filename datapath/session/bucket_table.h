// SPDX-License-Identifier: Apache-2.0
#pragma once
// The buckets that a session's caller declared, keyed by their parameters and not by their
// position, so that plans and residuals follow parameters when a framework regroups them.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/base/half.h"
#include "datapath/base/status.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/residual/error_feedback.h"
#include "datapath/exchange/exchange.h"

namespace weir {

inline constexpr size_t kBucketsMax = 65536;
inline constexpr uint64_t kBucketElementsMax = uint64_t{1} << 32;

std::string_view DtypeName(Dtype dtype);

/// One declared bucket. The first group never changes, except for `sharded` before the bucket is
/// used; the second belongs to whichever pipeline
/// stage works on the bucket's operation of the current step.
struct Bucket {
  uint64_t key = 0;
  uint64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  std::vector<ResidualParameter> parameters;
  std::vector<TensorShape> shape;  // of the parameters, in order
  bool sharded = false;            // see Session::SetSharded

  CodecMemory codec_memory;
  double gradient_energy = 0;  // of this rank's gradient when it was last sampled; 0: never
};

/// Not thread-safe: its owner guards it. Pointers to buckets are valid until it is destroyed.
class BucketRegistry {
 public:
  /// Declares a bucket, or makes one of an equal earlier declaration live again. Other buckets that
  /// hold one of its parameters are no longer live, but stay in memory. kInvalidArgument: an empty
  /// or repeated name, too many elements, columns that do not divide them; kResourceExhausted:
  /// kBucketsMax declarations.
  StatusOr<Bucket*> Define(std::vector<ResidualParameter> parameters, Dtype dtype);

  /// Returns a live bucket. kNotFound: it was never defined, or a later definition dissolved it.
  StatusOr<Bucket*> Find(uint64_t key) const;
  /// The live bucket that holds a parameter; null: none does.
  const Bucket* OwnerOf(std::string_view parameter) const;
  /// All live buckets, in order of their keys.
  std::vector<Bucket*> Live() const;

  /// Records `keys`, the order of the last step's operations, as the order in which buckets become
  /// ready. Returns true if it changed.
  bool SetOrder(const std::vector<uint64_t>& keys);

  BucketTable Describe() const;
  /// The sizes of all live buckets by key, for codecs.
  std::map<uint64_t, BucketSize> Sizes() const;

 private:
  struct Entry {
    std::unique_ptr<Bucket> bucket;
    bool live = true;
    uint32_t order = 0;
  };
  std::map<uint64_t, Entry> entries_;
  std::map<std::string, uint64_t, std::less<>> owner_;  // parameter -> key of the live bucket
};

/// The key of a bucket: XXH3-64 over its dtype and its parameters' names and shapes in order. Equal
/// on every machine. Thread-safe.
uint64_t BucketKey(std::span<const ResidualParameter> parameters, Dtype dtype);

}  // namespace weir
