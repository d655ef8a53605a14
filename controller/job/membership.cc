// SPDX-License-Identifier: Apache-2.0
#include "controller/job/membership.h"

#include <algorithm>

#include "controller/job/bounds.h"
#include "datapath/base/identity/rank_proof.h"

namespace weir {

void Membership::Recover(const JobView& stored) {
  world_ = std::min(stored.world, kWorldMax);
  labels_ = stored.labels;
  for (const RankView& rank : stored.ranks) {
    Member member;
    member.node = rank.node;
    member.step = rank.step;
    member.plan_version = rank.plan_version;
    member.gone = stored.state == "ended";
    members_[rank.rank] = member;
  }
}

// "rank 0 on node a (process 71), rank 1 on node b (process 5) and 6 more".
std::string Membership::Describe() const {
  constexpr int kNamedMax = 4;
  std::string text;
  int count = 0;
  for (const auto& [rank, member] : members_) {
    if (!member.connected || ++count > kNamedMax) continue;
    text += StrCat(text.empty() ? "" : ", ", "rank ", rank, " on node ", member.node, " (process ",
                   member.pid, ")");
  }
  return count <= kNamedMax ? text : StrCat(text, " and ", count - kNamedMax, " more");
}

Status Membership::CheckIdentity(const std::string& node, const RankGreeting& hello) const {
  const std::string who = StrCat("rank ", hello.rank, " on node ", node, " (process ", hello.pid,
                                 ") of job '", job_, "'");
  if (hello.proof.has_value()) {
    const Status proven =
        CheckRankProof({job_, node, static_cast<uint32_t>(hello.rank),
                        static_cast<uint32_t>(hello.world), hello.epoch, hello.proof->challenge},
                       *hello.proof);
    if (!proven.ok()) {
      return InvalidArgument(StrCat(who, " did not prove the job's key: ", Message(proven)));
    }
  }
  if (!begun_ || !attached()) return OkStatus();
  if (hello.public_key() != public_key_) {
    const std::string_view difference = public_key_.empty() ? "has a job key and this job has none"
                                        : hello.proof.has_value() ? "proves another job key"
                                                                  : "does not prove the job's key";
    return FailedPrecondition(StrCat(who, " ", difference, ": it is of another run than ",
                                     Describe(), ". Give one of the two a job name of its own"));
  }
  if (!public_key_.empty() || hello.epoch <= epoch_ || UsesNode(node)) return OkStatus();
  return Unavailable(StrCat(who, " says epoch ", hello.epoch, ", and ", Describe(),
                            " are in epoch ", epoch_,
                            ": without a job key only nodes that carry the job are believed"));
}

StatusOr<bool> Membership::BeginsAnother(const std::string& node, const RankGreeting& hello) const {
  if (!begun_) return true;
  const Member* known = Find(hello.rank);
  // A process id may repeat in containers; a step that runs backwards cannot.
  const bool restarted = known != nullptr && known->pid != 0 &&
                         (known->pid != hello.pid || hello.step + 2 < known->step);
  // Survivors and replacements, renumbered: what is known of rank numbers is of other ranks.
  const bool formed_anew = hello.epoch > epoch_;
  if (!restarted && hello.epoch < epoch_ && attached()) {
    return FailedPrecondition(StrCat("job '", job_, "' runs in epoch ", epoch_, ", rank ",
                                     hello.rank, " of node ", node, " says ", hello.epoch));
  }
  if (!restarted && !formed_anew && hello.world != world_ && attached()) {
    return FailedPrecondition(StrCat("job '", job_, "' runs with world size ", world_, ", rank ",
                                     hello.rank, " of node ", node, " says ", hello.world));
  }
  if (!formed_anew && known != nullptr && known->connected && known->node != node) {
    return FailedPrecondition(
        StrCat("rank ", hello.rank, " of job '", job_, "' is attached on node ", known->node,
               " by process ", known->pid, "; process ", hello.pid, " on node ", node,
               " must wait until that one has left, or use another job name"));
  }
  return restarted || formed_anew || hello.public_key() != public_key_ || hello.world != world_;
}

void Membership::Begin(const RankGreeting& hello) {
  begun_ = true;
  members_.clear();
  refusals_.clear();
  labels_ = hello.labels;
  world_ = hello.world;
  epoch_ = hello.epoch;
  public_key_ = hello.public_key();
}

void Membership::Admit(const std::string& node, const RankGreeting& hello) {
  Member& member = members_[hello.rank];
  member.node = node;
  member.pid = hello.pid;
  member.connected = true;
  member.gone = false;
  member.step = std::max(member.step, hello.step);
  member.plan_version = hello.active_plan_version;
  member.protection = hello.protection;
  member.unauthenticated_peers = hello.unauthenticated_peers;
}

void Membership::Gone(int rank) {
  Member* member = Find(rank);
  if (member == nullptr) return;
  member->connected = false;
  member->gone = true;
}

std::vector<int> Membership::LoseNode(const std::string& node) {
  std::vector<int> lost;
  for (auto& [rank, member] : members_) {
    if (member.node != node || !member.connected) continue;
    member.connected = false;
    lost.push_back(rank);
  }
  return lost;
}

bool Membership::IsNewRefusal(const std::string& reason) {
  if (refusals_.size() >= kRefusalsMax) refusals_.clear();
  return refusals_.insert(reason).second;
}

Member* Membership::Find(int rank) {
  const auto found = members_.find(rank);
  return found == members_.end() ? nullptr : &found->second;
}

const Member* Membership::Find(int rank) const {
  const auto found = members_.find(rank);
  return found == members_.end() ? nullptr : &found->second;
}

bool Membership::complete() const {
  if (world_ == 0 || static_cast<int>(members_.size()) != world_) return false;
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& member) { return member.second.connected; });
}

bool Membership::attached() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& member) { return member.second.connected; });
}

std::string Membership::state() const {
  if (complete()) return "running";
  if (members_.empty() || attached()) return "waiting";
  const bool ended =
      std::all_of(members_.begin(), members_.end(), [](const auto& m) { return m.second.gone; });
  return ended ? "ended" : "lost";
}

std::vector<std::string> Membership::nodes() const {
  std::set<std::string> names;
  for (const auto& [rank, member] : members_) names.insert(member.node);
  return {names.begin(), names.end()};
}

bool Membership::UsesNode(const std::string& node) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const auto& member) { return member.second.node == node; });
}

bool Membership::HasRankOn(int rank, const std::string& node) const {
  const Member* member = Find(rank);
  return member != nullptr && member->node == node;
}

uint64_t Membership::first_step() const {
  const Member* first = Find(0);
  return first == nullptr ? 0 : first->step;
}

void Membership::Fill(JobView* out) const {
  out->world = world_;
  out->labels = labels_;
  out->state = state();
  out->key_id = KeyId(public_key_);
  std::optional<FramesProtected> least;
  for (const auto& [rank, member] : members_) {
    out->ranks.push_back(
        {rank, member.node, member.connected, member.step, member.plan_version, 1});
    out->step = std::max(out->step, member.step);
    least = std::min(least.value_or(member.protection), member.protection);
    out->unauthenticated_peers = std::max(out->unauthenticated_peers, member.unauthenticated_peers);
  }
  out->protection = least.value_or(FramesProtected::kNotSaid);
  out->unauthenticated_peers = std::min<uint32_t>(out->unauthenticated_peers, kWorldMax);
}

}  // namespace weir
