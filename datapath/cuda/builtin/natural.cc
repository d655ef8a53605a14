// SPDX-License-Identifier: Apache-2.0
// Powers of two on the device; datapath/codec/builtin/natural.cc describes the payload.

#include "datapath/base/random.h"
#include "datapath/cuda/powers.h"

namespace weir::cuda {
namespace {

constexpr int kFullBits = 9;
constexpr PowerRange kNarrow = {.levels = 127, .least = 18};
constexpr uint32_t kFullMax = 254;
constexpr uint32_t kInfinity = 255;
constexpr unsigned kPowerBlock = kTileElements;
constexpr size_t kFullBlockBytes = kPowerBlock + kPowerBlock / 8;

/// 9 bits: the signs of a block, then its exponents.
template <bool kCounts>
struct FullProgram : PassProgram<kCounts> {
  static constexpr unsigned kTile = kPowerBlock;
  struct Shared : PassProgram<kCounts>::Shared {
    float e[kTile];
    uint32_t signs[kTile / 32];
  };
  uint64_t seed;
  uint8_t* out;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const PassInput& in = this->in;
    const unsigned size = in.SizeOf(at, kTile);
    team.Ballot(
        size,
        [&](unsigned i) {
          shared.e[i] = in.Load(at + i);
          return BitsOf(shared.e[i]) >> 31 != 0;
        },
        shared.signs);
    uint8_t* const signs = out + tile * kFullBlockBytes;
    uint8_t* const exponents = signs + (size + 7) / 8;
    const PassSums sums = team.Reduce<PassSums>(size, [&](unsigned i, PassSums* part) {
      const float e = shared.e[i];
      this->Count(shared, at + i, e);
      part->AddInput(e);
      const uint32_t magnitude = BitsOf(e) & kMagnitudeBits;
      const uint32_t drawn = DrawExponent(magnitude, seed, at + i);
      const uint32_t code = drawn < kFullMax ? drawn : kFullMax;
      exponents[i] = static_cast<uint8_t>(code);
      const float error = e - FloatOf(code << 23 | (BitsOf(e) ^ magnitude));
      part->AddLost(error);
      in.Keep(at + i, error);
    });
    this->AddSums(team, shared, sums);
    team.ForEach((size + 7) / 8, [&](unsigned i) {
      signs[i] = static_cast<uint8_t>(shared.signs[i / 4] >> (i % 4 * 8));
    });
  }
};

struct AddFull {
  const uint8_t* payload;
  float* out;
  size_t n;
  float factor;
  uint64_t* fault;
  WEIR_DEVICE void operator()(size_t i) const {
    const size_t block = i / kPowerBlock, left = n - block * kPowerBlock;
    const size_t size = left < kPowerBlock ? left : kPowerBlock, place = i % kPowerBlock;
    const size_t signs = block * kFullBlockBytes, exponent = signs + (size + 7) / 8 + place;
    const uint32_t level = payload[exponent];
    if (level == kInfinity) {
      Team::Lower(fault, exponent);
      return;
    }
    const uint32_t sign = uint32_t{payload[signs + place / 8]} >> (place % 8) << 31;
    out[i] += FloatOf(level == 0 ? 0 : level << 23 | sign) * factor;
  }
};

class DeviceNatural : public DeviceCodec {
 public:
  explicit DeviceNatural(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }
  size_t WorkspaceBytes(size_t, const DeviceCall&) const override { return kPassWorkspace; }

  /// One pass, O(n).
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    const auto payload = out.first(host_.MaxEncodedBytes(operands.gradient.size(), call.context));
    const uint64_t seed = MixSeed(call.context.seed, static_cast<uint64_t>(call.context.rank));
    auto* const to = reinterpret_cast<uint8_t*>(payload.data());
    return IsFull(call) ? RunPass<FullProgram>(operands, call, payload, seed, to)
                        : RunPass<PowerProgram>(operands, call, payload, kNarrow, seed, false,
                                                uint64_t{0}, to);
  }

  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(
        CheckLaneBytes(host_.Traits(), payload, host_.MaxEncodedBytes(out.size(), call.context)));
    const auto* const from = reinterpret_cast<const uint8_t*>(payload.data());
    if (!IsFull(call)) {
      return ForEachElement(call.stream, out.size(), AddPower{from, out.data(), kNarrow, scale});
    }
    return ForEachElement(call.stream, out.size(),
                          AddFull{from, out.data(), out.size(), scale, call.fault});
  }

 private:
  bool IsFull(const DeviceCall& call) const {
    const EncodeContext& context = call.context;
    return FindSetting(host_.Traits(), context.params, context.world)->bits == kFullBits;
  }

  const Codec& host_;
};

}  // namespace

void AddNatural(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new DeviceNatural(**Codecs().Find("natural")));
}

}  // namespace weir::cuda
