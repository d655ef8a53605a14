// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/float_lanes.h"

#include <algorithm>
#include <bit>

#include "datapath/aggregation/lane_operation.h"

namespace weir::aggregation {
namespace {

constexpr int32_t kNotFinite = 255;
constexpr uint32_t kQuietNan = 0x7FC00000;

/// A hardware shift by the width or more leaves only the sign; in C++ it would be undefined.
int32_t ShiftRight(int32_t value, int32_t by) { return value >> std::min(by, 31); }

bool AddMantissa(int32_t addend, FloatLane* lane) {
  return !__builtin_add_overflow(lane->mantissa, addend, &lane->mantissa);
}

/// The state of a lane is two words, stored as all exponents and then all mantissas.
class FloatOperation : public LaneOperation {
 public:
  explicit FloatOperation(bool exact) : exact_(exact) {}

  void Set(const Packet& packet, std::span<uint32_t> state) const override {
    const size_t lanes = state.size() / 2;
    LoadLanes(packet.payload, Little(packet.header), state.first(lanes));
    for (size_t i = 0; i < lanes; ++i) Store(UnpackFloat(state[i]), i, state);
  }

  bool Add(const Packet& packet, std::span<uint32_t> state) const override {
    const size_t lanes = state.size() / 2;
    bool fits = true;
    for (size_t i = 0; i < lanes; ++i) {
      uint32_t bits;
      LoadLanes(packet.payload.subspan(i * 4), Little(packet.header), {&bits, 1});
      FloatLane lane = {.exponent = static_cast<int32_t>(state[i]),
                        .mantissa = static_cast<int32_t>(state[lanes + i])};
      const FloatLane addend = UnpackFloat(bits);
      fits &= exact_ ? AddFloatExact(addend, &lane) : AddFloatApproximate(addend, &lane);
      Store(lane, i, state);
    }
    return fits;
  }

  void Write(std::span<const uint32_t> state, PacketHeader* header,
             std::span<std::byte> out) const override {
    const size_t lanes = state.size() / 2;
    for (size_t i = 0; i < lanes; ++i) {
      const uint32_t bits = PackFloat({.exponent = static_cast<int32_t>(state[i]),
                                       .mantissa = static_cast<int32_t>(state[lanes + i])});
      StoreLanes({&bits, 1}, Little(*header), out.subspan(i * 4));
    }
  }

 private:
  static bool Little(const PacketHeader& header) {
    return (header.flags & kPacketLittleEndian) != 0;
  }
  static void Store(const FloatLane& lane, size_t i, std::span<uint32_t> state) {
    state[i] = static_cast<uint32_t>(lane.exponent);
    state[state.size() / 2 + i] = static_cast<uint32_t>(lane.mantissa);
  }

  const bool exact_;
};

}  // namespace

FloatLane UnpackFloat(uint32_t bits) {
  const auto exponent = static_cast<int32_t>(bits >> 23 & 255);
  if (exponent == kNotFinite) return {.exponent = kNotFinite, .mantissa = 0};
  auto mantissa = static_cast<int32_t>(bits & 0x7FFFFF);
  if (exponent != 0) mantissa |= 1 << 23;
  if (bits >> 31 != 0) mantissa = -mantissa;
  return {.exponent = std::max(exponent, 1), .mantissa = mantissa};
}

bool AddFloatExact(const FloatLane& addend, FloatLane* lane) {
  if (addend.exponent == kNotFinite || lane->exponent == kNotFinite) {
    lane->exponent = kNotFinite;
    return true;
  }
  if (addend.exponent <= lane->exponent) {
    return AddMantissa(ShiftRight(addend.mantissa, lane->exponent - addend.exponent), lane);
  }
  lane->mantissa = ShiftRight(lane->mantissa, addend.exponent - lane->exponent);
  lane->exponent = addend.exponent;
  return AddMantissa(addend.mantissa, lane);
}

bool AddFloatApproximate(const FloatLane& addend, FloatLane* lane) {
  const int32_t above = addend.exponent - lane->exponent;
  if (above <= 0 || addend.exponent == kNotFinite) return AddFloatExact(addend, lane);
  if (above <= kFloatHeadRoom) return AddMantissa(addend.mantissa * (1 << above), lane);
  *lane = addend;
  return true;
}

uint32_t PackFloat(const FloatLane& lane) {
  if (lane.exponent == kNotFinite) return kQuietNan;
  if (lane.mantissa == 0) return 0;
  const uint32_t sign = lane.mantissa < 0 ? 1u << 31 : 0;
  // Negate as unsigned, because the least int32 has no positive counterpart.
  const uint32_t magnitude =
      sign != 0 ? 0u - static_cast<uint32_t>(lane.mantissa) : static_cast<uint32_t>(lane.mantissa);
  // Move the leading one to bit 23, unless the exponent reaches its least value before.
  int32_t shift = 8 - std::countl_zero(magnitude);  // to the right, if positive
  shift = std::max(shift, 1 - lane.exponent);
  const int32_t exponent = lane.exponent + shift;
  if (exponent >= kNotFinite) return sign | 0x7F800000;
  const uint32_t mantissa = shift >= 0 ? magnitude >> shift : magnitude << -shift;
  // A subnormal number has no leading one and exponent field 0.
  const uint32_t field = mantissa >> 23 != 0 ? static_cast<uint32_t>(exponent) : 0;
  return sign | field << 23 | (mantissa & 0x7FFFFF);
}

std::unique_ptr<LaneOperation> MakeFloatOperation(const Lease&, bool exact) {
  return std::make_unique<FloatOperation>(exact);
}

}  // namespace weir::aggregation
