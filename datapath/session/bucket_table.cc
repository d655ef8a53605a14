// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/bucket_table.h"

#include <xxhash.h>

#include <algorithm>
#include <set>

#include "datapath/base/json.h"

namespace weir {
namespace {

TensorShape ShapeOf(const ResidualParameter& parameter) {
  if (parameter.columns == 0) return {.rows = 1, .columns = parameter.elements};
  return {.rows = parameter.elements / parameter.columns, .columns = parameter.columns};
}

}  // namespace

std::string_view DtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kBrain16:
      return "bfloat16";
  }
  return "";
}

uint64_t BucketKey(std::span<const ResidualParameter> parameters, Dtype dtype) {
  // The dtype is part of the key: ranks that disagree on it must not meet in one operation.
  std::string text = StrCat(DtypeName(dtype), "\n");
  for (const ResidualParameter& parameter : parameters) {
    text += StrCat(parameter.name.size(), ":", parameter.name, ":", parameter.elements, ":",
                   parameter.columns, "\n");
  }
  return XXH3_64bits(text.data(), text.size());
}

StatusOr<Bucket*> BucketRegistry::Define(std::vector<ResidualParameter> parameters, Dtype dtype) {
  std::set<std::string_view> names;
  uint64_t elements = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ResidualParameter& parameter = parameters[i];
    if (parameter.name.empty()) {
      return InvalidArgument(StrCat("bucket parameter ", i, ": expected a name, found none"));
    }
    if (!names.insert(parameter.name).second) {
      return InvalidArgument(
          StrCat("bucket parameter '", parameter.name, "' appears twice in one bucket"));
    }
    if (parameter.elements > kBucketElementsMax ||
        (elements += parameter.elements) > kBucketElementsMax) {
      return InvalidArgument(StrCat("bucket of parameter '", parameter.name, "': expected at most ",
                                    kBucketElementsMax, " elements"));
    }
    if (parameter.columns != 0 && parameter.elements % parameter.columns != 0) {
      return InvalidArgument(StrCat("bucket parameter '", parameter.name, "': ", parameter.elements,
                                    " elements are not whole rows of ", parameter.columns));
    }
  }
  const uint64_t key = BucketKey(parameters, dtype);
  if (entries_.size() >= kBucketsMax && entries_.count(key) == 0) {
    return ResourceExhausted(StrCat("at most ", kBucketsMax, " different buckets can be defined"));
  }
  for (const ResidualParameter& parameter : parameters) {
    const auto owner = owner_.find(parameter.name);
    if (owner != owner_.end() && owner->second != key) entries_.at(owner->second).live = false;
    owner_[parameter.name] = key;
  }
  Entry& entry = entries_[key];
  if (entry.bucket == nullptr) {
    entry.bucket = std::make_unique<Bucket>();
    entry.bucket->key = key;
    entry.bucket->elements = elements;
    entry.bucket->dtype = dtype;
    for (const ResidualParameter& parameter : parameters) {
      entry.bucket->shape.push_back(ShapeOf(parameter));
    }
    entry.bucket->parameters = std::move(parameters);
    entry.order = static_cast<uint32_t>(entries_.size() - 1);
  }
  entry.live = true;
  return entry.bucket.get();
}

StatusOr<Bucket*> BucketRegistry::Find(uint64_t key) const {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return NotFound(StrCat("bucket ", Hex64(key), " is not defined"));
  if (!it->second.live) {
    return NotFound(
        StrCat("bucket ", Hex64(key), " was dissolved: a later definition took its parameters"));
  }
  return it->second.bucket.get();
}

const Bucket* BucketRegistry::OwnerOf(std::string_view parameter) const {
  const auto owner = owner_.find(parameter);
  if (owner == owner_.end()) return nullptr;
  const Entry& entry = entries_.at(owner->second);
  return entry.live ? entry.bucket.get() : nullptr;
}

std::vector<Bucket*> BucketRegistry::Live() const {
  std::vector<Bucket*> live;
  for (const auto& [key, entry] : entries_) {
    if (entry.live) live.push_back(entry.bucket.get());
  }
  return live;
}

bool BucketRegistry::SetOrder(const std::vector<uint64_t>& keys) {
  bool changed = false;
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const auto it = entries_.find(keys[i]);
    if (it == entries_.end() || it->second.order == i) continue;
    it->second.order = i;
    changed = true;
  }
  return changed;
}

BucketTable BucketRegistry::Describe() const {
  BucketTable table;
  for (const auto& [key, entry] : entries_) {
    if (!entry.live) continue;
    BucketDescription description;
    description.key = key;
    description.elements = entry.bucket->elements;
    description.order = entry.order;
    description.dtype = DtypeName(entry.bucket->dtype);
    description.sharded = entry.bucket->sharded;
    for (const ResidualParameter& parameter : entry.bucket->parameters) {
      if (description.parameters.size() == kParameterNamesSentMax) break;
      description.parameters.push_back(parameter.name);
    }
    table.buckets.push_back(std::move(description));
  }
  std::stable_sort(table.buckets.begin(), table.buckets.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  return table;
}

std::map<uint64_t, BucketSize> BucketRegistry::Sizes() const {
  std::map<uint64_t, BucketSize> sizes;
  for (const auto& [key, entry] : entries_) {
    if (entry.live) sizes[key] = {entry.bucket->elements, entry.bucket->shape};
  }
  return sizes;
}

}  // namespace weir
