// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often a job's decisions are recorded. Pure.

#include <cstddef>

namespace weir {

/// At most one record a second, and at most kBytesPerS on average with a burst of kBytesBurst. What
/// must be recorded is, and what is left out afterwards makes up for it. Not thread-safe.
class RecordBudget {
 public:
  static constexpr double kIntervalS = 1;
  static constexpr double kBytesPerS = 10e3;
  static constexpr double kBytesBurst = 100e3;

  /// Whether another record fits now.
  bool Allows(double now_s) const { return now_s - last_s_ >= kIntervalS && CreditAt(now_s) > 0; }
  void Spend(double now_s, size_t bytes) {
    credit_ = CreditAt(now_s) - static_cast<double>(bytes);
    last_s_ = now_s;
  }

 private:
  double CreditAt(double now_s) const {
    const double earned = credit_ + (now_s - last_s_) * kBytesPerS;
    return earned < kBytesBurst ? earned : kBytesBurst;
  }

  double credit_ = kBytesBurst;
  double last_s_ = -1e18;
};

}  // namespace weir
