// SPDX-License-Identifier: Apache-2.0
#include "controller/job/rank_said.h"

#include <algorithm>
#include <set>

#include "controller/job/bounds.h"

namespace weir {

StatusOr<std::vector<BucketDefinition>> DefinitionsOf(const BucketList& buckets) {
  if (buckets.empty()) return InvalidArgument("the bucket table is empty");
  if (buckets.size() > kTableBucketsMax) {
    return InvalidArgument(StrCat(buckets.size(), " buckets, at most ", kTableBucketsMax));
  }
  std::vector<BucketDefinition> out;
  std::set<std::string> keys;
  for (const BucketInfo& bucket : buckets) {
    WEIR_RETURN_IF_ERROR(CheckName("a bucket's key", bucket.key));
    if (!keys.insert(bucket.key).second) {
      return InvalidArgument(StrCat("bucket ", bucket.key, " is listed twice"));
    }
    if (bucket.elements == 0) {
      return InvalidArgument(StrCat("bucket ", bucket.key, " has no elements"));
    }
    const bool half = bucket.dtype == "float16" || bucket.dtype == "bfloat16";
    out.push_back({bucket.key, bucket.elements, static_cast<int>(bucket.order & 0x7fffffff),
                   half ? 2 : 4, bucket.sharded});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  return out;
}

}  // namespace weir
