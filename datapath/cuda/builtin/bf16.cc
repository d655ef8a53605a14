// SPDX-License-Identifier: Apache-2.0
// bfloat16 on the device; datapath/codec/builtin/bf16.cc describes the payload.

#include "datapath/cuda/lanes16.h"

namespace weir::cuda {
namespace {

struct BrainFormat {
  static constexpr bool kScaled = false;
  static constexpr float kLargest = 0x1.FEp127f;
  static WEIR_DEVICE uint16_t Encode(float v) { return ToBrain(v); }
  static WEIR_DEVICE float Decode(uint16_t lane) { return FromBrain(lane); }
  static WEIR_DEVICE bool IsFinite(uint16_t lane) { return BrainIsFinite(lane); }
  struct Scale {
    WEIR_DEVICE LaneFactors operator()() const {
      return {.scale = 1, .inverse = 1, .limit = kLargest};
    }
  };
  static Scale ScaleOf(const DeviceCall&) { return {}; }
};

}  // namespace

void AddBf16(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new Lanes16Codec<BrainFormat>(**Codecs().Find("bf16")));
}

}  // namespace weir::cuda
