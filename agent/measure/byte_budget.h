#pragma once
// A token bucket in bytes: what active probes may spend, whatever the controller asks for.

#include <cstdint>

#include "datapath/base/clock.h"

namespace weir::agent {

/// Refilled by time (a small floor) and by a share of the training bytes that went by. Starts full.
/// Pure; not thread-safe.
class ByteBudget {
 public:
  struct Options {
    double share = 0.005;                   // of training bytes, 0..1
    double floor_bytes_per_s = 256 * 1024;  // so that an idle network is measured too
    double capacity_bytes = 64.0 * (1 << 20);
  };
  ByteBudget(const Options& options, TimePoint now);

  /// Adds the share of `bytes` sent by training.
  void OnTrainingBytes(uint64_t bytes);
  /// Takes `bytes`, or nothing at all and false when fewer are left.
  bool TryTake(uint64_t bytes, TimePoint now);
  /// Gives back what a probe took and did not use.
  void Return(uint64_t bytes);
  /// Bytes that a probe may take now.
  uint64_t Available(TimePoint now);

 private:
  void Refill(TimePoint now);
  void Add(double bytes);
  const Options options_;
  double tokens_;
  TimePoint refilled_;
};

}  // namespace weir::agent
