// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/arrivals.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

namespace weir {
namespace {

constexpr size_t kPieceBytesMin = 4 << 10, kPieceBytesMax = 256 << 10;
constexpr size_t kPieces = 16;              // of a frame that is not larger than kPieceBytesMax
constexpr size_t kRestBytesMin = 32 << 10;  // that a slope is taken of
constexpr size_t kShortRestBytesMin = 10 << 10;  // of a frame within a burst
constexpr double kDeviationMax = 0.5;
// Shapers of fast links have buckets of a millisecond's worth: what follows less than that may
// still come out of one.
constexpr double kBurst_s = 1.5e-3, kBurstDeviation = 0.3;
constexpr double kSpanMin_s = 3e-4;
constexpr double kUsualQuantile = 0.3;  // most of what a busy host or a short window adds is above
constexpr double kFewIntervals = 0.9;   // deviation of the slope over one interval
constexpr double kPause = 3, kPauseMin_s = 3e-4;  // times the usual interval, and added to it
constexpr double kClock_s = 5e-5;                 // when the kernel gets to stamp a packet
constexpr double kDeviationMin = 0.03;
constexpr double kTrainQuantile = 0.35;   // what disturbs makes slower, hardly ever faster
constexpr double kIndependentTrains = 4;  // more of one step share its disturbances

/// Weights and values; of a median.
using Weighted = std::vector<std::pair<double, double>>;

double WeightedQuantile(Weighted values, double quantile) {
  std::sort(values.begin(), values.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  double total = 0, below = 0;
  for (const auto& [weight, value] : values) total += weight;
  for (const auto& [weight, value] : values) {
    below += weight;
    if (below >= quantile * total) return value;
  }
  return 0;
}

double WeightedMedian(Weighted values) { return WeightedQuantile(std::move(values), 0.5); }

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The rate of one train of bytes, which followed each other without a pause.
struct TrainRate {
  double s_per_byte = 0, relative_deviation = 0;
  double begin_s = 0, end_s = 0;  // of the part that was used
  double bytes = 0;
  bool within_burst = false;
};

double BytesOf(std::span<const ArrivalPoint> points) {
  double bytes = 0;
  for (const ArrivalPoint& point : points) bytes += point.bytes;
  return bytes;
}

/// The slope that most intervals are not below of. In the second half of the bytes: before it come
/// a shaper's burst and a window that still opens.
double UsualSlope(std::span<const ArrivalPoint> points) {
  const double second_half = 0.5 * BytesOf(points);
  double rest = 0;
  Weighted slopes;
  for (size_t i = points.size(); i-- > 1 && rest < second_half; rest += points[i].bytes) {
    slopes.emplace_back(points[i].bytes, (points[i].at_s - points[i - 1].at_s) / points[i].bytes);
  }
  return WeightedQuantile(std::move(slopes), kUsualQuantile);
}

/// Slope and its relative deviation into `rate`; false: the part is too short to tell.
bool TheilSen(std::span<const ArrivalPoint> points, TrainRate* rate) {
  if (points.size() < 3) return false;
  std::vector<double> at_bytes(points.size(), 0.0), slopes, errors;
  for (size_t i = 1; i < points.size(); ++i) at_bytes[i] = at_bytes[i - 1] + points[i].bytes;
  for (size_t i = 0; i < points.size(); ++i) {
    for (size_t j = i + 1; j < points.size(); ++j) {
      slopes.push_back((points[j].at_s - points[i].at_s) / (at_bytes[j] - at_bytes[i]));
    }
  }
  const double span_s = points.back().at_s - points.front().at_s;
  rate->s_per_byte = Median(std::move(slopes));
  if (!(span_s >= kSpanMin_s) || !(rate->s_per_byte > 0)) return false;
  std::vector<double> offsets;
  for (size_t i = 0; i < points.size(); ++i) {
    offsets.push_back(points[i].at_s - points.front().at_s - rate->s_per_byte * at_bytes[i]);
  }
  const double middle = Median(offsets);
  for (const double offset : offsets) errors.push_back(std::fabs(offset - middle));
  // The deviation of a slope over n points that are spread evenly.
  const double residual_s = std::max(1.4826 * Median(std::move(errors)), kClock_s);
  const double n = static_cast<double>(points.size());
  rate->relative_deviation = std::hypot(kDeviationMin, residual_s / span_s * std::sqrt(12 / n));
  // The estimate is no better than the intervals agree: stalls and windows affect few of them.
  double stalls_s2 = 0;
  for (size_t i = 1; i < points.size(); ++i) {
    const double error_s = points[i].at_s - points[i - 1].at_s - rate->s_per_byte * points[i].bytes;
    stalls_s2 += error_s * error_s;
  }
  rate->relative_deviation = std::max({rate->relative_deviation, std::sqrt(stalls_s2) / span_s,
                                       kFewIntervals * std::pow(n - 1, -1.5)});
  rate->begin_s = points.front().at_s;
  rate->end_s = points.back().at_s;
  return rate->relative_deviation <= kDeviationMax;
}

/// Points of different times. While nobody reads, the kernel joins packets and keeps the stamp of
/// the newest: of several reads of them only the last one ends when the stamp says. An empty one
/// stands where the kernel's clock went back.
std::vector<ArrivalPoint> JoinEqualStamps(std::span<const ArrivalPoint> points) {
  std::vector<ArrivalPoint> joined;
  for (const ArrivalPoint& point : points) {
    if (point.bytes == 0) continue;
    if (!joined.empty() && point.at_s < joined.back().at_s) joined.push_back({point.at_s, 0});
    if (!joined.empty() && joined.back().at_s == point.at_s && joined.back().bytes > 0) {
      joined.back().bytes += point.bytes;
    } else {
      joined.push_back(point);
    }
  }
  return joined;
}

std::optional<TrainRate> MeasureTrain(std::span<const ArrivalPoint> train) {
  TrainRate rate;
  rate.bytes = BytesOf(train);
  rate.within_burst = rate.bytes < kBurstBytes + kRestBytesMin;
  const double wanted = rate.within_burst ? kShortRestBytesMin : kRestBytesMin;
  // In the first half of a train the window still opens, and a pause fills the shaper's bucket.
  const double skipped = std::max(0.5 * rate.bytes, rate.within_burst ? 0.0 : 1.0 * kBurstBytes);
  size_t begin = 0;
  double before = train[0].bytes;
  while (begin + 1 < train.size() && before < std::min(skipped, rate.bytes - wanted)) {
    before += train[++begin].bytes;
  }
  if (rate.bytes - before < 0.9 * wanted) return {};
  if (!TheilSen(train.subspan(begin), &rate)) return {};
  if (before * rate.s_per_byte < kBurst_s) {
    rate.relative_deviation = std::hypot(rate.relative_deviation, kBurstDeviation);
  }
  return rate;
}

/// The inverse rate of all peers' bytes while a train arrived; never slower than that train alone.
double IngressSecondsPerByte(const std::vector<PeerArrivals>& arrivals, int peer,
                             const TrainRate& train) {
  const double span_s = train.end_s - train.begin_s;
  double others = 0;
  for (const PeerArrivals& other : arrivals) {
    if (other.peer == peer) continue;
    for (const ArrivalPoint& point : other.points) {
      if (point.at_s > train.begin_s && point.at_s <= train.end_s) others += point.bytes;
    }
  }
  return 1 / (1 / train.s_per_byte + others / span_s);
}

/// The rates of all trains between pauses, without those within a burst if any is longer.
std::vector<TrainRate> TrainsOf(const PeerArrivals& arrivals) {
  std::vector<TrainRate> trains;
  const std::vector<ArrivalPoint> joined = JoinEqualStamps(arrivals.points);
  const std::span<const ArrivalPoint> points(joined);
  const double usual = UsualSlope(points);
  for (size_t begin = 0, end = 1; begin < points.size(); begin = end, ++end) {
    while (end < points.size() && points[end].bytes > 0 &&
           points[end].at_s - points[end - 1].at_s <=
               kPause * usual * points[end].bytes + kPauseMin_s) {
      ++end;
    }
    const auto train = MeasureTrain(points.subspan(begin, end - begin));
    if (train.has_value()) trains.push_back(*train);
  }
  const bool long_one = std::any_of(trains.begin(), trains.end(),
                                    [](const TrainRate& train) { return !train.within_burst; });
  if (long_one) std::erase_if(trains, [](const TrainRate& train) { return train.within_burst; });
  return trains;
}

}  // namespace

size_t ArrivalLog::PieceBytes(size_t payload, size_t received) {
  const size_t shortest = std::min(payload, kPieceBytesMax) / kPieces;
  return std::clamp(std::max(shortest, received / (2 * kPieces)), kPieceBytesMin, kPieceBytesMax);
}

void ArrivalLog::Add(const ArrivalPoint& point) {
  MutexLock lock(mutex_);
  points_[count_++ % kPointsMax] = point;
}

std::vector<ArrivalPoint> ArrivalLog::Take() {
  MutexLock lock(mutex_);
  std::vector<ArrivalPoint> taken;
  for (uint64_t i = count_ - std::min<uint64_t>(count_, kPointsMax); i < count_; ++i) {
    taken.push_back(points_[i % kPointsMax]);
  }
  count_ = 0;
  return taken;
}

std::vector<ArrivalSample> MeasureArrivals(const std::vector<PeerArrivals>& arrivals) {
  std::vector<ArrivalSample> samples;
  for (const PeerArrivals& one : arrivals) {
    const std::vector<TrainRate> trains = TrainsOf(one);
    if (trains.empty()) continue;
    Weighted slopes, ingress, deviations;
    double largest = 0;
    for (const TrainRate& train : trains) {
      const double weight = 1 / (train.relative_deviation * train.relative_deviation);
      slopes.emplace_back(weight, std::log(train.s_per_byte));
      ingress.emplace_back(weight, std::log(IngressSecondsPerByte(arrivals, one.peer, train)));
      deviations.emplace_back(weight, train.relative_deviation);
      largest = std::max(largest, train.bytes);
    }
    const double middle = WeightedQuantile(slopes, kTrainQuantile);
    Weighted scatter;
    for (const auto& [weight, slope] : slopes)
      scatter.emplace_back(weight, std::fabs(slope - middle));
    const double each = std::max(WeightedMedian(deviations), 1.4826 * WeightedMedian(scatter));
    const double n = std::min(kIndependentTrains, static_cast<double>(trains.size()));
    ArrivalSample& sample = samples.emplace_back();
    sample.peer = one.peer;
    sample.s_per_byte = std::exp(middle);
    sample.relative_deviation = std::max(kDeviationMin, each / std::sqrt(n));
    sample.ingress_s_per_byte =
        std::min(sample.s_per_byte, std::exp(WeightedQuantile(ingress, kTrainQuantile)));
    sample.payload_bytes = static_cast<uint64_t>(largest);
    sample.trains = static_cast<uint32_t>(trains.size());
    sample.within_burst = trains[0].within_burst;
  }
  return samples;
}

}  // namespace weir
