// SPDX-License-Identifier: Apache-2.0
// Stochastic quantisation on a shared grid, on the device; datapath/codec/builtin/qsgd.cc describes
// the payloads.

#include "datapath/base/random.h"
#include "datapath/codec/quantised_lanes.h"
#include "datapath/cuda/powers.h"

namespace weir::cuda {
namespace {

/// The grid, whose step follows from a maximum in device memory.
struct DeviceGrid {
  const float* maximum;  // null: 0
  float levels;

  WEIR_DEVICE float Maximum() const { return maximum == nullptr ? 0.0f : *maximum; }
  WEIR_DEVICE bool Usable() const { return Maximum() >= kGridMaximumMin && IsFinite(Maximum()); }
  WEIR_DEVICE float Step() const { return Usable() ? Maximum() / levels : 0.0f; }
  WEIR_DEVICE float InverseStep() const { return Usable() ? levels / Maximum() : 0.0f; }
};

template <bool kCounts>
struct GridProgram : PassProgram<kCounts> {
  static constexpr unsigned kTile = kTileElements;
  struct Shared : PassProgram<kCounts>::Shared {
    alignas(4) uint8_t codes[kTile];
  };
  DeviceGrid grid;
  uint64_t seed;
  unsigned bits;
  uint8_t* out;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const PassInput& in = this->in;
    const unsigned size = in.SizeOf(at, kTile);
    const float step = grid.Step(), inverse_step = grid.InverseStep(), levels = grid.levels;
    auto* const wide = reinterpret_cast<uint16_t*>(out);
    const uint32_t kept = (1u << bits) - 1;
    PassSums sums = team.Reduce<PassSums>(size, [&](unsigned i, PassSums* part) {
      const float e = in.Load(at + i);
      this->Count(shared, at + i, e);
      part->AddInput(e);
      // The lower clamp comes before the noise and the upper one after it.
      const float y = Greater(e * inverse_step, -levels);
      const float u = NoiseUniform(seed, static_cast<uint32_t>(at + i));
      const float q = Lesser(floorf(y + u), levels);
      const uint32_t code = IntegerBits(q) & kept;
      if (bits == 16) {
        wide[at + i] = static_cast<uint16_t>(code);
      } else {
        shared.codes[i] = static_cast<uint8_t>(code);
      }
      const float error = e - q * step;
      part->AddLost(error);
      in.Keep(at + i, error);
    });
    // The input of some rank was not finite, even if this rank's was.
    if (!(grid.Maximum() >= 0 && IsFinite(grid.Maximum()))) sums.max_bits = kInfinityBits;
    this->AddSums(team, shared, sums);
    if (bits < 16) PackCodes(team, shared.codes, size, bits, out + at * bits / 8);
  }
};

struct AddGridLane {
  const uint8_t* lanes;
  float* out;
  DeviceGrid grid;
  float scale;
  unsigned bits;
  WEIR_DEVICE void operator()(size_t i) const {
    const uint32_t code =
        bits == 16 ? reinterpret_cast<const uint16_t*>(lanes)[i] : UnpackCode(lanes, bits, i);
    out[i] += static_cast<float>(SignedCode(code, bits)) * (scale * grid.Step());
  }
};

class DeviceQsgd : public DeviceCodec {
 public:
  explicit DeviceQsgd(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }
  size_t WorkspaceBytes(size_t, const DeviceCall&) const override { return kPassWorkspace; }

  /// One pass, O(n).
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    const auto payload = out.first(host_.MaxEncodedBytes(operands.gradient.size(), call.context));
    // Noise is independent between ranks, so that it averages out in the sum.
    const uint64_t seed = MixSeed(call.context.seed, static_cast<uint64_t>(call.context.rank));
    return RunPass<GridProgram>(operands, call, payload, GridOf(call), seed, Bits(call),
                                reinterpret_cast<uint8_t*>(payload.data()));
  }

  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(
        CheckLaneBytes(host_.Traits(), payload, host_.MaxEncodedBytes(out.size(), call.context)));
    return ForEachElement(call.stream, out.size(),
                          AddGridLane{reinterpret_cast<const uint8_t*>(payload.data()), out.data(),
                                      GridOf(call), scale, Bits(call)});
  }

  Status Accumulate(const DeviceCall& call, std::span<std::byte> sum,
                    std::span<const std::byte> addend) const override {
    WEIR_RETURN_IF_ERROR(host_.Validate(call.context.params, call.context.world));
    return AccumulateLanes(*this, call, Bits(call), sum, addend);
  }

 private:
  unsigned Bits(const DeviceCall& call) const {
    const EncodeContext& context = call.context;
    return FindSetting(host_.Traits(), context.params, context.world)->bits;
  }
  DeviceGrid GridOf(const DeviceCall& call) const {
    const int largest = (1 << (Bits(call) - 1)) - 1;
    return {.maximum = call.shared_max.empty() ? nullptr : call.shared_max.data(),
            .levels = static_cast<float>(largest / call.context.world)};
  }

  const Codec& host_;
};

// --- levels=exponential --------------------------------------------------------------------------

constexpr uint32_t kPowerLevels = 63, kPowerHeadroom = 24;
constexpr uint64_t kSalt = 1 << 6;

/// Lanes add on the host only: the noise of a sum follows from the frame checksums of both lanes.
class DeviceExponentialQsgd : public DeviceCodec {
 public:
  explicit DeviceExponentialQsgd(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }
  size_t WorkspaceBytes(size_t, const DeviceCall&) const override { return kPassWorkspace; }

  /// One pass, O(n).
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    const auto payload = out.first(operands.gradient.size());
    const uint64_t seed = MixSeed(call.context.seed, static_cast<uint64_t>(call.context.rank));
    return RunPass<PowerProgram>(operands, call, payload, RangeOf(call), seed, true,
                                 MixSeed(seed, kSalt), reinterpret_cast<uint8_t*>(payload.data()));
  }

  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(host_.Traits(), payload, out.size()));
    return ForEachElement(call.stream, out.size(),
                          AddPower{reinterpret_cast<const uint8_t*>(payload.data()), out.data(),
                                   RangeOf(call), scale});
  }

 private:
  static PowerRange RangeOf(const DeviceCall& call) {
    return {.levels = kPowerLevels,
            .maximum = call.shared_max.empty() ? nullptr : call.shared_max.data(),
            .headroom = kPowerHeadroom};
  }

  const Codec& host_;
};

}  // namespace

void AddQsgd(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new DeviceQsgd(**Codecs().Find("qsgd")));
  codecs.push_back(new DeviceQsgd(**Codecs().Find("qsgd:memory=none")));
  codecs.push_back(new DeviceExponentialQsgd(**Codecs().Find("qsgd:levels=exponential")));
}

}  // namespace weir::cuda
