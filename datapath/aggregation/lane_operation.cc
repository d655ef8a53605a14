// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/lane_operation.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/aggregation/lane_kernels.h"
#include "datapath/base/check.h"

namespace weir::aggregation {
namespace {

bool LittleEndian(const PacketHeader& header) { return (header.flags & kPacketLittleEndian) != 0; }

uint32_t LaneAt(std::span<const std::byte> payload, size_t index, bool little) {
  uint32_t value;
  std::memcpy(&value, payload.data() + index * 4, sizeof value);
  return little ? value : __builtin_bswap32(value);
}

/// Operations with one 32-bit lane in and one out.
class WordOperation : public LaneOperation {
 public:
  bool SumsInPlace() const override { return true; }
  void Set(const Packet& packet, std::span<uint32_t> state) const override {
    LoadLanes(packet.payload, LittleEndian(packet.header), state);
  }
  void Write(std::span<const uint32_t> state, PacketHeader* header,
             std::span<std::byte> out) const override {
    StoreLanes(state, LittleEndian(*header), out);
  }
};

class SumOperation : public WordOperation {
 public:
  bool Add(const Packet& packet, std::span<uint32_t> state) const override {
    return !AddLanes(packet.payload.data(), LittleEndian(packet.header), state.data(),
                     state.size());
  }
  bool AddAndWrite(const Packet& packet, std::span<uint32_t> state, PacketHeader*,
                   std::span<std::byte> out) const override {
    return !AddLanesTo(packet.payload.data(), LittleEndian(packet.header), state.data(), out.data(),
                       state.size());
  }
};

class MaxOperation : public WordOperation {
 public:
  bool Add(const Packet& packet, std::span<uint32_t> state) const override {
    RaiseLanes(packet.payload.data(), LittleEndian(packet.header), state.data(), state.size());
    return true;
  }
};

/// Sums levels[index]. Validate(lease) makes sure that they fit.
class TableOperation : public LaneOperation {
 public:
  explicit TableOperation(const Lease& lease) {
    std::copy(lease.levels.begin(), lease.levels.end(), levels_);
  }
  void Set(const Packet& packet, std::span<uint32_t> state) const override {
    std::fill(state.begin(), state.end(), 0);
    Add(packet, state);
  }
  bool Add(const Packet& packet, std::span<uint32_t> state) const override {
    AddLevels(packet.payload.data(), levels_, state.data(), state.size());
    return true;
  }
  /// The set of contributors before the lanes is written by the pool.
  void Write(std::span<const uint32_t> state, PacketHeader* header,
             std::span<std::byte> out) const override {
    std::byte* lane = out.data() + kContributorBytes;
    if (header->detail == 8) return NarrowLanes(state.data(), lane, state.size());
    for (const uint32_t sum : state) {
      const auto low = static_cast<uint16_t>(sum);
      const uint16_t value = LittleEndian(*header) ? low : __builtin_bswap16(low);
      std::memcpy(lane, &value, sizeof value);
      lane += sizeof value;
    }
  }

 private:
  uint8_t levels_[kTableLevels] = {};
};

/// The state is the set of columns with a block, the least next block of each column, and then the
/// blocks. Source: Fei et al., "Efficient sparse collective communication and its application to
/// accelerate distributed deep learning", SIGCOMM 2021, algorithm 2.
class SparseOperation : public LaneOperation {
 public:
  explicit SparseOperation(const Lease& lease) : columns_(lease.columns), lanes_(lease.lanes) {}

  void Set(const Packet& packet, std::span<uint32_t> state) const override {
    state[0] = 0;
    for (size_t j = 0; j < columns_; ++j) state[1 + j] = kNoBlock;
    Add(packet, state);
  }

  bool Add(const Packet& packet, std::span<uint32_t> state) const override {
    const bool little = LittleEndian(packet.header);
    const std::span<const std::byte> blocks = packet.payload.subspan(columns_ * 4);
    bool wrapped = false;
    size_t at = 0;
    for (size_t j = 0; j < columns_; ++j) {
      state[1 + j] = std::min(state[1 + j], LaneAt(packet.payload, j, little));
      if ((packet.header.detail >> j & 1) == 0) continue;
      const std::span<const std::byte> block = blocks.subspan(at, lanes_ * 4);
      const std::span<uint32_t> sum = state.subspan(1 + columns_ + j * lanes_, lanes_);
      if ((state[0] >> j & 1) == 0) {
        LoadLanes(block, little, sum);
      } else {
        wrapped |= AddLanes(block.data(), little, sum.data(), lanes_);
      }
      state[0] |= uint32_t{1} << j;
      at += lanes_ * 4;
    }
    return !wrapped;
  }

  void Write(std::span<const uint32_t> state, PacketHeader* header,
             std::span<std::byte> out) const override {
    const bool little = LittleEndian(*header);
    header->detail = state[0];
    StoreLanes(state.subspan(1, columns_), little, out);
    size_t at = columns_ * 4;
    for (size_t j = 0; j < columns_; ++j) {
      if ((state[0] >> j & 1) == 0) continue;
      StoreLanes(state.subspan(1 + columns_ + j * lanes_, lanes_), little, out.subspan(at));
      at += lanes_ * 4;
    }
  }

 private:
  const size_t columns_, lanes_;
};

}  // namespace

std::unique_ptr<LaneOperation> MakeLaneOperation(const Lease& lease, bool exact_floats) {
  switch (lease.mode) {
    case PacketMode::kSum:
      return std::make_unique<SumOperation>();
    case PacketMode::kMax:
      return std::make_unique<MaxOperation>();
    case PacketMode::kTable:
      return std::make_unique<TableOperation>(lease);
    case PacketMode::kSparse:
      return std::make_unique<SparseOperation>(lease);
    case PacketMode::kFloat:
      return MakeFloatOperation(lease, exact_floats);
  }
  WEIR_CHECK(false);
  return nullptr;
}

}  // namespace weir::aggregation
