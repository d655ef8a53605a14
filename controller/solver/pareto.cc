// SPDX-License-Identifier: Apache-2.0
// Label setting: a label is the state of the three stations and the gain lost so far. Before labels
// are compared, each station is moved forward to the earliest moment at which it could matter for
// the next bucket; that changes no outcome and makes most labels comparable, which keeps the front
// small.

#include "controller/solver/pareto.h"

#include <algorithm>

#include "controller/model/deterministic_math.h"

namespace weir {
namespace {

struct Label {
  StationTimes at;
  double loss = 0;  // elements times lost gain
  int parent = -1;  // in the stage before
  int kind = -1;
};

struct StageOption {
  double encode_s, network_s, decode_s, loss;
  int kind;
};

/// The allowed options of one bucket, except those that another option beats in every respect.
std::vector<StageOption> OptionsOf(const CandidateSpace& space, size_t bucket) {
  std::vector<StageOption> all;
  const double elements = static_cast<double>(space.snapshot().buckets[bucket].elements);
  for (size_t k = 0; k < space.kinds().size(); ++k) {
    const BucketOption& option = space.option(bucket, k);
    if (!option.excluded_by.empty()) continue;
    all.push_back({option.encode_s, option.network_s, option.cost.decode_s,
                   (1 - option.cost.gain) * elements, static_cast<int>(k)});
  }
  std::vector<StageOption> kept;
  for (size_t i = 0; i < all.size(); ++i) {
    bool dominated = false;
    for (size_t j = 0; j < all.size() && !dominated; ++j) {
      const StageOption &a = all[j], &b = all[i];
      const bool no_worse = a.encode_s <= b.encode_s && a.network_s <= b.network_s &&
                            a.decode_s <= b.decode_s && a.loss <= b.loss;
      const bool better = a.encode_s < b.encode_s || a.network_s < b.network_s ||
                          a.decode_s < b.decode_s || a.loss < b.loss;
      dominated = no_worse && (better || j < i);
    }
    if (!dominated) kept.push_back(all[i]);
  }
  return kept;
}

bool Before(const Label& a, const Label& b) {
  if (a.loss != b.loss) return a.loss < b.loss;
  if (a.at.sent_s != b.at.sent_s) return a.at.sent_s < b.at.sent_s;
  if (a.at.decoded_s != b.at.decoded_s) return a.at.decoded_s < b.at.decoded_s;
  if (a.at.encoded_s != b.at.encoded_s) return a.at.encoded_s < b.at.encoded_s;
  if (a.parent != b.parent) return a.parent < b.parent;
  return a.kind < b.kind;
}

/// Keeps the labels that no other dominates. Input order does not matter.
std::vector<Label> Prune(std::vector<Label> labels) {
  std::sort(labels.begin(), labels.end(), Before);
  std::vector<Label> kept;
  for (const Label& label : labels) {
    bool dominated = false;
    for (auto other = kept.rbegin(); other != kept.rend() && !dominated; ++other) {
      // Sorted by loss, so every kept label loses no more.
      dominated = other->at.sent_s <= label.at.sent_s &&
                  other->at.decoded_s <= label.at.decoded_s &&
                  other->at.encoded_s <= label.at.encoded_s;
    }
    if (!dominated) kept.push_back(label);
  }
  return kept;
}

/// The least time that the remaining buckets need at each station.
struct Rest {
  double encode_s = 0, network_s = 0, decode_s = 0;

