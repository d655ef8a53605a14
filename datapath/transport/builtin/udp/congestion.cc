#include "datapath/transport/builtin/udp/congestion.h"

#include <cstdlib>

namespace weir::udp {
namespace {
using std::chrono::milliseconds;
// What a wait of the service thread and a rounded-up sleep may add to an acknowledgement.
constexpr Duration kServiceDelay = milliseconds(15);
constexpr Duration kInitialTimeout = milliseconds(1000);
constexpr Duration kGranularity = milliseconds(1);
constexpr size_t kInitialWindowBytes = 14720;
constexpr int kRoundSamplesMin = 8;
constexpr Duration kQueueLeast = milliseconds(4), kQueueMost = milliseconds(16);
constexpr size_t kWindowBytesMax = size_t{1} << 30;
}  // namespace

void RttEstimator::OnSample(Duration rtt, Duration delay) {
  rtt = std::max(rtt, Duration(1));
  latest_ = rtt;
  if (!measured_) {
    measured_ = true;
    least_ = smoothed_ = rtt;
    deviation_ = rtt / 2;
    return;
  }
  least_ = std::min(least_, rtt);
  if (rtt >= least_ + delay) rtt -= delay;
  const Duration error = smoothed_ > rtt ? smoothed_ - rtt : rtt - smoothed_;
  deviation_ = (3 * deviation_ + error) / 4;
  smoothed_ = (7 * smoothed_ + rtt) / 8;
}

Duration RttEstimator::ProbeTimeout() const {
  if (!measured_) return kInitialTimeout;
  return smoothed_ + std::max<Duration>(4 * deviation_, kGranularity) + kAckDelayMax +
         kServiceDelay;
}

Duration RttEstimator::LossDelay(int patience) const {
  return std::max<Duration>(std::max(smoothed_, latest_) * (9 + patience) / 8, kGranularity);
}

// ---- the window

CongestionWindow::CongestionWindow(size_t datagram_bytes)
    : datagram_bytes_(datagram_bytes),
      bytes_(std::min(10 * datagram_bytes, std::max(2 * datagram_bytes, kInitialWindowBytes))) {}

void CongestionWindow::OnAcked(size_t bytes, TimePoint sent, bool limited) {
  if (!limited || sent <= recovery_began_) return;
  if (slow_start()) {
    bytes_ = std::min(bytes_ + bytes, kWindowBytesMax);
    return;
  }
  credit_ += bytes;
  if (credit_ < bytes_) return;
  credit_ -= bytes_;
  bytes_ = std::min(bytes_ + datagram_bytes_, kWindowBytesMax);
}

void CongestionWindow::OnRoundTrip(Duration rtt, TimePoint sent, TimePoint now) {
  if (!slow_start()) return;
  if (sent >= round_began_) {
    last_round_least_ = round_least_;
    round_least_ = Duration::max();
    round_samples_ = 0;
    round_began_ = now;
  }
  round_least_ = std::min(round_least_, rtt);
  if (++round_samples_ < kRoundSamplesMin || last_round_least_ == Duration::max()) return;
  const Duration queue = std::clamp(last_round_least_ / 8, kQueueLeast, kQueueMost);
  if (round_least_ >= last_round_least_ + queue) threshold_ = bytes_;
}

void CongestionWindow::OnLost(TimePoint sent, TimePoint now) {
  if (sent <= recovery_began_) return;
  recovery_began_ = now;
  credit_ = 0;
  bytes_ = threshold_ = std::max(bytes_ / 2, least());
}

void CongestionWindow::OnPersistentLoss(TimePoint now) {
  if (bytes_ <= least()) return;
  recovery_began_ = now;
  credit_ = 0;
  threshold_ = std::max(bytes_ / 2, least());
  bytes_ = least();
}

// ---- pacing

void Pacer::SetRate(const CongestionWindow& window, const RttEstimator& rtt,
                    size_t datagram_bytes) {
  if (!rtt.measured()) return;
  // Somewhat faster than the window would need, so that pacing never is what limits.
  const double factor = window.slow_start() ? 2 : 1.25;
  const bool first = rate_ == 0;
  rate_ = factor * static_cast<double>(window.bytes()) / ToSeconds(rtt.smoothed());
  capacity_ = std::max(16.0 * static_cast<double>(datagram_bytes), rate_ * 2e-3);
  if (first) tokens_ = capacity_;
}

void Pacer::Refill(TimePoint now) {
  if (now > filled_) tokens_ += rate_ * ToSeconds(now - filled_);
  tokens_ = std::min(tokens_, capacity_);
  filled_ = now;
}

TimePoint Pacer::ReadyAt(TimePoint now) {
  if (rate_ == 0) return now;
  Refill(now);
  if (tokens_ > 0) return now;
  return now + FromSeconds(std::max(-tokens_ / rate_, 1e-6));
}

}  // namespace weir::udp
