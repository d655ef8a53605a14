// SPDX-License-Identifier: Apache-2.0
#pragma once
// The device codecs whose lanes are floats of 16 bits. A format has kScaled, Encode, Decode,
// IsFinite and kLargest, as in datapath/codec/kernels/lanes.cc, and a Scale, which gives the
// LaneFactors of a call from what is in device memory.

#include "datapath/cuda/passes.h"

namespace weir::cuda {

/// From a value to its lane and back: powers of two.
struct LaneFactors {
  float scale, inverse, limit;
  bool finite = true;  // whether the maximum of all ranks was
};

template <class Format>
struct Lanes16 {
  template <bool kCounts>
  struct EncodeProgram : PassProgram<kCounts> {
    static constexpr unsigned kTile = kTileElements;
    typename Format::Scale scale;
    uint16_t* out;

    template <class S>
    WEIR_DEVICE void Tile(Team& team, S& shared, size_t tile) const {
      const size_t at = tile * kTile;
      const PassInput& in = this->in;
      const LaneFactors lane = scale();
      PassSums sums = team.Reduce<PassSums>(in.SizeOf(at, kTile), [&](unsigned i, PassSums* part) {
        const float e = in.Load(at + i);
        this->Count(shared, at + i, e);
        part->AddInput(e);
        const float scaled = Format::kScaled ? e * lane.scale : e;
        const uint16_t code = Format::Encode(ClampTo(scaled, lane.limit));
        const float value = Format::Decode(code);
        const float error = e - (Format::kScaled ? value * lane.inverse : value);
        out[at + i] = code;
        part->AddLost(error);
        in.Keep(at + i, error);
      });
      // The input of some rank was not finite, even if this rank's was.
      if (!lane.finite) sums.max_bits = kInfinityBits;
      this->AddSums(team, shared, sums);
    }
  };

  struct AddLane {
    const uint16_t* lanes;
    float* out;
    typename Format::Scale lane_scale;
    float scale;
    uint64_t* fault;
    WEIR_DEVICE void operator()(size_t i) const {
      const uint16_t lane = lanes[i];
      if (!Format::IsFinite(lane)) {
        Team::Lower(fault, i * sizeof(uint16_t));
        return;
      }
      out[i] += Format::Decode(lane) * (scale * lane_scale().inverse);
    }
  };
  struct SumLanes {
    uint16_t* sum;
    const uint16_t* addend;
    WEIR_DEVICE void operator()(size_t i) const {
      const float total = Format::Decode(sum[i]) + Format::Decode(addend[i]);
      sum[i] = Format::Encode(ClampTo(total, Format::kLargest));
    }
  };
};

/// A codec of such lanes. Format::ScaleOf makes the Scale of a call.
template <class Format>
class Lanes16Codec : public DeviceCodec {
 public:
  explicit Lanes16Codec(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }
  size_t WorkspaceBytes(size_t, const DeviceCall&) const override { return kPassWorkspace; }

  /// One pass, O(n).
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    const auto payload = out.first(operands.gradient.size() * sizeof(uint16_t));
    return RunPass<Lanes16<Format>::template EncodeProgram>(
        operands, call, payload, Format::ScaleOf(call),
        reinterpret_cast<uint16_t*>(payload.data()));
  }

  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(CheckLaneBytes(host_.Traits(), payload, out.size() * sizeof(uint16_t)));
    return ForEachElement(
        call.stream, out.size(),
        typename Lanes16<Format>::AddLane{reinterpret_cast<const uint16_t*>(payload.data()),
                                          out.data(), Format::ScaleOf(call), scale, call.fault});
  }

  Status Accumulate(const DeviceCall& call, std::span<std::byte> sum,
                    std::span<const std::byte> addend) const override {
    WEIR_RETURN_IF_ERROR(CheckLanes(*this, sum, addend, sizeof(uint16_t)));
    return ForEachElement(
        call.stream, sum.size() / sizeof(uint16_t),
        typename Lanes16<Format>::SumLanes{reinterpret_cast<uint16_t*>(sum.data()),
                                           reinterpret_cast<const uint16_t*>(addend.data())});
  }

 private:
  const Codec& host_;
};

}  // namespace weir::cuda
