// SPDX-License-Identifier: Apache-2.0
// Buckets on a grid from least to largest, on the device; datapath/codec/builtin/minmax.cc
// describes the payload.

#include "datapath/cuda/buckets.h"

namespace weir::cuda {
namespace {

constexpr unsigned kBucket = 512;
constexpr float kStepMin = 0x1p-120f;
constexpr float kFloatMax = 3.402823466e+38f;

WEIR_DEVICE size_t BytesBefore(size_t bucket, unsigned bits) {
  return bucket * (2 * sizeof(float) + kBucket / 8 * bits);
}

struct BucketSums {
  PassSums sums;
  float least, largest;

  static WEIR_DEVICE BucketSums Zero() { return {PassSums::Zero(), kFloatMax, -kFloatMax}; }
  WEIR_DEVICE void Add(const BucketSums& other) {
    sums.Add(other.sums);
    least = Lesser(least, other.least);
    largest = Greater(largest, other.largest);
  }
};

template <bool kCounts>
struct EncodeMinmax : PassProgram<kCounts> {
  static constexpr unsigned kTile = kBucket;
  struct Shared : PassProgram<kCounts>::Shared {
    float e[kTile];
    alignas(4) uint8_t codes[kTile];
  };
  unsigned bits;
  uint8_t* out;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const PassInput& in = this->in;
    const unsigned size = in.SizeOf(at, kTile);
    const BucketSums found = team.Reduce<BucketSums>(size, [&](unsigned i, BucketSums* part) {
      const float e = in.Load(at + i);
      this->Count(shared, at + i, e);
      part->sums.AddInput(e);
      part->least = Lesser(part->least, e);
      part->largest = Greater(part->largest, e);
      shared.e[i] = e;
    });
    const float levels = static_cast<float>((1 << bits) - 1);
    // Whether -0 or +0 is found depends on the order of visiting; adding 0 gives +0 for both.
    const float base = found.least + 0.0f, largest = found.largest + 0.0f;
    const float range = Lesser(largest / levels - base / levels, kFloatMax / levels);
    const float step = range >= kStepMin ? range : 0.0f;
    const float inverse_step = range >= kStepMin ? 1.0f / range : 0.0f;
    const PassSums lost = team.Reduce<PassSums>(size, [&](unsigned i, PassSums* part) {
      const float e = shared.e[i];
      const float y = (e - base) * inverse_step;
      const float rounded = Lesser(Greater(y, 0.0f), levels) + 0x1.8p23f;
      shared.codes[i] = static_cast<uint8_t>(BitsOf(rounded));
      const float error = e - (base + (rounded - 0x1.8p23f) * step);
      part->AddLost(error);
      in.Keep(at + i, error);
    });
    PassSums sums = found.sums;
    sums.Add(lost);
    this->AddSums(team, shared, sums);
    uint8_t* const to = out + BytesBefore(tile, bits);
    team.Once([&] {
      reinterpret_cast<float*>(to)[0] = base;
      reinterpret_cast<float*>(to)[1] = step;
    });
    PackCodes(team, shared.codes, size, bits, to + 2 * sizeof(float));
  }
};

struct DecodeMinmax : TileProgram {
  const uint8_t* payload;
  float* out;
  size_t n;
  float scale;
  unsigned bits;
  uint64_t* fault;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const size_t at = tile * kBucket, from = BytesBefore(tile, bits);
    const unsigned size = n - at < kBucket ? static_cast<unsigned>(n - at) : kBucket;
    team.ForEach(size, [&](unsigned i) {
      float scales[2];
      if (!ReadScales(payload, from, 2, fault, scales)) return;
      const uint32_t code = UnpackCode(payload + from + sizeof(scales), bits, i);
      out[at + i] += scale * scales[0] + static_cast<float>(code) * (scale * scales[1]);
    });
  }
};

class DeviceMinmax : public DeviceBuckets {
 public:
  using DeviceBuckets::DeviceBuckets;

 protected:
  Status EncodeBuckets(const PassOperands& operands, const DeviceCall& call,
                       std::span<std::byte> payload) const override {
    return RunPass<EncodeMinmax>(operands, call, payload, Bits(call),
                                 reinterpret_cast<uint8_t*>(payload.data()));
  }
  Status DecodeBuckets(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                       std::span<float> out) const override {
    return Launch(call.stream, TilesOf(out.size(), kBucket),
                  DecodeMinmax{{},
                               reinterpret_cast<const uint8_t*>(payload.data()),
                               out.data(),
                               out.size(),
                               scale,
                               Bits(call),
                               call.fault})
        .status();
  }
};

}  // namespace

void AddMinmax(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new DeviceMinmax(**Codecs().Find("minmax")));
}

}  // namespace weir::cuda
