// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/peer.h"

#include <utility>

namespace weir::mesh {

Peer::Peer(int self, int peer, const TransportAddress& address, bool checks_payload,
           FrameChannel channel)
    : out_(self, checks_payload, std::move(channel.sealer)),
      in_(peer, StrCat("rank ", peer, " (", address, ")"), checks_payload,
          std::move(channel.opener)),
      last_received_(RealClock().Now()),
      last_sent_(last_received_) {}

std::string Peer::DescribeWait(const Operation& op, TimePoint now) const {
  const auto ago = [now](TimePoint then) { return StrCat(ToSeconds(now - then), " s ago"); };
  if (op.send) {
    return StrCat(name(), " takes no more data: ", op.payload.size(),
                  " bytes to send, last accepted ", ago(last_sent_), ", last received ",
                  ago(last_received_));
  }
  return StrCat("no answer from ", name(), ": last received anything ", ago(last_received_),
                in_.in_frame()
                    ? StrCat(", in the middle of a frame of ", in_.header().payload_bytes, " bytes")
                    : "");
}

}  // namespace weir::mesh
