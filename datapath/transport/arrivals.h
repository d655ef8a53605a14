// SPDX-License-Identifier: Apache-2.0
#pragma once
// The speed of a link by the arrival of payloads: how fast the bytes of large frames followed each
// other, by the kernel's clock, which a busy receiver does not delay. A sender has all bytes of a
// frame when it starts, so nothing but its window and the link spread them.

#include <array>
#include <cstdint>
#include <vector>

#include "datapath/base/mutex.h"

namespace weir {

/// Frames with a smaller payload are not measured: some 16 segments of Ethernet.
inline constexpr size_t kMeasuredPayloadBytesMin = 24 << 10;
/// A shaper may let so many bytes pass faster than its rate.
inline constexpr size_t kBurstBytes = 64 << 10;

/// One read of a frame's payload.
struct ArrivalPoint {
  double at_s = 0;     // when the last of its bytes arrived at this host, on any one clock
  uint32_t bytes = 0;  // since the point before
};

/// The arrivals from one peer since they were last taken. Thread-safe. Keeps the newest kPointsMax.
class ArrivalLog {
 public:
  static constexpr size_t kPointsMax = 256;

  /// Reads of this size give a frame of `payload` bytes, of which `received` are there, enough
  /// points and take few calls.
  static size_t PieceBytes(size_t payload, size_t received);
  void Add(const ArrivalPoint& point);
  /// Oldest first.
  std::vector<ArrivalPoint> Take();

 private:
  Mutex mutex_;
  std::array<ArrivalPoint, kPointsMax> points_ WEIR_GUARDED_BY(mutex_);
  uint64_t count_ WEIR_GUARDED_BY(mutex_) = 0;  // ever added since Take
};

/// How fast payloads came from one peer.
struct ArrivalSample {
  int peer = -1;
  double s_per_byte = 0;          // of this peer's bytes
  double relative_deviation = 0;  // of that
  double ingress_s_per_byte = 0;  // of all peers' bytes at the same times; at most s_per_byte
  uint64_t payload_bytes = 0;     // of the largest train: they followed each other without a pause
  uint32_t trains = 0;            // measured
  bool within_burst = false;      // no train was longer than a shaper's burst: it may be faster
};

/// The arrivals of one peer.
struct PeerArrivals {
  int peer = -1;
  std::vector<ArrivalPoint> points;
};

/// One sample per peer with a train that can be used. A train is what came without a pause: frames
/// that follow each other are one, and pauses are where a window was exhausted, a host did other
/// work, or nothing was to be sent. Of each the second half counts, without the first kBurstBytes
/// as far as enough remains. Its rate is the median slope between all pairs of points (Theil-Sen);
/// one that is uncertain by more than a half says nothing. Of several trains the lower quantile of
/// the slopes counts, weighted by precision, because what disturbs them makes them slower. Pure.
/// O(points^2) per train. Source: Theil 1950; Sen 1968.
std::vector<ArrivalSample> MeasureArrivals(const std::vector<PeerArrivals>& arrivals);

}  // namespace weir
