// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operations of an aggregator on the lanes of a round. This is the part of a slot pool that
// differs between modes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "datapath/aggregation/lease.h"

namespace weir::aggregation {

/// Immutable and thread-safe; the caller owns the state. It has StateWords(lease) words, undefined
/// before the first contribution. It does not overlap the packet, and overlaps `out` only where
/// SumsInPlace(), where it may begin at the same address. Every packet fits the lease and has
/// lanes, so no call fails. All are O(lanes) and allocate nothing.
class LaneOperation {
 public:
  virtual ~LaneOperation() = default;

  /// Returns whether the state is as long as the lanes of the reply and may be kept there, which
  /// halves the memory.
  virtual bool SumsInPlace() const { return false; }

  /// Sets the state to the first contribution to a round. It overwrites, so the state needs no
  /// clearing.
  virtual void Set(const Packet& packet, std::span<uint32_t> state) const = 0;

  /// Adds another contribution. Returns false when some lane overflowed.
  virtual bool Add(const Packet& packet, std::span<uint32_t> state) const = 0;

  /// Writes the sum to a payload of PayloadBytes(*header) octets, after setting header->detail in
  /// modes that use it. `out` has room for the payload of any mode.
  virtual void Write(std::span<const uint32_t> state, PacketHeader* header,
                     std::span<std::byte> out) const = 0;

  /// Does Add of the last contribution and Write. The state is undefined afterwards, because it is
  /// not needed any more. An override saves a pass.
  virtual bool AddAndWrite(const Packet& packet, std::span<uint32_t> state, PacketHeader* header,
                           std::span<std::byte> out) const {
    const bool fits = Add(packet, state);
    Write(state, header, out);
    return fits;
  }
};

/// The operation for a valid lease. kFloat adds exactly where `exact_floats`, or else like a switch
/// that can shift only the incoming number (FPISA-A).
std::unique_ptr<LaneOperation> MakeLaneOperation(const Lease& lease, bool exact_floats = true);

/// The operation of mode kFloat; see float_lanes.cc.
std::unique_ptr<LaneOperation> MakeFloatOperation(const Lease& lease, bool exact);

}  // namespace weir::aggregation