  /// The earliest end that is still possible.
  double Finish(const StationTimes& at) const {
    return std::max({at.encoded_s + encode_s, at.sent_s + network_s, at.decoded_s + decode_s});
  }
};

/// Keeps at most about `limit` labels: the least lossy one of each interval of possible ends.
/// Intervals grow geometrically, because plans of interest lie close to the fastest one.
std::vector<Label> Thin(std::vector<Label> labels, const Rest& rest, size_t limit) {
  if (labels.size() <= limit) return labels;
  double low = rest.Finish(labels[0].at), high = low;
  for (const Label& label : labels) {
    low = std::min(low, rest.Finish(label.at));
    high = std::max(high, rest.Finish(label.at));
  }
  low = DetLog(std::max(low, 1e-6));
  const double width = (DetLog(std::max(high, 1e-6)) - low) / static_cast<double>(limit);
  if (!(width > 0)) {
    std::sort(labels.begin(), labels.end(), Before);
    labels.resize(limit);
    return labels;
  }
  std::vector<Label> cells(limit + 2);
  for (const Label& label : labels) {
    const double at = (DetLog(std::max(rest.Finish(label.at), 1e-6)) - low) / width;
    Label& cell = cells[std::min(static_cast<size_t>(std::max(at, 0.0)), limit + 1)];
    if (cell.kind < 0 || Before(label, cell)) cell = label;
  }
  std::erase_if(cells, [](const Label& cell) { return cell.kind < 0; });
  return cells;
}

using Stages = std::vector<std::vector<StageOption>>;

double Least(const std::vector<StageOption>& options, double StageOption::*time) {
  double least = 1e18;
  for (const StageOption& option : options) least = std::min(least, option.*time);
  return least;
}

/// The least time that the buckets after each bucket still need.
std::vector<Rest> RestsOf(const Stages& stages) {
  std::vector<Rest> rests(stages.size());
  for (size_t b = stages.size() - 1; b > 0; --b) {
    rests[b - 1] = {rests[b].encode_s + Least(stages[b], &StageOption::encode_s),
                    rests[b].network_s + Least(stages[b], &StageOption::network_s),
                    rests[b].decode_s + Least(stages[b], &StageOption::decode_s)};
  }
  return rests;
}

/// Moves the stations to the earliest times that can matter for the next bucket. After the last
/// bucket only the end counts, and not before the backward pass is over.
class Forwarder {
 public:
  Forwarder(const CandidateSpace& space, const Stages& stages, size_t bucket)
      : last_(bucket + 1 == stages.size()) {
    const auto& buckets = space.snapshot().buckets;
    if (last_) {
      ready_s_ = space.snapshot().backward_s.value;
      for (const BucketModel& one : buckets) ready_s_ = std::max(ready_s_, one.ready_s);
      return;
    }
    ready_s_ = buckets[bucket + 1].ready_s;
    encode_s_ = Least(stages[bucket + 1], &StageOption::encode_s);
    network_s_ = Least(stages[bucket + 1], &StageOption::network_s);
  }

  StationTimes operator()(StationTimes at) const {
    if (last_) {
      at.decoded_s = std::max(at.decoded_s, ready_s_);
      at.encoded_s = at.sent_s = at.decoded_s;
      return at;
    }
    at.encoded_s = std::max(at.encoded_s, ready_s_);
    at.sent_s = std::max(at.sent_s, at.encoded_s + encode_s_);
    at.decoded_s = std::max(at.decoded_s, at.sent_s + network_s_);
    return at;
  }

 private:
  bool last_;
  double ready_s_ = 0, encode_s_ = 0, network_s_ = 0;
};

/// Every label of `before` extended by every option of one bucket.
std::vector<Label> Extend(const std::vector<Label>& before, const std::vector<StageOption>& options,
                          double ready_s, const Forwarder& forward) {
  std::vector<Label> labels;
  labels.reserve(before.size() * options.size());
  for (size_t parent = 0; parent < before.size(); ++parent) {
    for (const StageOption& option : options) {
      const StationTimes at =
          Advance(before[parent].at, {ready_s, option.encode_s, option.network_s, option.decode_s});
      labels.push_back(
          {forward(at), before[parent].loss + option.loss, static_cast<int>(parent), option.kind});
    }
  }
  return labels;
}

}  // namespace

std::vector<KindPlan> ParetoFront(const CandidateSpace& space, const ParetoOptions& options) {
  const auto& buckets = space.snapshot().buckets;
  size_t limit = options.labels_max;
  if (limit == 0) {
    limit = buckets.size() <= 5 ? 4096 : std::clamp<size_t>(6000 / buckets.size(), 60, 1000);
  }
  Stages stages(buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    stages[b] = OptionsOf(space, b);
    if (stages[b].empty()) return {};
  }
  const std::vector<Rest> rests = RestsOf(stages);
  std::vector<std::vector<Label>> history = {{Label{}}};
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::vector<Label> next =
        Extend(history.back(), stages[b], buckets[b].ready_s, Forwarder(space, stages, b));
    if (next.size() > 16 * limit) next = Thin(std::move(next), rests[b], 4 * limit);
    history.push_back(Thin(Prune(std::move(next)), rests[b], limit));
  }
  std::vector<KindPlan> front;
  for (const Label& end : history.back()) {
    KindPlan plan(buckets.size());
    const Label* label = &end;
    for (size_t b = buckets.size(); b-- > 0; label = &history[b][label->parent]) {
      plan[b] = label->kind;
    }
    front.push_back(std::move(plan));
  }
  std::reverse(front.begin(), front.end());  // least lossy is slowest
  return front;
}

}  // namespace weir
