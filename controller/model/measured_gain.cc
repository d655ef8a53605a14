// SPDX-License-Identifier: Apache-2.0
// See measured_gain.h.

#include "controller/model/measured_gain.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr double kWeight = 0.2;
constexpr double kGainTiny = 1e-9;  // for logarithms and quotients

// A correction below this share of the prediction is left out of snapshots, which are stored.
constexpr double kNoticeable = 0.01;

// Four digits are more than a gain is known to, and snapshots stay short.
double Rounded(double gain) {
  if (!(gain > kGainTiny)) return 0;
  const double scale = std::pow(10, 3 - std::floor(std::log10(gain)));
  return std::round(gain * scale) / scale;
}

bool SameChoice(const MeasuredGain& a, const MeasuredGain& b) {
  return a.codec == b.codec && a.bits == b.bits && a.collective == b.collective &&
         a.ratio == b.ratio;
}

/// True if the ratio of measurement `a` is nearer, in logarithms, than that of `b`.
bool Nearer(const MeasuredGain& a, const MeasuredGain& b, double ratio) {
  const auto apart = [&](const MeasuredGain& one) {
    return std::max(one.ratio, ratio) / std::min(one.ratio, ratio);
  };
  return apart(a) < apart(b);
}

/// A loss beyond the prediction is a factor of what is kept; where less was lost, of the loss. Both
/// stay in [0, 1], give the measured gain for the prediction that was measured, and rise with the
/// prediction.
double Correct(const MeasuredGain& seen, double predicted) {
  if (seen.gain <= seen.predicted) {
    return predicted * seen.gain / std::max(seen.predicted, kGainTiny);
  }
  return 1 - (1 - predicted) * (1 - seen.gain) / std::max(1 - seen.predicted, kGainTiny);
}

}  // namespace

void MeasuredGains::Add(const MeasuredGain& seen, double now_s) {
  if (!std::isfinite(seen.gain) || !std::isfinite(seen.predicted)) return;
  Entry entry{seen, now_s};
  entry.average.gain = std::clamp(seen.gain, 0.0, 1.0);
  entry.average.predicted = std::clamp(seen.predicted, 0.0, 1.0);
  const auto known = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& one) { return SameChoice(one.average, seen); });
  if (known != entries_.end()) {
    const MeasuredGain& before = known->average;
    entry.average.gain = before.gain + kWeight * (entry.average.gain - before.gain);
    entry.average.predicted =
        before.predicted + kWeight * (entry.average.predicted - before.predicted);
    entries_.erase(known);
  }
  entries_.push_back(std::move(entry));
  if (entries_.size() > kChoicesMax) entries_.erase(entries_.begin());
}

std::vector<MeasuredGain> MeasuredGains::Get(double now_s) const {
  std::vector<MeasuredGain> out;
  for (const Entry& entry : entries_) {
    MeasuredGain one = entry.average;
    const double age_s = std::max(0.0, now_s - entry.seen_s);
    if (age_s >= 0.01 * kHalfLifeS) {
      const double gain = std::max(one.gain, kGainTiny);
      const double predicted = std::max(one.predicted, kGainTiny);
      one.gain = predicted * std::pow(gain / predicted, std::exp2(-age_s / kHalfLifeS));
    }
    one.gain = Rounded(one.gain);
    one.predicted = Rounded(one.predicted);
    if (std::fabs(one.gain - one.predicted) > kNoticeable * one.predicted) out.push_back(one);
  }
  return out;
}

const MeasuredGain* MeasuredGains::Find(const ChoiceModel& choice) const {
  for (const Entry& entry : entries_) {
    const MeasuredGain& one = entry.average;
    if (one.codec == choice.codec && one.collective == choice.collective &&
        one.ratio == choice.ratio && (choice.bits == 0 || one.bits == choice.bits)) {
      return &one;
    }
  }
  return nullptr;
}

double CorrectedGain(const BucketModel& bucket, const CodecModel& codec,
                     const CollectiveModel& collective, double ratio, double predicted) {
  if (!codec.lossy || bucket.measured_gains.empty()) return predicted;
  const MeasuredGain* same = nullptr;   // over the same collective
  const MeasuredGain* other = nullptr;  // over another, worse than predicted
  for (const MeasuredGain& seen : bucket.measured_gains) {
    if (seen.codec != codec.name || seen.bits != codec.bits) continue;
    if (seen.collective == collective.name) {
      if (same == nullptr || !Nearer(*same, seen, ratio)) same = &seen;
    } else if (seen.gain < seen.predicted) {
      if (other == nullptr || !Nearer(*other, seen, ratio)) other = &seen;
    }
  }
  const MeasuredGain* seen = same != nullptr ? same : other;
  return seen == nullptr ? predicted : std::clamp(Correct(*seen, predicted), 0.0, 1.0);
}

}  // namespace weir
