// SPDX-License-Identifier: Apache-2.0
// Rotated lanes on the device, with the levels of thc and thc_uniform; datapath/codec/builtin has
// the payloads.

#include "datapath/codec/rotated_lanes.h"
#include "datapath/codec/rotation.h"
#include "datapath/cuda/hadamard.h"
#include "datapath/cuda/passes.h"

namespace weir::cuda {
namespace {

constexpr unsigned kRotatedTile = kRotations * kRotation;

/// The parameters of a call that kernels use.
struct RotatedGrid {
  static constexpr unsigned kCellsMax = 64;
  const float* norms;
  size_t norm_count;
  float range;
  float centre;
  unsigned bits;
  int32_t cell_count;  // 0: every number is a level
  int32_t cells[kCellsMax];
  uint64_t rotation_seed, noise_seed;

  WEIR_DEVICE float NormOf(size_t index) const {
    if (norm_count <= 1) return norm_count == 0 ? 0.0f : norms[0];
    return index < norm_count ? norms[index] : 0.0f;
  }
  /// 0: zeros are sent.
  WEIR_DEVICE float StepOf(size_t index, unsigned size) const {
    const float norm = NormOf(index);
    if (!(norm >= kNormMin && norm <= kNormMax)) return 0;
    return norm * range / (sqrtf(static_cast<float>(size)) * centre);
  }
  /// Rounds a coordinate in steps to a level.
  WEIR_DEVICE float Round(float scaled, float u) const {
    if (cell_count == 0) return ClampTo(floorf(ClampTo(scaled, centre) + u), centre);
    const float z = ClampTo(scaled, centre) + centre;
    // A coordinate that is not a number is lost, but must not lead out of the table.
    int32_t cell = z > 0 ? static_cast<int32_t>(z) : 0;
    cell = cell < cell_count ? cell : cell_count - 1;
    const float below = static_cast<float>(cells[cell] & 0xFFFF);
    const float width = static_cast<float>(cells[cell] >> 16);
    return below + (u * width < z - below ? width : 0.0f) - centre;
  }
};

template <bool kCounts>
struct EncodeRotated : PassProgram<kCounts> {
  static constexpr unsigned kTile = kRotatedTile;
  struct Shared : PassProgram<kCounts>::Shared {
    float e[kTile];
    RotatedTile y;
    int16_t lanes[kTile];
  };
  RotatedGrid grid;
  uint8_t* out;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const PassInput& in = this->in;
    const RotatedSpan span(at, in.n);
    DrawSigns(team, shared.y, grid.rotation_seed, tile * kRotations);
    PassSums sums = team.Reduce<PassSums>(span.total(), [&](unsigned i, PassSums* part) {
      float e = 0;
      if (i < span.count) {
        e = in.Load(at + i);
        this->Count(shared, at + i, e);
        part->AddInput(e);
      }
      shared.e[i] = e;
      const unsigned rotation = i / kRotation, place = i % kRotation;
      const float scale = 1.0f / static_cast<float>(span.size[rotation]);
      shared.y.At(rotation, place) = FloatOf(BitsOf(e * scale) ^ shared.y.SignOf(rotation, place));
    });
    Transform(team, shared.y, span);
    Quantise(team, shared, span, at);
    Store(team, shared, span, tile);
    Transform(team, shared.y, span);
    sums.Add(team.Reduce<PassSums>(span.count, [&](unsigned i, PassSums* part) {
      const unsigned rotation = i / kRotation, place = i % kRotation;
      const uint32_t sign = shared.y.SignOf(rotation, place);
      const float error = shared.e[i] - FloatOf(BitsOf(shared.y.At(rotation, place)) ^ sign);
      part->AddLost(error);
      in.Keep(at + i, error);
    }));
    for (unsigned rotation = 0; rotation < kRotations; ++rotation) {
      const float norm = grid.NormOf(tile * kRotations + rotation);
      // The input of some rank was not finite, even if this rank's was.
      if (span.size[rotation] > 0 && !(norm >= 0 && IsFinite(norm))) sums.max_bits = kInfinityBits;
    }
    this->AddSums(team, shared, sums);
  }

