#pragma once
// Decides which connection may speak for which rank on this node. It has no socket, clock or
// thread.
//
// A rank belongs to the process that attached it. What tells processes and runs apart is the kernel
// (process and user at the other end of a Unix socket) and a proof of the run's key, signed over a
// challenge that each connection gets afresh. proto/WIRE.md section 2 says what that protects from.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weir/v1/rank.pb.h"

namespace weir::agent {

/// One connection of a rank to this agent; never reused within a process.
using ConnectionId = uint64_t;

/// Describes the process at the other end of a connection, as the kernel reports it.
struct RankPeer {
  std::string name = "a client";  // for people: "process 12 of user 1000", "10.0.0.5:40000"
  bool is_local = false;          // on a Unix socket; else TCP, where only a token was shown
  uint32_t pid = 0;               // 0: TCP, or a process that this agent's namespace cannot see
  uint32_t uid = 0;               // of is_local
  std::string challenge;          // that was sent on this connection
  std::function<bool()> ended;    // whether that process has ended; empty: nobody can say
};

/// Not thread-safe. Holds one claim for each attached rank; a run is forgotten with its last claim.
class RankClaims {
 public:
  explicit RankClaims(std::string node) : node_(std::move(node)) {}

  /// Nothing: `hello` may stand for its rank. Else why not, which names job, rank and processes and
  /// says what to do. A rank that another living process holds is given up only to a higher epoch
  /// that is believed. Epochs above those of a run's claims are believed with a proof of the run's
  /// key, or, in a run without a key, from a process that has held one of its ranks, which it
  /// can be only where the kernel names it. Up to the run's epoch anybody who may attach may take
  /// the place of a rank that is still in a former one.
  std::optional<v1::RankRefusal> Check(ConnectionId connection, const v1::RankHello& hello,
                                       const RankPeer& peer) const;
  /// After Check agreed: the rank belongs to this connection, whoever held it before.
  void Hold(ConnectionId connection, const v1::RankHello& hello, const RankPeer& peer);
  /// The connection has ended or was replaced.
  void Release(const std::string& job, uint32_t rank);

 private:
  struct Claim {
    ConnectionId connection = 0;
    RankPeer peer;
    uint64_t epoch = 0;
  };
  struct Run {
    std::string public_key;  // empty: without a key
    std::map<uint32_t, Claim> claims;
    std::vector<RankPeer> processes;  // that held a rank of it, living ones; without a key
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
