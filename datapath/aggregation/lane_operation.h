#pragma once
// What an aggregator does with the lanes of a round: the part of a slot pool that differs between
// modes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "datapath/aggregation/lease.h"

namespace weir::aggregation {

/// Immutable, thread-safe; the state belongs to the caller: StateWords(lease) words, undefined
/// before the first contribution. It lies apart from the packet, and from `out` unless
/// SumsInPlace(), where it may begin where `out` does. All O(lanes), no allocation, none fails: the
/// packet fits the lease and has lanes.
class LaneOperation {
 public:
  virtual ~LaneOperation() = default;

  /// The state is as long as the lanes of the reply and may be kept in them: half the memory.
  virtual bool SumsInPlace() const { return false; }

  /// state = the first contribution to a round. It overwrites, so that no pass clears.
  virtual void Set(const Packet& packet, std::span<uint32_t> state) const = 0;

  /// Adds a further one. False when some lane did not fit.
  virtual bool Add(const Packet& packet, std::span<uint32_t> state) const = 0;

  /// Writes the sum to a payload of PayloadBytes(*header) octets, after setting header->detail
  /// where the mode has something to say there. `out` has room for any.
  virtual void Write(std::span<const uint32_t> state, PacketHeader* header,
                     std::span<std::byte> out) const = 0;

  /// Add of the last contribution and Write, after which the state is undefined: nobody asks for it
  /// again. An override saves a pass.
  virtual bool AddAndWrite(const Packet& packet, std::span<uint32_t> state, PacketHeader* header,
                           std::span<std::byte> out) const {
    const bool fits = Add(packet, state);
    Write(state, header, out);
    return fits;
  }
};

/// For a lease that is valid. kFloat adds exactly with `exact`, else as a switch that can shift
/// only the incoming number (FPISA-A).
std::unique_ptr<LaneOperation> MakeLaneOperation(const Lease& lease, bool exact_floats = true);

/// The operation of kFloat, see float_lanes.cc.
std::unique_ptr<LaneOperation> MakeFloatOperation(const Lease& lease, bool exact);

}  // namespace weir::aggregation
