// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of a job: who they are, which run they belong to, and whether all of them are here.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/job/job_view.h"
#include "controller/job/rank_said.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

struct Member {
  std::string node;
  uint32_t pid = 0;
  bool connected = false;
  bool gone = false;
  uint64_t step = 0;
  uint64_t plan_version = 0;
  FramesProtected protection = FramesProtected::kNotSaid;
  uint32_t unauthenticated_peers = 0;
};

/// Not thread-safe.
class Membership {
 public:
  explicit Membership(std::string job) : job_(std::move(job)) {}

  /// Takes over the state that a former controller stored; ranks report the rest.
  void Recover(const JobView& stored);

  /// Whether `hello` belongs to the run that is attached; see Job::OnRankHello for the errors.
  Status CheckIdentity(const std::string& node, const RankGreeting& hello) const;
  /// True: `hello` begins another incarnation of the job. kFailedPrecondition: it contradicts the
  /// ranks that are attached.
  StatusOr<bool> BeginsAnother(const std::string& node, const RankGreeting& hello) const;
  /// Forgets all ranks: those of the incarnation of `hello` are other ones.
  void Begin(const RankGreeting& hello);
  void Admit(const std::string& node, const RankGreeting& hello);
  void Gone(int rank);
  /// The ranks that were connected through `node` and no longer are.
  std::vector<int> LoseNode(const std::string& node);
  /// False: that refusal was told of already; it comes again with every attempt.
  bool IsNewRefusal(const std::string& reason);

  /// Null: no such rank.
  Member* Find(int rank);
  const Member* Find(int rank) const;
  const std::map<int, Member>& all() const { return members_; }
  int world() const { return world_; }
  /// Whether some rank has greeted this controller.
  bool begun() const { return begun_; }
  bool complete() const;
  bool attached() const;  // some rank is connected
  /// "running", "waiting", "lost" or "ended".
  std::string state() const;
  std::vector<std::string> nodes() const;
  bool UsesNode(const std::string& node) const;
  /// Whether that node speaks for that rank. What others say of it is not to be listened to.
  bool HasRankOn(int rank, const std::string& node) const;
  /// As the first rank of this incarnation said.
  const JobLabels& labels() const { return labels_; }
  /// The step of rank 0; 0: it is not here.
  uint64_t first_step() const;
  /// Ranks, world, step, key and protection. A job is protected as its least protected rank is.
  void Fill(JobView* out) const;

 private:
  std::string Describe() const;

  const std::string job_;
  static constexpr size_t kRefusalsMax = 256;
  int world_ = 0;
  uint64_t epoch_ = 0;      // of the mesh that its ranks formed, see RankHello in rank.proto
  std::string public_key_;  // that its ranks prove, see RankProof; empty: they have none
  JobLabels labels_;
  bool begun_ = false;
  std::map<int, Member> members_;
  std::set<std::string> refusals_;  // that were told of
};

}  // namespace weir
