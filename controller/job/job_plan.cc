// SPDX-License-Identifier: Apache-2.0
#include "controller/job/job_plan.h"

#include <cstdio>

#include "controller/model/format.h"
#include "datapath/base/status.h"

namespace weir {
namespace {

std::string CanonicalChoice(const ChoiceModel& choice) {
  char ratio[40];
  std::snprintf(ratio, sizeof(ratio), "%.17g", choice.ratio);
  return StrCat(choice.codec, " ", choice.collective, " ", ratio, " ", choice.bits, " ",
                choice.segment_bytes, "\n");
}

std::string CanonicalGrant(const SlotGrant& grant) {
  std::string text =
      StrCat("lease|", grant.collective, "|", grant.aggregator, "|", grant.address, "|", grant.mode,
             "|", grant.id, "|", grant.epoch, "|", grant.cookie, "|", grant.slots, "|", grant.lanes,
             grant.columns == 0 ? "" : StrCat("|", grant.columns));
  if (grant.sum_bits > 0) text += StrCat("|", grant.sum_bits, "|");
  for (const uint32_t level : grant.levels) text += StrCat(level, ",");
  if (grant.quorum > 0) text += StrCat("|quorum|", grant.quorum, "|", grant.cutoff_us);
  if (grant.unchecked) text += "|unchecked";
  return text + "\n";
}

std::string CanonicalSync(const SyncModel& sync) {
  char numbers[100];
  std::snprintf(numbers, sizeof(numbers), "%.17g|%.17g|%.17g", sync.rate, sync.momentum, sync.mix);
  return StrCat("sync|", sync.every, "|", sync.overlap, "|", sync.fragments, "|",
                static_cast<int>(sync.outer), "|", numbers, "\n");
}

}  // namespace

JobPlan MakePlan(const std::string& job, uint64_t version,
                 const std::vector<BucketDefinition>& buckets, const PlanModel& choices,
                 const PlanLayout& layout, const ChoiceModel& fallback, const SyncModel& sync) {
  JobPlan plan{
      .job = job, .version = version, .fallback = fallback, .layout = layout, .sync = sync};
  for (size_t i = 0; i < choices.size() && i < buckets.size(); ++i) {
    plan.buckets.push_back({buckets[i].key, choices[i]});
  }
  plan.digest = PlanDigest(plan);
  return plan;
}

PlanModel ChoicesFor(const JobPlan& plan, const std::vector<BucketDefinition>& buckets) {
  PlanModel choices(buckets.size(), plan.fallback.value_or(ChoiceModel{}));
  for (const PlannedBucket& planned : plan.buckets) {
    for (size_t i = 0; i < buckets.size(); ++i) {
      if (buckets[i].key == planned.bucket) choices[i] = planned.choice;
    }
  }
  return choices;
}

std::string PlanDigest(const JobPlan& plan) {
  std::string text;
  for (const PlannedBucket& planned : plan.buckets) {
    text += StrCat(planned.bucket, " ", CanonicalChoice(planned.choice));
  }
  for (const SlotGrant& grant : plan.grants) text += CanonicalGrant(grant);
  for (const int rank : plan.layout.ring_order) text += StrCat("ring|", rank, "\n");
  for (const uint32_t share : plan.layout.shard_shares) text += StrCat("share|", share, "\n");
  if (plan.sync.local()) text += CanonicalSync(plan.sync);
  const ChoiceModel none{.codec = "", .collective = "", .ratio = 0};
  text += StrCat("fallback ", CanonicalChoice(plan.fallback.value_or(none)));
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

JobPlan Redacted(JobPlan plan) {
  if (plan.grants.empty()) return plan;
  for (SlotGrant& grant : plan.grants) grant.cookie.clear();
  plan.digest = PlanDigest(plan);
  return plan;
}

std::string ChoiceLabel(const ChoiceModel& choice) {
  const std::string ratio = choice.ratio < 1 ? StrCat(" ", choice.ratio) : "";
  const std::string bits = choice.bits == 0 ? "" : StrCat(" ", choice.bits, "-bit");
  return StrCat(CodecText(choice.codec), bits, ratio, " over ", choice.collective);
}

}  // namespace weir
