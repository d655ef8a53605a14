// SPDX-License-Identifier: Apache-2.0
// Changes of estimates become triggers; see job_model.h.

#include <algorithm>
#include <array>
#include <cmath>

#include "controller/model/cost_model.h"
#include "controller/model/format.h"
#include "controller/model/job_model_state.h"

namespace weir {
namespace {

constexpr uint64_t kStartSteps = 3;
// After a change the estimate still settles: a decision is offered again after so many steps.
constexpr uint64_t kFollowUps[] = {2, 6};
// How far an estimate may drift from what the last decision saw before a new one is due
// (logarithms).
constexpr double kBandwidthDrift = 0.25, kLatencyDrift = 0.5;
// A latency that makes up less of a step than this is not worth a decision.
constexpr double kLatencyShareMin = 0.02;
// A plan whose measured gain is off its predicted one by this after so many steps is judged again.
constexpr double kPlanGainOff = 0.1;
constexpr uint64_t kPlanGainSteps = 3;
constexpr double kReferenceRatio = 0.01;  // gain changes are watched here

int UrgencyOf(TriggerKind kind) {
  if (kind == TriggerKind::kBandwidthChange) return 4;
  if (kind == TriggerKind::kLatencyChange) return 3;
  if (kind == TriggerKind::kGainChange) return 2;
  return kind == TriggerKind::kStart ? 1 : 0;
}

// In the order of the enumeration.
constexpr std::array<std::string_view, 12> kTriggerNames = {
    "",       "start", "periodic", "bandwidth_change", "latency_change", "gain_change",
    "policy", "pin",   "rollback", "aggregator",       "loss",           "dense_check"};
static_assert(kTriggerNames.size() == static_cast<size_t>(TriggerKind::kDenseCheck) + 1);

}  // namespace

std::string TriggerName(TriggerKind kind) {
  return std::string(kTriggerNames[static_cast<size_t>(kind)]);
}

TriggerKind TriggerNamed(std::string_view name) {
  const auto found = std::find(kTriggerNames.begin(), kTriggerNames.end(), name);
  return found == kTriggerNames.end() ? TriggerKind::kNone
                                      : static_cast<TriggerKind>(found - kTriggerNames.begin());
}

std::string ChangeText(const Change& change) {
  std::string text;
  const auto arrow = [&](const std::string& before, const std::string& after) {
    const bool drifted = change.seen == Change::Seen::kDrifted;
    text += StrCat(drifted ? " drifted " : " ", before, " -> ", after);
  };
  switch (change.of) {
    case Change::Of::kBandwidth:
      text = "bandwidth";
      arrow(BandwidthText(change.before), BandwidthText(change.after));
      break;
    case Change::Of::kLatency:
      text = "latency";
      arrow(SecondsText(change.before), SecondsText(change.after));
      break;
    case Change::Of::kGain:
      text = "gain at ratio " + NumberText(change.ratio);
      arrow(NumberText(change.before), NumberText(change.after));
      break;
    case Change::Of::kPlanGain:
      return StrCat("gain of plan ", change.plan_version, ": ", NumberText(change.after),
                    " measured, ", NumberText(change.before), " predicted");
    case Change::Of::kLoss:
      return StrCat("loss ", NumberText(change.after), " under plan ", change.plan_version,
                    " where the fitted curve has ", NumberText(change.before));
    case Change::Of::kStepTime:
      return StrCat("plan ", change.plan_version, " takes ", SecondsText(change.after),
                    " for the progress of a dense step, ", SecondsText(change.before),
                    " were promised");
  }
  if (change.seen == Change::Seen::kSincePlan) {
    return text + StrCat(" since plan ", change.plan_version);
  }
  return text + StrCat(" (step ", change.step, ")", change.settled ? ", settled" : "");
}

std::string TriggerText(const Trigger& trigger) {
  std::string text;
  for (const Change& change : trigger.changes) {
    text += (text.empty() ? "" : "; ") + ChangeText(change);
  }
  if (!trigger.note.empty()) text += (text.empty() ? "" : "; ") + trigger.note;
  return text;
}

void JobModel::State::Raise(TriggerKind kind, std::vector<Change> changes) {
  Trigger& trigger = pending[kind];
  // The first of a kind names the step; the newest knows best what happened.
  if (trigger.kind == TriggerKind::kNone) trigger.step = step;
  trigger.kind = kind;
  trigger.changes = std::move(changes);
}

void JobModel::State::RaiseAndFollowUp(TriggerKind kind, const Change& change) {
  Raise(kind, {change});
  std::erase_if(follow_ups, [&](const auto& entry) { return entry.second.kind == kind; });
  for (const uint64_t later : kFollowUps) follow_ups.push_back({step + later, pending[kind]});
}

void JobModel::State::RaiseNetworkChange(const NetworkChange& change) {
  if (change.bandwidth) {
    RaiseAndFollowUp(TriggerKind::kBandwidthChange, {.of = Change::Of::kBandwidth,
                                                     .before = change.bandwidth_before,
                                                     .after = change.bandwidth_after,
                                                     .step = step});
  }
  if (change.latency) {
    RaiseAndFollowUp(TriggerKind::kLatencyChange, {.of = Change::Of::kLatency,
                                                   .before = change.latency_before,
                                                   .after = change.latency_after,
                                                   .step = step});
  }
}

void JobModel::State::RaiseFollowUps() {
  for (const auto& [at, trigger] : follow_ups) {
    if (at != step) continue;
    const auto found = pending.try_emplace(trigger.kind, trigger);
    if (!found.second) continue;
    for (Change& change : found.first->second.changes) change.settled = true;
  }
  std::erase_if(follow_ups, [&](const auto& entry) { return entry.first <= step; });
}

void JobModel::State::WatchGain() {
  double weighted = 0, elements = 0;
  for (const BucketDefinition& bucket : buckets) {
    const auto found = estimates.find(bucket.key);
    if (found == estimates.end() || found->second.gains.empty()) return;
    BucketModel model;
    model.gain_ratios = found->second.gain_ratios;
    model.gains = found->second.gains;
    CodecModel selection;
    selection.error_model = "selection";
    weighted += static_cast<double>(bucket.elements) *
                PredictGain(selection, CollectiveModel{}, model, kReferenceRatio, world);
    elements += static_cast<double>(bucket.elements);
  }
  if (!(elements > 0) || !(weighted > 0)) return;
  const double value = std::log(weighted / elements);
  const double before = reference_gain.value_or(value);
  reference_gain.Add(value);
  // Curves are averages already: a tenth is a lot.
  if (gain_detector.Add((value - before) / 0.1) == 0) return;
  Raise(TriggerKind::kGainChange, {{.of = Change::Of::kGain,
                                    .before = std::exp(before),
                                    .after = std::exp(value),
                                    .ratio = kReferenceRatio,
                                    .step = step}});
  reference_gain = Smoothed(0.05);
  reference_gain.Add(value);
}

// The gradients of some jobs do not suit a codec, whatever its error model says. Once a plan: what
// was measured is in every later prediction.
void JobModel::State::WatchPlanGain() {
  if (plan_gain_told || ++plan_steps < kPlanGainSteps || plan.size() != buckets.size()) return;
  double measured = 0, predicted = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const double elements = static_cast<double>(buckets[b].elements);
    const auto found = estimates.find(buckets[b].key);
    const MeasuredGain* seen =
        found == estimates.end() ? nullptr : found->second.measured_gains.Find(plan[b]);
    measured += elements * (seen == nullptr ? 1 : seen->gain);
    predicted += elements * (seen == nullptr ? 1 : seen->predicted);
  }
  if (!(predicted > 0) || std::fabs(measured / predicted - 1) < kPlanGainOff) return;
  plan_gain_told = true;
  double total = 0;
  for (const BucketDefinition& bucket : buckets) total += static_cast<double>(bucket.elements);
  Raise(TriggerKind::kGainChange, {{.of = Change::Of::kPlanGain,
                                    .seen = Change::Seen::kSincePlan,
                                    .before = predicted / total,
                                    .after = measured / total,
                                    .step = step,
                                    .plan_version = plan_version}});
}

