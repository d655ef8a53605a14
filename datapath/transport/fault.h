#pragma once
// A decorator that makes any transport misbehave on purpose: late, lost and corrupt frames and a
// sudden death, drawn from a seed, so that a failure found once can be repeated.

#include <cstdint>
#include <map>
#include <memory>

#include "datapath/transport/transport.h"

namespace weir {

/// What may happen to frames on their way to one peer. Probabilities are per frame, 0..1.
struct PeerFaults {
  double delay_probability = 0;
  Duration delay_max{};         // uniform in [0, delay_max]
  double drop_probability = 0;  // the frame is never sent; the receiver's deadline names us
  double corrupt_probability =
      0;  // a payload that does not match its checksum; the receiver names us
};

struct FaultOptions {
  uint64_t seed = 0;
  int rank = -1;  // the faulty rank; -1: every rank
  PeerFaults every_peer;
  std::map<int, PeerFaults> peers;       // by rank; replace every_peer
  uint64_t disconnect_after_frames = 0;  // crash after so many frames to any peer; 0: never
  uint64_t drop_frame = 0;               // the number of a frame to drop, from 1; 0: none
};

/// Makes transports of `inner` that follow `options`; `inner` outlives the factory and its
/// transports. The fault of the n-th frame to a peer depends on (seed, rank, peer, n) alone. A
/// delay blocks the posting thread: it models a slow rank, not a long wire.
std::unique_ptr<TransportFactory> MakeFaultFactory(const TransportFactory& inner,
                                                   FaultOptions options);

}  // namespace weir