  /// Replaces coordinates by the values of their lanes.
  WEIR_DEVICE void Quantise(Team& team, Shared& shared, const RotatedSpan& span, size_t at) const {
    float steps[kRotations], inverse_steps[kRotations];
    for (unsigned rotation = 0; rotation < kRotations; ++rotation) {
      const float step = grid.StepOf(at / kRotation + rotation, span.size[rotation]);
      steps[rotation] = step;
      inverse_steps[rotation] = step > 0 ? 1.0f / step : 0.0f;
    }
    team.ForEach(span.total(), [&](unsigned i) {
      const unsigned rotation = i / kRotation;
      float& y = shared.y.At(rotation, i % kRotation);
      const float u = NoiseUniform(grid.noise_seed, static_cast<uint32_t>(at + i));
      const float q = grid.Round(y * inverse_steps[rotation], u);
      shared.lanes[i] = static_cast<int16_t>(IntegerBits(q));
      y = q * steps[rotation];
    });
  }

  WEIR_DEVICE void Store(Team& team, Shared& shared, const RotatedSpan& span, size_t tile) const {
    for (unsigned rotation = 0; rotation < kRotations; ++rotation) {
      const size_t before = (tile * kRotations + rotation) * kRotation;
      const int16_t* const lanes = shared.lanes + rotation * kRotation;
      const unsigned size = span.size[rotation], bits = grid.bits;
      uint8_t* const to = out + before * bits / 8;
      team.ForEach(bits == 4 ? size / 2 : size, [&](unsigned i) {
        if (bits == 16) {
          reinterpret_cast<int16_t*>(to)[i] = lanes[i];
        } else if (bits == 8) {
          to[i] = static_cast<uint8_t>(lanes[i]);
        } else {
          to[i] = static_cast<uint8_t>((lanes[i] & 15) | lanes[i + size / 2] << 4);
        }
      });
    }
  }
};

struct DecodeRotated : TileProgram {
  struct Shared {
    RotatedTile y;
  };
  RotatedGrid grid;
  const uint8_t* payload;
  float* out;
  size_t n;
  float scale;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kRotatedTile;
    const RotatedSpan span(at, n);
    DrawSigns(team, shared.y, grid.rotation_seed, tile * kRotations);
    team.ForEach(span.total(), [&](unsigned i) {
      const unsigned rotation = i / kRotation, place = i % kRotation, size = span.size[rotation];
      const size_t index = tile * kRotations + rotation;
      shared.y.At(rotation, place) =
          static_cast<float>(Lane(index, place, size)) * grid.StepOf(index, size);
    });
    Transform(team, shared.y, span);
    team.ForEach(span.count, [&](unsigned i) {
      const unsigned rotation = i / kRotation, place = i % kRotation;
      const uint32_t sign = shared.y.SignOf(rotation, place);
      out[at + i] += FloatOf(BitsOf(shared.y.At(rotation, place)) ^ sign) * scale;
    });
  }

  WEIR_DEVICE int32_t Lane(size_t index, unsigned i, unsigned size) const {
    const uint8_t* const from = payload + index * kRotation * grid.bits / 8;
    if (grid.bits == 16) return reinterpret_cast<const int16_t*>(from)[i];
    if (grid.bits == 8) return static_cast<int8_t>(from[i]);
    const uint32_t octet = from[i % (size / 2)];
    return SignedCode(i < size / 2 ? octet & 15 : octet >> 4, 4);
  }
};

