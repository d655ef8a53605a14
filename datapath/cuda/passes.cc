// SPDX-License-Identifier: Apache-2.0
#include "datapath/cuda/passes.h"

#include <algorithm>

#include "datapath/cuda/memory.h"

namespace weir::cuda {
namespace {

/// Every team adds the partial sums itself, which takes less time than another launch, and sets its
/// part of the payload to zeros if need be.
struct FinishProgram {
  static constexpr unsigned kTile = 1 << 16;  // octets of the payload
  struct Shared {
    PassSums sums;
  };
  const PassSums* partials;
  unsigned count;
  Outcome* outcome;
  uint8_t* payload;
  size_t bytes;

  WEIR_DEVICE void Begin(Team& team, Shared& shared) const {
    const PassSums sums =
        team.Reduce<PassSums>(count, [&](unsigned i, PassSums* part) { part->Add(partials[i]); });
    team.Once([&] { shared.sums = sums; });
  }
  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    if (shared.sums.max_bits < kInfinityBits) return;
    const size_t at = tile * kTile;
    const unsigned size = bytes - at < kTile ? static_cast<unsigned>(bytes - at) : kTile;
    team.ForEach(size, [&](unsigned i) { payload[at + i] = 0; });
  }
  WEIR_DEVICE void End(Team& team, Shared& shared) const {
    if (team.index() != 0) return;
    team.Once([&] {
      *outcome = {bytes, shared.sums.energy_in, shared.sums.energy_lost, shared.sums.max_bits, 0};
    });
  }
};

struct LargestProgram {
  struct Shared {
    PassSums sums;
  };
  PassInput in;

  WEIR_DEVICE void Begin(Team& team, Shared& shared) const {
    team.Once([&] { shared.sums = PassSums::Zero(); });
  }
  WEIR_DEVICE void Tile(Team& team, Shared& shared, size_t tile) const {
    const size_t at = tile * kTileElements;
    const PassSums sums =
        team.Reduce<PassSums>(in.SizeOf(at, kTileElements),
                              [&](unsigned i, PassSums* part) { part->AddInput(in.Load(at + i)); });
    team.Once([&] { shared.sums.Add(sums); });
  }
  WEIR_DEVICE void End(Team& team, Shared& shared) const {
    team.Once([&] { in.partials[team.index()] = shared.sums; });
  }
};

struct MaximumProgram : TileProgram {
  const PassSums* partials;
  unsigned count;
  float* maximum;

  WEIR_DEVICE void Tile(Team& team, Shared&, size_t) const {
    const PassSums sums =
        team.Reduce<PassSums>(count, [&](unsigned i, PassSums* part) { part->Add(partials[i]); });
    team.Once(
        [&] { *maximum = FloatOf(sums.max_bits < kInfinityBits ? sums.max_bits : kInfinityBits); });
  }
};

/// Lanes of up to 8 bits: the top bits are added without their carries, which would change the
/// neighbouring lanes.
struct AddNarrowLanes {
  uint8_t* sum;
  const uint8_t* addend;
  uint32_t tops;
  WEIR_DEVICE void operator()(size_t i) const {
    const uint32_t a = sum[i], b = addend[i], keep = 0xFFu & ~tops;
    sum[i] = static_cast<uint8_t>(((a & keep) + (b & keep)) ^ ((a ^ b) & tops));
  }
};
struct AddWideLanes {
  uint16_t* sum;
  const uint16_t* addend;
  WEIR_DEVICE void operator()(size_t i) const {
    sum[i] = static_cast<uint16_t>(sum[i] + addend[i]);
  }
};
struct AddFloatLanes {
  float* sum;
  const float* addend;
  WEIR_DEVICE void operator()(size_t i) const { sum[i] += addend[i]; }
};

bool IsAligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % kDeviceAlignment == 0; }

}  // namespace

Status CheckCall(const DeviceCodec& codec, const DeviceCall& call, size_t n,
                 std::span<const std::byte> payload) {
  const std::string& name = codec.host().Traits().name;
  WEIR_RETURN_IF_ERROR(codec.host().Validate(call.context.params, call.context.world));
  if (!IsAligned(payload.data()) || !IsAligned(call.workspace.data())) {
    return InvalidArgument(
        StrCat(name, ": payload or workspace is not aligned to ", kDeviceAlignment, " octets"));
  }
  const size_t needed = codec.WorkspaceBytes(n, call);
  if (call.workspace.size() < needed) {
    return InvalidArgument(
        StrCat(name, ": workspace of ", call.workspace.size(), " bytes, needed ", needed));
  }
  return OkStatus();
}