void JobModel::State::WatchDrift() {
  if (!started || decided_bandwidth <= 0) return;
  const double now_s = Now();
  const double bandwidth = network.Bandwidth(now_s).value, latency_s = network.Latency(now_s).value;
  const bool sure = network.filter().beta_log_deviation() < 0.5 * kBandwidthDrift;
  if (sure && std::fabs(std::log(bandwidth / decided_bandwidth)) > kBandwidthDrift) {
    RaiseAndFollowUp(TriggerKind::kBandwidthChange, {.of = Change::Of::kBandwidth,
                                                     .seen = Change::Seen::kDrifted,
                                                     .before = decided_bandwidth,
                                                     .after = bandwidth,
                                                     .step = step});
    decided_bandwidth = bandwidth;
  }
  double messages = 0;
  const NodeLayout layout = LayoutOf(network.memory());
  for (const ChoiceModel& choice : plan) {
    const int c = FindCollective(choice.collective);
    if (c >= 0) messages += FeaturesOf(collectives[c], world, layout).latency;
  }
  const double moved_s = messages * std::fabs(latency_s - decided_latency_s);
  const bool certain = network.filter().alpha_log_deviation() < 0.5 * kLatencyDrift;
  if (certain && moved_s > kLatencyShareMin * step_s.Get().value &&
      std::fabs(std::log(latency_s / decided_latency_s)) > kLatencyDrift) {
    RaiseAndFollowUp(TriggerKind::kLatencyChange, {.of = Change::Of::kLatency,
                                                   .seen = Change::Seen::kDrifted,
                                                   .before = decided_latency_s,
                                                   .after = latency_s,
                                                   .step = step});
    decided_latency_s = latency_s;
  }
}

