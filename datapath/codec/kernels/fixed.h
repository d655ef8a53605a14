// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernel of inceptionn: fixed-point numbers of 8 or 16 bits, depending on the magnitude. The
// conventions of kernels.h apply.

#include "datapath/codec/kernels/kernels.h"

namespace weir::kernels {

/// One block, split by magnitude. Each list is in the order of the elements.
struct FixedCodes {
  uint8_t classes[kBlockElements];  // see SplitFixed
  size_t smalls = 0, mediums = 0, larges = 0;
  int32_t small[kBlockElements + kSampleRun];
  int32_t medium[kBlockElements + kSampleRun];
  float large[kBlockElements + kSampleRun];
};

/// Class 0, |e| < 2^-bits: zero. Class 1, |e| < 2^(7 - bits): e * 2^bits truncated to an integer,
/// -127 to 127. Class 2, |e| < 1: e * 2^15 truncated to an integer. Class 3: e itself. `bits` is 8
/// to 15. `rest`, if set, receives e minus the decoded value.
void SplitFixed(const Block& block, int bits, float* rest, FixedCodes* out, Sums* sums) noexcept;

}  // namespace weir::kernels
