// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which connection may represent which rank on this node. It has no socket, clock or
// thread.
//
// A rank belongs to the process that attached it. Processes and runs are distinguished by the
// kernel (process and user at the other end of a Unix socket) and by a proof of the run's key,
// which signs a new challenge for each connection. proto/WIRE.md section 2 describes which attacks
// that prevents.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weir/v1/rank.pb.h"

namespace weir::agent {

/// A connection of a rank to this agent. Ids are never reused within a process.
using ConnectionId = uint64_t;

/// The process at the other end of a connection, as the kernel reports it.
struct RankPeer {
  std::string name = "a client";  // for messages: "process 12 of user 1000", "10.0.0.5:40000"
  bool is_local = false;          // on a Unix socket; else TCP, authenticated only by a token
  uint32_t pid = 0;               // 0: TCP, or a process outside this agent's namespace
  uint32_t uid = 0;               // if is_local
  std::string challenge;          // as sent on this connection
  std::function<bool()> ended;    // whether that process has ended; empty: unknown
};

/// Not thread-safe. Holds one claim for each attached rank. A run is dropped with its last claim.
class RankClaims {
 public:
  explicit RankClaims(std::string node) : node_(std::move(node)) {}

  /// Returns nothing if the connection may represent the rank of `hello`. Otherwise returns the
  /// reason, which names job, rank and processes and says what to do.
  /// A rank that another living process holds is only given up to a higher epoch that is accepted.
  /// Epochs above those of the run's claims are accepted with a proof of the run's key or, in a run
  /// without a key, from a process that has held one of its ranks, which requires that the kernel
  /// names the process. Up to the run's epoch, any process that may attach may take the place of a
  /// rank that is still in an earlier one.
  std::optional<v1::RankRefusal> Check(ConnectionId connection, const v1::RankHello& hello,
                                       const RankPeer& peer) const;
  /// To be called after Check has accepted: the rank belongs to this connection from now on.
  void Hold(ConnectionId connection, const v1::RankHello& hello, const RankPeer& peer);
  /// To be called when the connection has ended or was replaced.
  void Release(const std::string& job, uint32_t rank);

 private:
  struct Claim {
    ConnectionId connection = 0;
    RankPeer peer;
    uint64_t epoch = 0;
  };
  struct Run {
    std::string public_key;  // empty: a run without a key
    std::map<uint32_t, Claim> claims;
    std::vector<RankPeer> processes;  // without a key: living processes that have held a rank
  };

  std::optional<v1::RankRefusal> CheckProof(const v1::RankHello& hello, const RankPeer& peer) const;
  std::optional<v1::RankRefusal> CheckRun(const Run& run, const v1::RankHello& hello,
                                          const RankPeer& peer) const;
  std::optional<v1::RankRefusal> CheckHolder(const Run& run, const Claim& holder,
                                             const v1::RankHello& hello,
                                             const RankPeer& peer) const;

  const std::string node_;
  std::map<std::string, Run> runs_;  // by job
};

}  // namespace weir::agent
