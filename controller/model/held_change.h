// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes of a plan that did not keep their promise, and which later changes are like them.

#include <vector>

#include "controller/model/snapshot.h"

namespace weir {

/// Choices whose ratios differ by less than this factor, and in nothing else, are alike.
inline constexpr double kAlikeRatio = 3;

/// Same codec, width and collective, and ratios within kAlikeRatio.
bool IsAlike(const ChoiceModel& a, const ChoiceModel& b);

/// A plan as far as a change of it matters.
struct ChangeEnd {
  const PlanModel& choices;  // empty: nothing ran
  const PlanLayout& layout;
  const SyncModel& sync = kEveryStep;
};

/// The change from one plan to another: the choice to which most of the elements go whose choice
/// changes. `to` has one for each of `buckets`. O(buckets^2) of those that change.
HeldChange DescribeChange(const std::vector<BucketModel>& buckets, const ChangeEnd& from,
                          const ChangeEnd& to);

/// Whether two changes are so alike that the failure of one speaks against the other: their choices
/// are, and the periods between synchronisations, if these changed, differ by less than
/// kAlikeRatio.
bool IsAlike(const HeldChange& a, const HeldChange& b);

}  // namespace weir
