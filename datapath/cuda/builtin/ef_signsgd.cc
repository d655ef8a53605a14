// SPDX-License-Identifier: Apache-2.0
// Signs times the mean magnitude of a block, on the device; datapath/codec/builtin/ef_signsgd.cc
// describes the payload. The mean is a rounded sum, so it is added in the order of the kernels of
// the host: element i to partial sum i mod 16, then the partial sums in turn.

#include "datapath/cuda/buckets.h"

namespace weir::cuda {
namespace {

constexpr unsigned kSignBlock = kTileElements;
constexpr unsigned kLanes = 16;
constexpr size_t kSignBlockBytes = sizeof(float) + kSignBlock / 8;
/// Keeps partial sums in single precision from overflowing.
constexpr float kShrink = 0x1p-12f;

template <bool kCounts>
struct EncodeSigns : PassProgram<kCounts> {
  static constexpr unsigned kTile = kSignBlock;
  struct Shared : PassProgram<kCounts>::Shared {
    float e[kTile];
    uint32_t signs[kTile / 32];
    float partial[4 * kLanes];  // positive and negative, of the whole runs and of the last one
    float scale;
  };
  uint8_t* out;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const PassInput& in = this->in;
    const unsigned size = in.SizeOf(at, kTile);
    PassSums sums = team.Reduce<PassSums>(size, [&](unsigned i, PassSums* part) {
      const float e = in.Load(at + i);
      this->Count(shared, at + i, e);
      part->AddInput(e);
      shared.e[i] = e;
    });
    team.Ballot(
        size, [&](unsigned i) { return shared.e[i] >= 0; }, shared.signs);
    FindScale(team, shared, size);
    const float scale = shared.scale;
    sums.Add(team.Reduce<PassSums>(size, [&](unsigned i, PassSums* part) {
      const float e = shared.e[i];
      const float error = e - (e >= 0 ? scale : -scale);
      part->AddLost(error);
      in.Keep(at + i, error);
    }));
    this->AddSums(team, shared, sums);
    uint8_t* const to = out + tile * kSignBlockBytes;
    team.ForEach((size + 7) / 8, [&](unsigned i) {
      if (i == 0) *reinterpret_cast<float*>(to) = scale;
      to[sizeof(float) + i] = static_cast<uint8_t>(shared.signs[i / 4] >> (i % 4 * 8));
    });
  }

  static WEIR_DEVICE void FindScale(Team& team, Shared& shared, unsigned size) {
    const unsigned whole = size / kLanes * kLanes;
    team.ForEach(4 * kLanes, [&](unsigned k) {
      const unsigned lane = k % kLanes;
      const bool positive = k / kLanes % 2 == 0, last = k >= 2 * kLanes;
      float sum = 0;
      for (unsigned i = lane + (last ? whole : 0); i < (last ? size : whole); i += kLanes) {
        const float small = shared.e[i] * kShrink;
        sum += positive ? Greater(small, 0.0f) : Lesser(small, 0.0f);
      }
      shared.partial[k] = sum;
    });
    team.Once([&] {
      double halves[2] = {};
      for (unsigned k = 0; k < 4 * kLanes; ++k) {
        halves[k / kLanes % 2] += static_cast<double>(shared.partial[k]) / kShrink;
      }
      shared.scale = static_cast<float>((halves[0] - halves[1]) / static_cast<double>(size));
    });
  }
};

struct DecodeSigns : TileProgram {
  const uint8_t* payload;
  float* out;
  size_t n;
  float scale;
  uint64_t* fault;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t tile) const {
    const size_t at = tile * kSignBlock, from = tile * kSignBlockBytes;
    const unsigned size = n - at < kSignBlock ? static_cast<unsigned>(n - at) : kSignBlock;
    team.ForEach(size, [&](unsigned i) {
      float mean;
      if (!ReadScales(payload, from, 1, fault, &mean)) return;
      const float value = scale * mean;
      const uint32_t bit = UnpackCode(payload + from + sizeof(float), 1, i);
      out[at + i] += -value + static_cast<float>(bit) * (2 * value);
    });
  }
};

class DeviceEfSignsgd : public DeviceBuckets {
 public:
  using DeviceBuckets::DeviceBuckets;

 protected:
  Status EncodeBuckets(const PassOperands& operands, const DeviceCall& call,
                       std::span<std::byte> payload) const override {
    return RunPass<EncodeSigns>(operands, call, payload,
                                reinterpret_cast<uint8_t*>(payload.data()));
  }
  Status DecodeBuckets(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                       std::span<float> out) const override {
    return Launch(call.stream, TilesOf(out.size(), kSignBlock),
                  DecodeSigns{{},
                              reinterpret_cast<const uint8_t*>(payload.data()),
                              out.data(),
                              out.size(),
                              scale,
                              call.fault})
        .status();
  }
};

}  // namespace

void AddEfSignsgd(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new DeviceEfSignsgd(**Codecs().Find("ef_signsgd")));
}

}  // namespace weir::cuda