// Nothing may have been switched meanwhile, or something else be the trigger: who reads why a plan
// ends wants to know how far the network is from what the plan was made for. None: not far, or the
// change that is pending began there.
std::optional<Change> JobModel::State::SincePlan() const {
  const auto apart = [](double a, double b) { return std::fabs(std::log(a / b)); };
  const double bandwidth = network.Bandwidth(Now()).value;
  if (!(planned_bandwidth > 0) || !(bandwidth > 0)) return std::nullopt;
  const double noise = std::max(kBandwidthDrift, 2 * network.filter().beta_log_deviation());
  const bool told = pending.contains(TriggerKind::kBandwidthChange) &&
                    apart(decided_bandwidth, planned_bandwidth) <= kBandwidthDrift;
  if (told || apart(bandwidth, planned_bandwidth) <= noise) return std::nullopt;
  return Change{.of = Change::Of::kBandwidth,
                .seen = Change::Seen::kSincePlan,
                .before = planned_bandwidth,
                .after = bandwidth,
                .step = step,
                .plan_version = plan_version};
}

std::optional<Trigger> JobModel::TakeTrigger(double periodic_s) {
  State& s = *state_;
  if (!s.Missing().ok()) return std::nullopt;  // what is pending stays
  if (!s.started) {
    if (s.steps < kStartSteps) return std::nullopt;
    s.started = true;
    if (s.pending.empty()) s.Raise(TriggerKind::kStart, {});
  }
  const double now_s = s.Now();
  if (s.pending.empty() && now_s - s.last_decision_s >= periodic_s)
    s.Raise(TriggerKind::kPeriodic, {});
  if (s.pending.empty()) return std::nullopt;
  // One decision answers everything that is pending; the most urgent names it.
  TriggerKind kind = TriggerKind::kNone;
  for (const auto& [one, trigger] : s.pending) {
    if (kind == TriggerKind::kNone || UrgencyOf(one) > UrgencyOf(kind)) kind = one;
  }
  Trigger taken = s.pending[kind];
  for (const auto& [one, trigger] : s.pending) {
    if (one == kind) continue;
    taken.changes.insert(taken.changes.end(), trigger.changes.begin(), trigger.changes.end());
  }
  if (const auto change = s.SincePlan(); change.has_value()) taken.changes.push_back(*change);
  s.pending.clear();
  s.last_decision_s = now_s;
  s.decided_bandwidth = s.network.Bandwidth(now_s).value;
  s.decided_latency_s = s.network.Latency(now_s).value;
  return taken;
}

}  // namespace weir
