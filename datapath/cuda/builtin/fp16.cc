// SPDX-License-Identifier: Apache-2.0
// Half precision on the device; datapath/codec/builtin/fp16.cc describes the payload.

#include <bit>
#include <cmath>

#include "datapath/cuda/lanes16.h"
#include "datapath/cuda/selection_bits.h"

namespace weir::cuda {
namespace {

struct HalfFormat {
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 65504.0f;
  static WEIR_DEVICE uint16_t Encode(float v) { return ToHalf(v); }
  static WEIR_DEVICE float Decode(uint16_t lane) { return FromHalf(lane); }
  static WEIR_DEVICE bool IsFinite(uint16_t lane) { return HalfIsFinite(lane); }

  /// The factors from the maximum of all ranks, which is in device memory.
  struct Scale {
    const float* maximum;  // null: 0
    int headroom;          // powers of two by which the sum of the ranks' lanes may exceed one lane
    WEIR_DEVICE LaneFactors operator()() const {
      const float largest = maximum == nullptr ? 0.0f : *maximum;
      const bool finite = largest >= 0 && weir::cuda::IsFinite(largest);
      int exponent = 0;
      if (finite) frexpf(largest, &exponent);  // largest < 2^exponent
      exponent = 15 - headroom - exponent;
      exponent = exponent < -126 ? -126 : exponent > 120 ? 120 : exponent;
      return {.scale = TwoToThe(exponent),
              .inverse = TwoToThe(-exponent),
              .limit = 0x1.FFCp-1f * TwoToThe(15 - headroom),
              .finite = finite};
    }
  };
  static Scale ScaleOf(const DeviceCall& call) {
    return {.maximum = call.shared_max.empty() ? nullptr : call.shared_max.data(),
            .headroom =
                static_cast<int>(std::bit_width(static_cast<unsigned>(call.context.world - 1)))};
  }
};

}  // namespace

void AddFp16(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new Lanes16Codec<HalfFormat>(**Codecs().Find("fp16")));
}

}  // namespace weir::cuda
