// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/adaptive_deadline.h"

#include <algorithm>
#include <cmath>

#include "datapath/base/status.h"

namespace weir {

void TimeEstimate::Add(double seconds) {
  if (samples_ == 0) {
    smoothed_ = seconds;
    deviation_ = seconds / 2;
  } else {
    deviation_ += (std::abs(seconds - smoothed_) - deviation_) / 4;
    smoothed_ += (seconds - smoothed_) / 8;
  }
  samples_ = std::min(samples_ + 1, AdaptiveDeadline::kSamplesMin);
}

Duration AdaptiveDeadline::Begin(uint64_t step, const Part& part, const std::string& choice,
                                 TimePoint now) {
  if (!any_step_ || step != step_) {
    // Only consecutive steps are measured: steps without operations would count as one long step.
    if (any_step_ && step == step_ + 1) steps_.Add(ToSeconds(now - step_began_));
    any_step_ = true;
    step_ = step;
    step_began_ = now;
    all_here_ = false;
  }
  Entry& entry = parts_[part];
  if (entry.choice != choice) entry = Entry{.choice = choice};
  running_ = &entry;
  began_ = now;
  entry.step = step;
  entry.allowed = options_.ceiling;
  if (all_here_ && entry.took.samples() >= kSamplesMin && steps_.samples() >= kSamplesMin) {
    const double seconds = kFactor * (entry.took.upper_s() + steps_.upper_s());
    // Compared in seconds, because the product may exceed a Duration when the clock jumps.
    if (seconds < ToSeconds(options_.ceiling)) {
      entry.allowed = std::min(options_.ceiling, std::max(options_.floor, FromSeconds(seconds)));
    }
  }
  const auto before = parts_.find({part.bucket, part.part - 1});
  if (before != parts_.end() && before->second.step == step && !before->second.by_all) {
    const Duration theirs = before->second.allowed;
    entry.allowed =
        std::max(entry.allowed, theirs + std::min<Duration>(theirs / 10, std::chrono::seconds(1)));
  }
  return entry.allowed;
}

void AdaptiveDeadline::Finish(TimePoint now, bool by_all) {
  running_->took.Add(ToSeconds(now - began_));
  running_->by_all = by_all;
  all_here_ = all_here_ || by_all;
}

std::string AdaptiveDeadline::Explain() const {
  if (running_ == nullptr) return "";
  const std::string allowed = StrCat(ToSeconds(running_->allowed), " s were allowed");
  if (!all_here_) return StrCat("; ", allowed, ", as for the first operation of every step");
  if (running_->took.samples() < kSamplesMin || steps_.samples() < kSamplesMin) {
    return StrCat("; ", allowed, ", as too little was measured so far");
  }
  return StrCat("; this operation usually takes ", running_->took.smoothed_s(), " s and a step ",
                steps_.smoothed_s(), " s, so ", allowed);
}

std::string AdaptiveDeadlineKey(const Choice& choice) {
  std::string key = choice.codec + "/" + choice.collective;
  // Numbers are appended as bytes, because formatting a fraction takes as long as sending a
  // message.
  const auto append = [&key](const auto& number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  append(choice.ratio);
  append(choice.bits);
  append(choice.segment_bytes);
  return key;
}

}  // namespace weir
