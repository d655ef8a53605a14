// Half precision on the device; datapath/codec/builtin/fp16.cc describes the payload.

#include "datapath/codec/half_scale.h"
#include "datapath/cuda/lanes16.h"

namespace weir::cuda {
namespace {

struct HalfFormat {
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 65504.0f;
  static WEIR_DEVICE uint16_t Encode(float v) { return ToHalf(v); }
  static WEIR_DEVICE float Decode(uint16_t lane) { return FromHalf(lane); }
  static WEIR_DEVICE bool IsFinite(uint16_t lane) { return HalfIsFinite(lane); }
  static LaneFactors Factors(int world) {
    const HalfScale lane(world);
    return {.scale = lane.scale, .inverse = 1.0f / lane.scale, .limit = lane.limit};
  }
};

}  // namespace

void AddFp16(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new Lanes16Codec<HalfFormat>(**Codecs().Find("fp16")));
}

}  // namespace weir::cuda
