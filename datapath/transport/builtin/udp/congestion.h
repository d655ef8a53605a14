#pragma once
// How long the path takes and how much it bears: round-trip times, the congestion window, pacing.
// Pure: times are given.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "datapath/base/clock.h"

namespace weir::udp {

/// The receiver delays acknowledgements by this at most; its service thread may take as long again.
inline constexpr Duration kAckDelayMax = std::chrono::milliseconds(5);

/// Smoothed round-trip time and deviation. Source: RFC 6298 section 2 with the weights there;
/// RFC 9002 section 5 for leaving out the receiver's delay. Not thread-safe.
class RttEstimator {
 public:
  /// `delay` is what the receiver says that it waited.
  void OnSample(Duration rtt, Duration delay);
  bool measured() const { return measured_; }
  Duration smoothed() const { return smoothed_; }
  Duration deviation() const { return deviation_; }
  Duration least() const { return least_; }
  Duration latest() const { return latest_; }
  /// Without an acknowledgement for so long, something is wrong. Source: RFC 9002 section 6.2.1,
  /// with RFC 6298's initial second.
  Duration ProbeTimeout() const;
  /// What is older than a packet already acknowledged by so much is lost: 9/8 of a round trip, as
  /// RFC 9002 section 6.1.2, and up to 16/8 with more `patience`, 0 .. kPatienceMax.
  Duration LossDelay(int patience) const;
  static constexpr int kPatienceMax = 7;

 private:
  bool measured_ = false;
  Duration smoothed_{}, deviation_{}, least_{}, latest_{};
};

/// NewReno in bytes. Source: RFC 9002 section 7 and appendix B; deviates: a window that a timeout
/// collapses grows again by slow start up to half of what it was, as RFC 5681 has it. Slow start
/// ends where a queue begins to show in the round-trip times, before it overflows: RFC 9406
/// section 4.2, without the conservative rounds there. Not thread-safe.
class CongestionWindow {
 public:
  explicit CongestionWindow(size_t datagram_bytes);

  size_t bytes() const { return bytes_; }
  bool slow_start() const { return bytes_ < threshold_; }
  /// Packets are of this size from now on.
  void SetDatagramBytes(size_t datagram_bytes) { datagram_bytes_ = datagram_bytes; }
  /// `limited`: the window held the sender back; one that was not tells nothing.
  void OnAcked(size_t bytes, TimePoint sent, bool limited);
  /// A packet sent at `sent` took `rtt` to be acknowledged.
  void OnRoundTrip(Duration rtt, TimePoint sent, TimePoint now);
  /// A packet sent at `sent` was lost. One reaction per round trip.
  void OnLost(TimePoint sent, TimePoint now);
  /// Probes went unanswered again and again: starts over.
  void OnPersistentLoss(TimePoint now);

 private:
  size_t least() const { return 2 * datagram_bytes_; }

  size_t datagram_bytes_;
  size_t bytes_;
  size_t threshold_ = SIZE_MAX;
  size_t credit_ = 0;  // acknowledged bytes that have not yet made the window grow
  TimePoint recovery_began_{};
  // Of the round trip that began then and of the one before it.
  TimePoint round_began_{};
  Duration round_least_ = Duration::max(), last_round_least_ = Duration::max();
  int round_samples_ = 0;
};

/// Spreads a window over a round trip. A token bucket that holds what 2 ms bring, because sleeps
/// end on milliseconds. Source: RFC 9002 section 7.7. Not thread-safe.
class Pacer {
 public:
  /// Sets the rate from the window; before a round trip was measured there is none.
  void SetRate(const CongestionWindow& window, const RttEstimator& rtt, size_t datagram_bytes);
  /// When the next packet may leave; `now` or earlier: at once.
  TimePoint ReadyAt(TimePoint now);
  void OnSent(size_t bytes) { tokens_ -= static_cast<double>(bytes); }

 private:
  void Refill(TimePoint now);
  double rate_ = 0;  // bytes per second; 0: unlimited
  double tokens_ = 0, capacity_ = 0;
  TimePoint filled_{};
};

}  // namespace weir::udp