/// The root mean square of one rotation, padding included.
struct NormProgram : TileProgram {
  PassInput in;
  float* norms;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const size_t at = tile * kRotation;
    const unsigned count = in.SizeOf(at, kRotation);
    const PassSums sums = team.Reduce<PassSums>(
        count, [&](unsigned i, PassSums* part) { part->AddInput(in.Load(at + i)); });
    team.Once([&] {
      const double mean = sums.energy_in / static_cast<double>(RotatedSpan::Padded(count));
      norms[tile] =
          sums.max_bits < kInfinityBits ? static_cast<float>(sqrt(mean)) : FloatOf(kInfinityBits);
    });
  }
};

class DeviceRotated : public DeviceCodec {
 public:
  explicit DeviceRotated(const RotatedLaneCodec& host) : host_(host) {}

  const Codec& host() const override { return host_; }
  size_t WorkspaceBytes(size_t, const DeviceCall&) const override { return kPassWorkspace; }
  size_t MaxCount(size_t n) const override { return TilesOf(n, kRotation); }

  /// One pass, O(n).
  Status LocalMax(std::span<const float> gradient, std::span<const float> residual,
                  const DeviceCall& call, float* maxima) const override {
    WEIR_RETURN_IF_ERROR(CheckCall(*this, call, gradient.size(), {}));
    DeviceCall without_bins = call;
    without_bins.bins = nullptr;
    WEIR_ASSIGN_OR_RETURN(const PassInput input,
                          MakeInput({.gradient = gradient, .residual = residual}, without_bins));
    return Launch(call.stream, MaxCount(input.n), NormProgram{{}, input, maxima}).status();
  }

  /// One pass, O(n log 1024).
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    const auto payload = out.first(host_.MaxEncodedBytes(operands.gradient.size(), call.context));
    return RunPass<EncodeRotated>(operands, call, payload, GridOf(call),
                                  reinterpret_cast<uint8_t*>(payload.data()));
  }

  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(
        CheckLaneBytes(host_.Traits(), payload, host_.MaxEncodedBytes(out.size(), call.context)));
    return Launch(call.stream, TilesOf(out.size(), kRotatedTile),
                  DecodeRotated{{},
                                GridOf(call),
                                reinterpret_cast<const uint8_t*>(payload.data()),
                                out.data(),
                                out.size(),
                                scale})
        .status();
  }

  Status Accumulate(const DeviceCall& call, std::span<std::byte> sum,
                    std::span<const std::byte> addend) const override {
    WEIR_RETURN_IF_ERROR(host_.Validate(call.context.params, call.context.world));
    const auto bits = static_cast<unsigned>(host_.SettingOf(call.context).bits);
    return AccumulateLanes(*this, call, bits, sum, addend);
  }

 private:
  RotatedGrid GridOf(const DeviceCall& call) const {
    const RotatedLevels& levels = host_.LevelsOf(call.context);
    RotatedGrid grid{
        .norms = call.shared_max.data(),
        .norm_count = call.shared_max.size(),
        .range = levels.range,
        .centre = static_cast<float>(levels.centre),
        .bits = static_cast<unsigned>(host_.SettingOf(call.context).bits),
        .cell_count = static_cast<int32_t>(levels.cells.size()),
        .cells = {},
        .rotation_seed = Rotation::SeedOf(call.context.seed),
        .noise_seed = MixSeed(call.context.seed, static_cast<uint64_t>(call.context.rank))};
    WEIR_CHECK(levels.cells.size() <= RotatedGrid::kCellsMax);
    std::copy(levels.cells.begin(), levels.cells.end(), grid.cells);
    return grid;
  }

  const RotatedLaneCodec& host_;
};

}  // namespace

void AddThc(std::vector<const DeviceCodec*>& codecs) {
  for (const char* name : {"thc", "thc_uniform"}) {
    const auto* host = dynamic_cast<const RotatedLaneCodec*>(*Codecs().Find(name));
    WEIR_CHECK(host != nullptr);
    codecs.push_back(new DeviceRotated(*host));
  }
}

}  // namespace weir::cuda
