// SPDX-License-Identifier: Apache-2.0
#include "agent/rank_claims.h"

#include <algorithm>

#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/status.h"

namespace weir::agent {
namespace {

constexpr size_t kProcessesMax = 1024;
// For conditions that end by themselves: a previous connection whose end has not been noticed, or
// survivors that have not sent the epoch yet which a newcomer to their mesh sends.
constexpr double kRetrySoon_s = 2;

v1::RankRefusal Refusal(std::string reason, double retry_after_s = 0) {
  v1::RankRefusal refusal;
  refusal.set_reason(std::move(reason));
  refusal.set_retry_after_s(retry_after_s);
  return refusal;
}

bool SameProcess(const RankPeer& a, const RankPeer& b) {
  return a.is_local && b.is_local && a.pid != 0 && a.pid == b.pid && a.uid == b.uid &&
         !(a.ended && a.ended());
}

bool Ended(const RankPeer& peer) { return peer.ended && peer.ended(); }

std::string Subject(const v1::RankHello& hello) {
  return StrCat("rank ", hello.rank(), " of job '", hello.job(), "'");
}

}  // namespace

std::optional<v1::RankRefusal> RankClaims::CheckProof(const v1::RankHello& hello,
                                                      const RankPeer& peer) const {
  if (!hello.has_proof()) return std::nullopt;
  const RankStatement statement{hello.job(),   node_,         hello.rank(),
                                hello.world(), hello.epoch(), peer.challenge};
  const RankProof proof{hello.proof().public_key(), hello.proof().node(), hello.proof().challenge(),
                        hello.proof().signature()};
  const Status proven = CheckRankProof(statement, proof);
  if (proven.ok()) return std::nullopt;
  return Refusal(StrCat(Subject(hello), " on node '", node_, "': ", peer.name,
                        " did not prove the job's key: ", Message(proven)));
}

std::optional<v1::RankRefusal> RankClaims::CheckRun(const Run& run, const v1::RankHello& hello,
                                                    const RankPeer& peer) const {
  const uint32_t rank = run.claims.begin()->first;
  const Claim& first = run.claims.begin()->second;
  const auto other_run = [&](const std::string& difference) {
    return Refusal(StrCat(Subject(hello), " on node '", node_, "': ", peer.name, " ", difference,
                          "; the name belongs to the run of ", first.peer.name, ", rank ", rank,
                          ", as long as that is attached. Give the other run a job name of its "
                          "own, or start it after this one has ended"));
  };
  if (hello.proof().public_key() != run.public_key) {
    if (run.public_key.empty()) return other_run("has a job key and this job runs without one");
    return other_run(hello.has_proof() ? "proves another job key" : "does not prove the job's key");
  }
  if (!run.public_key.empty()) return std::nullopt;  // the checks below replace a proof
  if (peer.is_local && first.peer.is_local && peer.uid != first.peer.uid) {
    return other_run("is another user's");
  }
  uint64_t epoch = 0;
  for (const auto& [number, claim] : run.claims) epoch = std::max(epoch, claim.epoch);
  const bool held_a_rank =
      std::any_of(run.processes.begin(), run.processes.end(),
                  [&](const RankPeer& process) { return SameProcess(process, peer); });
  if (hello.epoch() <= epoch || held_a_rank) return std::nullopt;
  return Refusal(StrCat(Subject(hello), " on node '", node_, "': ", peer.name, " says epoch ",
                        hello.epoch(), " of a job without a key that runs in epoch ", epoch,
                        "; there only a process that has held one of its ranks is believed"),
                 kRetrySoon_s);
}

std::optional<v1::RankRefusal> RankClaims::CheckHolder(const Run& run, const Claim& holder,
                                                       const v1::RankHello& hello,
                                                       const RankPeer& peer) const {
  if (SameProcess(holder.peer, peer) || Ended(holder.peer)) return std::nullopt;
  // CheckRun has accepted the epoch for the run, if not for this rank: a replacement takes the
  // place of a rank that has not followed its mesh, and is a process that has held no rank yet.
  if (hello.epoch() > holder.epoch) return std::nullopt;
  const bool both_remote = !holder.peer.is_local && !peer.is_local;
  const bool processes_known = holder.peer.pid != 0 && peer.pid != 0;
  // Where the kernel does not name the processes, the job's key identifies the rank or, on TCP
  // without a key, the agent's token. A restarted rank must not wait for the end of a connection
  // that nobody notices.
  if (!processes_known && (both_remote || !run.public_key.empty())) return std::nullopt;
  return Refusal(StrCat(Subject(hello), " on node '", node_, "' belongs to ", holder.peer.name,
                        ", which is attached; ", peer.name,
                        " cannot take it over. If this is another run, give it a job name of its "
                        "own; if it replaces that process, end that one first"),
                 processes_known ? 0 : kRetrySoon_s);
}

std::optional<v1::RankRefusal> RankClaims::Check(ConnectionId connection,
                                                 const v1::RankHello& hello,
                                                 const RankPeer& peer) const {
  if (auto refusal = CheckProof(hello, peer)) return refusal;
  const auto run = runs_.find(hello.job());
  if (run == runs_.end()) return std::nullopt;
  if (auto refusal = CheckRun(run->second, hello, peer)) return refusal;
  const auto holder = run->second.claims.find(hello.rank());
  if (holder == run->second.claims.end() || holder->second.connection == connection) {
    return std::nullopt;
  }
  return CheckHolder(run->second, holder->second, hello, peer);
}

void RankClaims::Hold(ConnectionId connection, const v1::RankHello& hello, const RankPeer& peer) {
  Run& run = runs_[hello.job()];
  if (run.claims.empty()) run.public_key = hello.proof().public_key();
  run.claims[hello.rank()] = {connection, peer, hello.epoch()};
  if (!run.public_key.empty() || peer.pid == 0) return;
  std::erase_if(run.processes, [&](const RankPeer& process) {
    return Ended(process) || SameProcess(process, peer);
  });
  if (run.processes.size() >= kProcessesMax) run.processes.erase(run.processes.begin());
  run.processes.push_back(peer);
}

void RankClaims::Release(const std::string& job, uint32_t rank) {
  const auto run = runs_.find(job);
  if (run == runs_.end()) return;
  run->second.claims.erase(rank);
  if (run->second.claims.empty()) runs_.erase(run);
}

}  // namespace weir::agent
