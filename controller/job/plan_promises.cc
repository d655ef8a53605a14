// SPDX-License-Identifier: Apache-2.0
#include "controller/job/plan_promises.h"

#include <utility>

namespace weir {

void PlanPromises::OnOffered(uint64_t version, const Snapshot& snapshot, const Decision& decision,
                             double improvement_min) {
  offered_ = {
      .version = version,
      .promise = PromiseOf(decision, improvement_min),
      .change = DescribeChange(
          snapshot.buckets, {snapshot.incumbent, snapshot.layout, snapshot.local.sync},
          {decision.chosen.choices, decision.chosen.layout, decision.chosen.sync}),
      .former = {snapshot.incumbent, snapshot.layout, snapshot.speedup, snapshot.local.sync},
      .network = {snapshot.latency_s, snapshot.bandwidth_bytes_per_s}};
}

void PlanPromises::OnActive(uint64_t version, uint64_t step, bool excursion, bool returns) {
  if (excursion) return watch_.Pause();
  if (returns) return watch_.Resume(step);
  active_ = version == offered_.version ? std::exchange(offered_, Switch()) : Switch();
  broken_ = undecided_ = false;
  watch_.Begin(step, active_.promise);
}

std::optional<BrokenPromise> PlanPromises::OnStep(const PromiseStep& step,
                                                  const KnownNetwork& network, TimePoint now) {
  const bool watched = watch_.state() == PromiseWatch::State::kWatched;
  const auto found = watch_.OnStep(step);
  if (watched && watch_.state() == PromiseWatch::State::kKept) holds_.Forget(active_.change);
  if (!found.has_value()) return std::nullopt;
  holds_.OnBroken(active_.change, active_.network, network, now);
  broken_ = undecided_ = true;
  return found;
}

void PlanPromises::Forgive() {
  watch_.Forgive();
  if (!std::exchange(undecided_, false)) return;
  holds_.Forget(active_.change);
  broken_ = false;
}

void PlanPromises::Fill(bool rolls_back, const KnownNetwork& network, TimePoint now,
                        Snapshot* snapshot) {
  snapshot->held = holds_.Get(network, now);
  const size_t choices = active_.former.choices.size();
  const bool fits = choices == 0 || choices == snapshot->buckets.size();
  if (rolls_back && broken_ && fits) snapshot->former = {active_.former};
}

}  // namespace weir
