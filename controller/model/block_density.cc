// SPDX-License-Identifier: Apache-2.0
// See block_density.h.

#include "controller/model/block_density.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

constexpr double kDensityWeight = 0.2;
constexpr double kDensityDriftPerS = 0.01 / 60;
constexpr double kFirstVariance = 0.01 * 0.01;  // of one sum: a step is not like the next
// A uniform distribution's width over its standard deviation.
constexpr double kWidthOverDeviation = 3.4641016151377544;

}  // namespace

double IndependentUnion(double own, int world) {
  double nobody = 1;
  for (int rank = 0; rank < world; ++rank) nobody *= 1 - own;
  return 1 - nobody;
}

void BlockDensityEstimate::AddOwn(int rank, double own) {
  const auto [found, first] = own_.try_emplace(rank, own);
  if (!first) found->second += kDensityWeight * (own - found->second);
}

void BlockDensityEstimate::AddUnion(double combined, double now_s) {
  if (sums_ == 0) {
    union_ = combined;
    variance_ = kFirstVariance;
  } else {
    const double off = combined - union_;
    union_ += kDensityWeight * off;
    variance_ = (1 - kDensityWeight) * (variance_ + kDensityWeight * off * off);
  }
  ++sums_;
  seen_at_s_ = now_s;
}

double BlockDensityEstimate::Own() const {
  double densest = own_.empty() ? 1 : 0;
  for (const auto& [rank, own] : own_) densest = std::max(densest, own);
  return densest;
}

Measured BlockDensityEstimate::Union(int world, double now_s) const {
  if (own_.empty() && sums_ == 0) return {1, 0, 0};
  double nobody = 1, sum = 0;
  for (const auto& [rank, own] : own_) {
    nobody *= 1 - own;
    sum += own;
  }
  const int silent = std::max(0, world - static_cast<int>(own_.size()));
  if (silent > 0) {
    const double alike = own_.empty() ? 1 : sum / static_cast<double>(own_.size());
    nobody *= 1 - IndependentUnion(alike, silent);
    sum += silent * alike;
  }
  const double least = own_.empty() ? 0 : Own(), most = std::min(1.0, sum);
  if (sums_ == 0) return {1 - nobody, (most - least) / kWidthOverDeviation, 0};
  const double age_s = std::max(0.0, now_s - seen_at_s_);
  const double drift = kDensityDriftPerS * age_s;
  // Averages of different steps may contradict each other a little.
  return {std::clamp(union_, std::min(least, most), most),
          std::min(std::sqrt(variance_ + drift * drift), 0.5), age_s};
}

std::vector<BlockDensityModel> DensitiesOf(
    const std::map<uint32_t, BlockDensityEstimate>& densities, int world, double now_s) {
  std::vector<BlockDensityModel> out;
  for (const auto& [block_elements, estimate] : densities) {
    out.push_back({block_elements, estimate.Own(), estimate.Union(world, now_s)});
  }
  return out;
}

}  // namespace weir
