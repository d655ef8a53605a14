#pragma once
// What a job was granted on an aggregator: both sides work by the same terms.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/aggregation/packet.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::aggregation {

/// Four-bit indices name levels: indices are added as levels[index].
inline constexpr size_t kTableLevels = 16;

/// No round waits longer for workers that are late, where it does not wait for ever.
inline constexpr Duration kCutoffMax = std::chrono::seconds(60);

/// A range of slots for one job, from its grant to its end. A worker that lost its place, or any
/// change, takes another epoch for the whole job: slots and rounds then start afresh.
struct Lease {
  uint16_t id = 0;
  uint32_t epoch = 0;   // grows with every grant of this id; from 1
  uint64_t cookie = 0;  // unguessable
  PacketMode mode = PacketMode::kSum;
  int workers = 0;                   // 1 .. kWorkersMax
  int world = 0;                     // kSum, kMax: below the root of a tree; 0: workers
  uint16_t slots = 0;                // packets that a worker may have under way; at least 1
  uint16_t lanes = kPacketLanesMax;  // per packet; kSparse: per block
  uint8_t columns = 0;               // kSparse: blocks per packet
  int sum_bits = 0;                  // kTable: 8 or 16
  std::vector<uint8_t> levels = {};  // kTable: kTableLevels; workers * greatest fits sum_bits
  // kTable: after cutoff, at most kCutoffMax, quorum workers make a round complete; 0 and 0: all.
  int quorum = 0;
  Duration cutoff = Duration::zero();
  bool little_endian = false;
  bool checked = true;  // packets without a checksum that counts are dropped
};

/// "sum", "max", "table", "sparse" or "float": how leases are written down. Static text.
/// Thread-safe.
std::string_view ModeName(PacketMode mode);

/// The inverse. kInvalidArgument: lists the modes and what was found. Thread-safe.
StatusOr<PacketMode> ParseMode(std::string_view name);

/// Workers whose contributions a reply holds.
inline int WorldOf(const Lease& lease) { return lease.world == 0 ? lease.workers : lease.world; }

/// Whether the terms make sense together. kInvalidArgument names field, expected and found. O(1).
Status Validate(const Lease& lease);

/// Whether a packet fits the lease: identity, mode, shape, byte order and slot; not who sends it.
/// O(1), no allocation.
bool Fits(const Lease& lease, const PacketHeader& header);

/// A request's header with everything that the lease decides.
PacketHeader RequestHeader(const Lease& lease);

/// Words of 32 bits that an aggregator keeps per slot and set.
size_t StateWords(const Lease& lease);

}  // namespace weir::aggregation
