// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gain that choices were measured to have on a bucket, which corrects what is predicted.

#include <vector>

#include "controller/model/snapshot.h"

namespace weir {

/// Averages the measured gains of the choices that ran last on one bucket. Not thread-safe.
class MeasuredGains {
 public:
  static constexpr size_t kChoicesMax = 4;

  /// Takes in one step's measurement at `now_s`; seen.predicted is the prediction without any
  /// correction. The choice that has not run for longest makes room.
  void Add(const MeasuredGain& seen, double now_s);
  /// Those that are off their prediction noticeably, oldest first, with four digits. What was
  /// measured long ago counts less: after kHalfLifeS half of the correction
  /// is left, in logarithms, so that a codec is tried again when gradients may have changed.
  std::vector<MeasuredGain> Get(double now_s) const;
  /// The averages of one choice; null: it has not run of late.
  const MeasuredGain* Find(const ChoiceModel& choice) const;

  static constexpr double kHalfLifeS = 1800;

 private:
  struct Entry {
    MeasuredGain average;
    double seen_s = 0;
  };
  std::vector<Entry> entries_;
};

/// `predicted` for (codec, collective, ratio) as measurements of the bucket correct it: the
/// measured gain where that choice ran. The same codec at another ratio, or over another collective
/// where it lost more than predicted, is corrected alike. Lossless codecs are left alone. In
/// [0, 1]. Pure and deterministic; O(measurements).
double CorrectedGain(const BucketModel& bucket, const CodecModel& codec,
                     const CollectiveModel& collective, double ratio, double predicted);

}  // namespace weir
