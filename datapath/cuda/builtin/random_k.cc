// SPDX-License-Identifier: Apache-2.0
// Random-k on the device; datapath/codec/builtin/random_k.cc describes the payload.

#include "datapath/base/random.h"
#include "datapath/codec/select/selection.h"
#include "datapath/cuda/passes.h"

namespace weir::cuda {
namespace {

/// The positions of one (seed, n, k): one in each of k strata, whose edges are floor(j * n / k).
struct Strata {
  uint64_t seed, n, k;

  WEIR_DEVICE uint64_t Edge(uint64_t j) const { return j * (n / k) + j * (n % k) / k; }
  WEIR_DEVICE uint64_t Position(uint64_t j) const {
    const uint64_t begin = Edge(j), size = Edge(j + 1) - begin;
    const auto product = static_cast<unsigned __int128>(MixSeed(seed, j)) * size;
    return begin + static_cast<uint64_t>(product >> 64);
  }
};

template <bool kCounts>
struct RandomProgram : PassProgram<kCounts> {
  static constexpr unsigned kTile = kTileElements;
  struct Shared : PassProgram<kCounts>::Shared {
    float e[kTile];
  };
  Strata strata;
  float* out;

  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTile;
    const PassInput& in = this->in;
    const unsigned size = in.SizeOf(at, kTile);
    PassSums sums = team.Reduce<PassSums>(size, [&](unsigned i, PassSums* part) {
      const float e = in.Load(at + i);
      this->Count(shared, at + i, e);
      part->AddInput(e);
      shared.e[i] = e;
      in.Keep(at + i, e);
    });
    // The strata that overlap the tile, and perhaps one more at each end.
    const uint64_t k = strata.k, n = strata.n, about = at * k / n;
    const uint64_t first = about > 0 ? about - 1 : 0, beyond = (at + size) * k / n + 2;
    const unsigned count = static_cast<unsigned>((beyond < k ? beyond : k) - first);
    const PassSums kept = team.Reduce<PassSums>(count, [&](unsigned i, PassSums* part) {
      const uint64_t place = strata.Position(first + i) - at;  // wraps before the tile
      if (place >= size) return;
      out[first + i] = shared.e[place];
      part->AddLost(shared.e[place]);
      in.Keep(at + place, 0.0f);
    });
    const double lost = sums.energy_in - kept.energy_lost;
    sums.energy_lost = lost > 0 ? lost : 0;
    this->AddSums(team, shared, sums);
  }
};

struct AddDrawn {
  Strata strata;
  const float* lanes;
  float* out;
  float scale;
  uint64_t* fault;
  WEIR_DEVICE void operator()(size_t j) const {
    const float value = lanes[j];
    if (IsFinite(value)) {
      out[strata.Position(j)] += scale * value;
    } else {
      Team::Lower(fault, j * sizeof(float));
    }
  }
};

class DeviceRandomK : public DeviceCodec {
 public:
  explicit DeviceRandomK(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }
  size_t WorkspaceBytes(size_t, const DeviceCall&) const override { return kPassWorkspace; }

  /// One pass, O(n).
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    const size_t n = operands.gradient.size();
    WEIR_RETURN_IF_ERROR(CheckSize(n));
    const Strata strata = StrataOf(n, call);
    const auto payload = out.first(strata.k * sizeof(float));
    return RunPass<RandomProgram>(operands, call, payload, strata,
                                  reinterpret_cast<float*>(payload.data()));
  }

  /// O(k).
  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(CheckSize(out.size()));
    const Strata strata = StrataOf(out.size(), call);
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(host_.Traits(), payload, strata.k * sizeof(float)));
    return ForEachElement(call.stream, strata.k,
                          AddDrawn{strata, reinterpret_cast<const float*>(payload.data()),
                                   out.data(), scale, call.fault});
  }

  Status Accumulate(const DeviceCall& call, std::span<std::byte> sum,
                    std::span<const std::byte> addend) const override {
    return AccumulateFloatLanes(*this, call, sum, addend);
  }

 private:
  /// Products of positions must fit 64 bits.
  Status CheckSize(size_t n) const {
    if (n < uint64_t{1} << 32) return OkStatus();
    return InvalidArgument(StrCat(host_.Traits().name, ": ", n, " elements, expected below 2^32"));
  }
  static Strata StrataOf(size_t n, const DeviceCall& call) {
    return {.seed = call.context.seed, .n = n, .k = SelectionTarget(n, call.context.params.ratio)};
  }

  const Codec& host_;
};

}  // namespace

void AddRandomK(std::vector<const DeviceCodec*>& codecs) {
  codecs.push_back(new DeviceRandomK(**Codecs().Find("random_k")));
  codecs.push_back(new DeviceRandomK(**Codecs().Find("random_k:memory=ef21")));
}

}  // namespace weir::cuda
