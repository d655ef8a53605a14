// SPDX-License-Identifier: Apache-2.0
#pragma once
// A token bucket in bytes that limits active probes, whatever the controller asks for.

#include <cstdint>

#include "datapath/base/clock.h"

namespace weir::agent {

/// It is refilled by time (at a low rate) and by a share of the training's bytes. It starts full.
/// Pure; not thread-safe.
class ByteBudget {
 public:
  struct Options {
    double share = 0.005;                   // of training bytes, 0..1
    double floor_bytes_per_s = 256 * 1024;  // so that an idle network is measured, too
    double capacity_bytes = 64.0 * (1 << 20);
  };
  ByteBudget(const Options& options, TimePoint now);

  /// Adds the share of `bytes` that training has sent.
  void OnTrainingBytes(uint64_t bytes);
  /// Takes `bytes` and returns true, or takes nothing and returns false when fewer are left.
  bool TryTake(uint64_t bytes, TimePoint now);
  /// Returns bytes that a probe has taken and not used.
  void Return(uint64_t bytes);
  /// The number of bytes that a probe may take now.
  uint64_t Available(TimePoint now);

 private:
  void Refill(TimePoint now);
  void Add(double bytes);
  const Options options_;
  double tokens_;
  TimePoint refilled_;
};

}  // namespace weir::agent