Status CheckEncode(const DeviceCodec& codec, const PassOperands& operands, const DeviceCall& call,
                   std::span<const std::byte> out) {
  const std::string& name = codec.host().Traits().name;
  const size_t n = operands.gradient.size();
  WEIR_RETURN_IF_ERROR(CheckCall(codec, call, n, out));
  if (call.outcome == nullptr) return InvalidArgument(StrCat(name, ": no outcome"));
  if ((!operands.residual.empty() && operands.residual.size() != n) ||
      (!operands.rest.empty() && operands.rest.size() != n)) {
    return InvalidArgument(StrCat(name, ": gradient of ", n, " elements, residual of ",
                                  operands.residual.size(), ", rest of ", operands.rest.size()));
  }
  const size_t bytes = codec.host().MaxEncodedBytes(n, call.context);
  const size_t before = std::min(bytes, call.context.previous.size());
  return CheckRoom(codec.host().Traits(), out, bytes - before);
}

Status CheckDecode(const DeviceCodec& codec, const DeviceCall& call, size_t n,
                   std::span<const std::byte> payload) {
  WEIR_RETURN_IF_ERROR(CheckCall(codec, call, n, payload));
  if (call.fault != nullptr) return OkStatus();
  return InvalidArgument(StrCat(codec.host().Traits().name, ": no place for a fault"));
}

Status CheckLanes(const DeviceCodec& codec, std::span<const std::byte> sum,
                  std::span<const std::byte> addend, size_t lane_bytes) {
  const bool aligned = reinterpret_cast<uintptr_t>(sum.data()) % lane_bytes == 0 &&
                       reinterpret_cast<uintptr_t>(addend.data()) % lane_bytes == 0;
  if (aligned && sum.size() == addend.size() && sum.size() % lane_bytes == 0) return OkStatus();
  return InvalidArgument(StrCat(codec.host().Traits().name, ": sums of ", sum.size(), " and ",
                                addend.size(), " bytes, expected equal, whole and aligned lanes"));
}

StatusOr<PassInput> MakeInput(const PassOperands& operands, const DeviceCall& call) {
  const size_t n = operands.gradient.size();
  if (call.bins != nullptr) {
    WEIR_RETURN_IF_ERROR(
        FillDevice(call.bins, 0, GradientStatistics::kBins * sizeof(uint32_t), call.stream));
  }
  return PassInput{.gradient = operands.gradient.data(),
                   .residual = operands.residual.empty() ? nullptr : operands.residual.data(),
                   .rest = operands.rest.empty() ? nullptr : operands.rest.data(),
                   .n = n,
                   .partials = reinterpret_cast<PassSums*>(call.workspace.data()),
                   .bins = call.bins,
                   .sampled = n >= kSampledElementsMin};
}

Status FinishPass(const DeviceCall& call, const PassSums* partials, unsigned teams,
                  std::span<std::byte> payload) {
  const FinishProgram finish{.partials = partials,
                             .count = teams,
                             .outcome = call.outcome,
                             .payload = reinterpret_cast<uint8_t*>(payload.data()),
                             .bytes = payload.size()};
  const size_t tiles = std::max<size_t>(1, TilesOf(payload.size(), FinishProgram::kTile));
  return Launch(call.stream, tiles, finish).status();
}

Status AccumulateLanes(const DeviceCodec& codec, const DeviceCall& call, unsigned bits,
                       std::span<std::byte> sum, std::span<const std::byte> addend) {
  WEIR_RETURN_IF_ERROR(CheckLanes(codec, sum, addend, bits == 16 ? 2 : 1));
  if (bits == 16) {
    return ForEachElement(call.stream, sum.size() / 2,
                          AddWideLanes{reinterpret_cast<uint16_t*>(sum.data()),
                                       reinterpret_cast<const uint16_t*>(addend.data())});
  }
  const uint32_t tops = bits == 1 ? 0xFF : bits == 2 ? 0xAA : bits == 4 ? 0x88 : 0x80;
  return ForEachElement(call.stream, sum.size(),
                        AddNarrowLanes{reinterpret_cast<uint8_t*>(sum.data()),
                                       reinterpret_cast<const uint8_t*>(addend.data()), tops});
}

Status AccumulateFloatLanes(const DeviceCodec& codec, const DeviceCall& call,
                            std::span<std::byte> sum, std::span<const std::byte> addend) {
  WEIR_RETURN_IF_ERROR(CheckLanes(codec, sum, addend, sizeof(float)));
  return ForEachElement(call.stream, sum.size() / sizeof(float),
                        AddFloatLanes{reinterpret_cast<float*>(sum.data()),
                                      reinterpret_cast<const float*>(addend.data())});
}

Status MaxMagnitude(std::span<const float> gradient, std::span<const float> residual,
                    const DeviceCall& call, float* maximum) {
  DeviceCall without_bins = call;
  without_bins.bins = nullptr;
  WEIR_ASSIGN_OR_RETURN(const PassInput input,
                        MakeInput({.gradient = gradient, .residual = residual}, without_bins));
  WEIR_ASSIGN_OR_RETURN(const unsigned teams, Launch(call.stream, TilesOf(input.n, kTileElements),
                                                     LargestProgram{input}));
  return Launch(call.stream, 1, MaximumProgram{{}, input.partials, teams, maximum}).status();
}

}  // namespace weir::cuda
