// SPDX-License-Identifier: Apache-2.0
// See job_estimates.h.

#include "controller/model/job_estimates.h"

#include <algorithm>
#include <utility>

#include "controller/model/ring_choice.h"

namespace weir {
namespace {
constexpr double kCurveWeight = 0.2;
constexpr int kEvidenceWindows = 2;

/// One directed link of NodeLinks.
struct MeasuredLink {
  size_t at;  // in s_per_byte
  double log_cost, log_deviation;
  bool confirmed;
};

/// Links that no evidence tells from the middle one become as fast as it is.
void LevelByEvidence(std::vector<MeasuredLink>* links) {
  std::vector<MeasuredLink> sorted;
  for (const MeasuredLink& link : *links) {
    if (link.confirmed) sorted.push_back(link);
  }
  if (sorted.empty()) sorted = *links;
  if (sorted.empty()) return;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(a.log_cost, a.at) < std::pair(b.log_cost, b.at);
  });
  for (MeasuredLink& link : *links) {
    const double joint = std::hypot(link.log_deviation, middle->log_deviation);
    const bool apart = std::fabs(link.log_cost - middle->log_cost) > kEvidenceDeviations * joint;
    if (!link.confirmed || !apart) link.log_cost = middle->log_cost;
  }
}

}  // namespace

void RollingMedian::Add(double value) {
  if (!std::isfinite(value)) return;
  values_.push_back(value);
  if (values_.size() > window_) values_.pop_front();
}

Measured RollingMedian::Get() const {
  if (values_.empty()) return {};
  std::vector<double> sorted(values_.begin(), values_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  Measured out;
  out.value = *middle;
  for (double& value : sorted) value = std::fabs(value - out.value);
  std::nth_element(sorted.begin(), middle, sorted.end());
  out.deviation = 1.4826 * *middle / std::sqrt(0.5 * static_cast<double>(sorted.size()));
  return out;
}

void BucketEstimate::AddCurve(const GainObservation& curve) {
  if (curve.ratios.empty() || curve.ratios.size() != curve.gains.size()) return;
  for (size_t i = 0; i < curve.ratios.size(); ++i) {
    const bool usable = curve.ratios[i] > 0 && curve.ratios[i] <= 1 && curve.gains[i] >= 0 &&
                        curve.gains[i] <= 1 && (i == 0 || curve.ratios[i] < curve.ratios[i - 1]);
    if (!usable) return;
  }
  if (curve.peak_over_rms > 0) peak_over_rms.Add(curve.peak_over_rms);
  if (gain_ratios != curve.ratios) {
    gain_ratios = curve.ratios;
    gains = curve.gains;
    return;
  }
  for (size_t i = 0; i < gains.size(); ++i) gains[i] += kCurveWeight * (curve.gains[i] - gains[i]);
}

void BucketEstimate::DescribeGradient(BucketModel* bucket) const {
  bucket->gain_ratios = gain_ratios;
  bucket->gains = gains;
  bucket->peak_over_rms = peak_over_rms.value_or(10);
}

void AddDensities(const StepObservation& observation, double now_s,
                  std::map<std::string, BucketEstimate>* estimates) {
  for (const BlockDensityObservation& seen : observation.block_densities) {
    const auto found = estimates->find(seen.bucket);
    if (found == estimates->end() || seen.block_elements == 0) continue;
    auto& densities = found->second.densities;
    if (densities.size() >= kBlockSizesMax && !densities.contains(seen.block_elements)) continue;
    BlockDensityEstimate& estimate = densities[seen.block_elements];
    estimate.AddOwn(observation.rank, seen.own);
    // All ranks see the same sum: one of them is enough.
    if (observation.rank == 0 && seen.combined.has_value()) {
      estimate.AddUnion(*seen.combined, now_s);
    }
  }
}

NodeLinks LinksBetween(const std::map<int, std::string>& nodes, int world,
                       const std::vector<LinkEstimate>& estimates) {
  NodeLinks links;
  std::map<std::string, int> numbers;
  for (int rank = 0; rank < world; ++rank) {
    const auto node = nodes.find(rank);
    if (node == nodes.end()) return {};
    const int next = static_cast<int>(numbers.size());
    links.nodes.push_back(numbers.try_emplace(node->second, next).first->second);
  }
  const size_t count = numbers.size();
  if (count > static_cast<size_t>(kRingNodesMax)) return {};
  links.s_per_byte.assign(count * count, -1);
  for (size_t i = 0; i < count; ++i) links.s_per_byte[i * count + i] = 0;
  std::vector<MeasuredLink> measured;
  for (const LinkEstimate& link : estimates) {
    const auto from = numbers.find(link.source_node), to = numbers.find(link.target_node);
    const Measured& bandwidth = link.bandwidth_bytes_per_s;
    const bool between = from != numbers.end() && to != numbers.end() && from->second != to->second;
    if (!between || !(bandwidth.value > 0)) continue;
    const auto at = static_cast<size_t>(from->second) * count + static_cast<size_t>(to->second);
    measured.push_back({at, -std::log(bandwidth.value), bandwidth.deviation / bandwidth.value,
                        link.bandwidth_windows >= kEvidenceWindows});
  }
  LevelByEvidence(&measured);
  for (const MeasuredLink& link : measured) {
    links.s_per_byte[link.at] = std::exp(link.log_cost);
    if (!link.confirmed) continue;
    links.relative_deviation = std::max(links.relative_deviation, link.log_deviation);
  }
  return links;
}

}  // namespace weir
