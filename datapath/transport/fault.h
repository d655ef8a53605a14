// SPDX-License-Identifier: Apache-2.0
#pragma once
// A decorator that injects faults into any transport: late, lost and corrupt frames and a crash. A
// seed determines them, so that a failure can be reproduced.

#include <cstdint>
#include <map>
#include <memory>

#include "datapath/transport/transport.h"

namespace weir {

/// The faults that may happen to frames on their way to one peer. Probabilities are per frame,
/// 0..1.
struct PeerFaults {
  double delay_probability = 0;
  Duration delay_max{};         // delays are uniform in [0, delay_max]
  double drop_probability = 0;  // the frame is not sent; the receiver's deadline names this rank
  double corrupt_probability =
      0;  // the payload does not match its checksum; the receiver names this rank
};

struct FaultOptions {
  uint64_t seed = 0;
  int rank = -1;  // the faulty rank; -1: every rank
  PeerFaults every_peer;
  std::map<int, PeerFaults> peers;       // by rank; these replace every_peer
  uint64_t disconnect_after_frames = 0;  // crash after this many frames to all peers; 0: never
  uint64_t drop_frame = 0;               // the number of a frame to drop, from 1; 0: none
};

/// Makes transports of `inner` that follow `options`; `inner` outlives the factory and its
/// transports. The fault of the n-th frame to a peer depends on (seed, rank, peer, n) alone. A
/// delay blocks the posting thread: it models a slow rank, not a long wire.
std::unique_ptr<TransportFactory> MakeFaultFactory(const TransportFactory& inner,
                                                   FaultOptions options);

}  // namespace weir
