// SPDX-License-Identifier: Apache-2.0
#include "controller/model/held_change.h"

#include <algorithm>
#include <cmath>

namespace weir {

bool IsAlike(const ChoiceModel& a, const ChoiceModel& b) {
  return a.codec == b.codec && a.bits == b.bits && a.collective == b.collective &&
         a.ratio < kAlikeRatio * b.ratio && b.ratio < kAlikeRatio * a.ratio;
}

HeldChange DescribeChange(const std::vector<BucketModel>& buckets, const ChangeEnd& from,
                          const ChangeEnd& to) {
  HeldChange change;
  uint64_t most = 0;
  for (size_t b = 0; b < to.choices.size() && b < buckets.size(); ++b) {
    const auto changes_to = [&](size_t i, const ChoiceModel& choice) {
      return to.choices[i] == choice &&
             (i >= from.choices.size() || from.choices[i] != to.choices[i]);
    };
    if (!changes_to(b, to.choices[b]) || (most > 0 && to.choices[b] == change.to)) continue;
    uint64_t elements = 0;
    for (size_t i = b; i < to.choices.size() && i < buckets.size(); ++i) {
      if (changes_to(i, to.choices[b])) elements += buckets[i].elements;
    }
    if (elements <= most) continue;
    most = elements;
    change.to = to.choices[b];
  }
  if (from.sync.every != to.sync.every) change.every = to.sync.every;
  change.layout_only = most == 0 && change.every == 0 && from.layout != to.layout;
  return change;
}

bool IsAlike(const HeldChange& a, const HeldChange& b) {
  if (a.layout_only || b.layout_only) return a.layout_only == b.layout_only;
  const auto far = [](double x, double y) { return x >= kAlikeRatio * y; };
  const double x = std::max(1u, a.every), y = std::max(1u, b.every);
  return !far(x, y) && !far(y, x) && IsAlike(a.to, b.to);
}

}  // namespace weir
