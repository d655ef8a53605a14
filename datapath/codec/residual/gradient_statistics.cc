// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/residual/gradient_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "datapath/base/check.h"
#include "datapath/codec/kernels/kernels.h"

namespace weir {
namespace {

constexpr int kFirstNormalBin = 16;  // below it: zero and subnormal magnitudes

/// The smallest magnitude in `bin`.
double LowerEdge(int bin) {
  if (bin >= kFirstNonFiniteBin) return 0x1p128;
  return std::bit_cast<float>(static_cast<uint32_t>(bin) << 19);
}

uint64_t FiniteTotal(const std::array<uint32_t, GradientStatistics::kBins>& bins) {
  uint64_t total = 0;
  for (int bin = 0; bin < kFirstNonFiniteBin; ++bin) total += bins[bin];
  return total;
}

/// One bin and the counts above it. Inside the bin, the number of elements above x is modelled as a
/// power of x between the edges (log-linear): N(x) = above + here at the lower edge, `above` at the
/// upper.
struct BinModel {
  double lower, upper;
  double above, here;

  /// -d(ln N)/d(ln x); 0 when no element lies above, where the power law is undefined.
  double Exponent() const {
    return above > 0 ? std::log((above + here) / above) / std::log(upper / lower) : 0;
  }
  /// The x with `wanted` elements above it; above <= wanted <= above + here.
  double ThresholdFor(double wanted) const {
    if (here <= 0) return lower;
    if (above <= 0) return lower * std::pow(upper / lower, 1 - (wanted - above) / here);
    return lower * std::pow((above + here) / wanted, 1 / Exponent());
  }
  /// The number of elements above x.
  double CountAbove(double x) const {
    if (above <= 0) return here * std::log(upper / x) / std::log(upper / lower);
    return (above + here) * std::pow(lower / x, Exponent());
  }
  /// The sum of squares of the bin's elements above x: the integral of -N'(y) y^2.
  double EnergyAbove(double x) const {
    if (here <= 0) return 0;
    const double p = Exponent();
    if (above <= 0) return here * (upper * upper - x * x) / (2 * std::log(upper / lower));
    const double amplitude = (above + here) * std::pow(lower, p) * p;
    if (std::abs(p - 2) < 1e-9) return amplitude * std::log(upper / x);
    return amplitude * (std::pow(upper, 2 - p) - std::pow(x, 2 - p)) / (2 - p);
  }
};

}  // namespace

void GradientStatistics::Clear() { *this = GradientStatistics(); }

void GradientStatistics::Add(std::span<const float> x) {
  kernels::Sums sums;
  for (size_t at = 0; at < x.size(); at += kernels::kBlockElements) {
    const kernels::Block block{.gradient = x.data() + at,
                               .size = std::min(kernels::kBlockElements, x.size() - at)};
    kernels::Histogram(block, /*sampled=*/false, 0, 1, bins_.data());
    kernels::Measure(block, nullptr, &sums);
  }
  Finish(x.size(), sums.energy_in, sums.max_abs(), sums.non_finite());
}

void GradientStatistics::Merge(const GradientStatistics& other) {
  for (int bin = 0; bin < kBins; ++bin) bins_[bin] += other.bins_[bin];
  Finish(other.count_, other.sum_squares_, other.max_abs_, other.non_finite_);
}

void GradientStatistics::Finish(uint64_t count, double sum_squares, float max_abs,
                                bool non_finite) {
  count_ += count;
  sum_squares_ += sum_squares;
  max_abs_ = std::max(max_abs_, max_abs);
  non_finite_ = non_finite_ || non_finite;
}

float GradientStatistics::ThresholdForRatio(double ratio) const {
  WEIR_CHECK(ratio > 0 && ratio <= 1);
  const double wanted = ratio * static_cast<double>(FiniteTotal(bins_));
  double above = 0;
  for (int bin = kFirstNonFiniteBin - 1; bin >= kFirstNormalBin; --bin) {
    const double here = bins_[bin];
    if (here > 0 && above + here >= wanted) {
      const BinModel model{LowerEdge(bin), LowerEdge(bin + 1), above, here};
      return std::max(kSmallestNormal, static_cast<float>(model.ThresholdFor(wanted)));
    }
    above += here;
  }
  return kSmallestNormal;
}

double GradientStatistics::RatioAbove(float threshold) const {
  const double total = static_cast<double>(FiniteTotal(bins_));
  if (total == 0) return 0;
  const float at_least = std::max(threshold, kSmallestNormal);
  const int own = static_cast<int>(std::bit_cast<uint32_t>(at_least) >> 19);
  if (own >= kFirstNonFiniteBin) return 0;
  double above = 0;
  for (int bin = kFirstNonFiniteBin - 1; bin > own; --bin) above += bins_[bin];
  const double here = bins_[own];
  if (here == 0) return above / total;
  return BinModel{LowerEdge(own), LowerEdge(own + 1), above, here}.CountAbove(at_least) / total;
}

double GradientStatistics::GainAtRatio(double ratio) const {
  WEIR_CHECK(ratio > 0 && ratio <= 1);
  const double wanted = ratio * static_cast<double>(FiniteTotal(bins_));
  double above = 0, energy = 0, kept = 0;
  for (int bin = kFirstNonFiniteBin - 1; bin >= kFirstNormalBin; --bin) {
    const double here = bins_[bin];
    if (here == 0) continue;
    const BinModel model{LowerEdge(bin), LowerEdge(bin + 1), above, here};
    const double all = model.EnergyAbove(model.lower);
    if (above + here <= wanted) {
      kept += all;
    } else if (above < wanted) {
      kept += model.EnergyAbove(model.ThresholdFor(wanted));
    }
    energy += all;
    above += here;
  }
  return energy > 0 ? std::min(1.0, kept / energy) : 1.0;
}

std::array<double, kGainCurveRatios.size()> GradientStatistics::GainCurve() const {
  std::array<double, kGainCurveRatios.size()> curve;
  for (size_t i = 0; i < curve.size(); ++i) curve[i] = GainAtRatio(kGainCurveRatios[i]);
  return curve;
}

float MaxAbs(std::span<const float> gradient, std::span<const float> residual) {
  WEIR_CHECK(residual.empty() || residual.size() == gradient.size());
  kernels::Sums sums;
  for (size_t at = 0; at < gradient.size(); at += kernels::kBlockElements) {
    const kernels::Block block{.gradient = gradient.data() + at,
                               .residual = residual.empty() ? nullptr : residual.data() + at,
                               .size = std::min(kernels::kBlockElements, gradient.size() - at)};
    kernels::Measure(block, nullptr, &sums);
  }
  return sums.max_abs();
}

}  // namespace weir
