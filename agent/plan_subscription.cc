// SPDX-License-Identifier: Apache-2.0
#include "agent/plan_subscription.h"

#include <algorithm>
#include <utility>

#include "datapath/base/status.h"

namespace weir::agent {
namespace {

constexpr size_t kOfferedPlansMax = 8;  // plans and lease plans
constexpr size_t kUndeliveredMax = 256;
constexpr size_t kJobNameBytesMax = 200;
constexpr uint32_t kWorldMax = 65535;

std::string CheckHello(const v1::RankHello& hello) {
  if (hello.job().empty() || hello.job().size() > kJobNameBytesMax) {
    return StrCat("expected a job name of 1 to ", kJobNameBytesMax, " bytes, found ",
                  hello.job().size());
  }
  // Messages and logs repeat the name, and a line break would let it imitate another line.
  if (std::any_of(hello.job().begin(), hello.job().end(),
                  [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    return "expected a job name without control characters";
  }
  if (hello.world() < 1 || hello.world() > kWorldMax) {
    return StrCat("expected a world of 1 to ", kWorldMax, ", found ", hello.world());
  }
  if (hello.rank() >= hello.world()) {
    return StrCat("expected a rank below the world of ", hello.world(), ", found ", hello.rank());
  }
  return "";
}

v1::AgentMessage FromRank(const RankKey& key, v1::RankMessage message) {
  v1::AgentMessage result;
  v1::FromRank& from = *result.mutable_rank();
  from.set_job(key.job);
  from.set_rank(key.rank);
  *from.mutable_message() = std::move(message);
  return result;
}

v1::AgentMessage Gone(const RankKey& key, const std::string& reason) {
  v1::AgentMessage result;
  v1::RankGone& gone = *result.mutable_rank_gone();
  gone.set_job(key.job);
  gone.set_rank(key.rank);
  gone.set_reason(reason);
  return result;
}

}  // namespace

std::string Describe(const RankKey& key) {
  return StrCat("rank ", key.rank, " of job '", key.job, "'");
}

Tier TierOf(const v1::RankMessage& message) {
  return message.has_step() || message.has_paths() ? Tier::kTelemetry : Tier::kControl;
}

Effects PlanSubscription::OnRankMessage(ConnectionId connection, v1::RankMessage message,
                                        const RankPeer& peer) {
  if (message.has_hello()) return OnHello(connection, std::move(message), peer);
  const auto known = by_connection_.find(connection);
  if (known == by_connection_.end()) {
    return {RefuseRank{connection, "expected a hello as the first message of a rank"}};
  }
  const RankKey key = known->second;
  Session& session = by_rank_.at(key);
  Effects effects;
  switch (message.body_case()) {
    case v1::RankMessage::kBuckets:
      session.buckets = message.buckets();
      break;
    case v1::RankMessage::kStep:
      session.hello.set_step(std::max(session.hello.step(), message.step().step()));
      if (message.step().plan_version() != session.hello.active_plan_version()) {
        SetActivePlan(session, message.step().plan_version());
      }
      break;
    case v1::RankMessage::kAck:
    case v1::RankMessage::kNack:
      if (!AcceptAnswer(session, message)) return {};
      break;
    case v1::RankMessage::kActive:
      ++counters_.activations;
      SetActivePlan(session, message.active().version());
      session.hello.set_step(std::max(session.hello.step(), message.active().step()));
      break;
    case v1::RankMessage::kPaths:
    case v1::RankMessage::kEvent:
      break;
    case v1::RankMessage::kHello:  // handled above
    case v1::RankMessage::kNccl:   // handled by the agent itself
    case v1::RankMessage::BODY_NOT_SET:
      ++counters_.unknown_messages;
      return {};
  }
  Forward(key, std::move(message), &effects);
  return effects;
}

Effects PlanSubscription::OnHello(ConnectionId connection, v1::RankMessage message,
                                  const RankPeer& peer) {
  const std::string problem = CheckHello(message.hello());
  if (!problem.empty()) return {RefuseRank{connection, problem}};
  const RankKey key{message.hello().job(), message.hello().rank()};
  const auto said = by_connection_.find(connection);
  if (said != by_connection_.end() && said->second != key) {
    return {RefuseRank{connection, StrCat("this connection belongs to ", Describe(said->second),
                                          " and cannot become ", Describe(key))}};
  }
  if (const auto refusal = claims_.Check(connection, message.hello(), peer)) {
    return {RefuseRank{connection, refusal->reason(), refusal->retry_after_s()}};
  }
  claims_.Hold(connection, message.hello(), peer);
  Effects effects;
  const auto old = by_rank_.find(key);
  if (old != by_rank_.end() && old->second.connection != connection) {
    ++counters_.replaced;
    effects.push_back(
        RefuseRank{old->second.connection,
                   StrCat(Describe(key), " attached again on node '", node_.node(), "' from ",
                          peer.name, ", by its own word process ", message.hello().pid(),
                          "; it takes over from process ", old->second.hello.pid())});
    by_connection_.erase(old->second.connection);
    by_rank_.erase(old);
  }
  // The rank has come back, so a notice that it is gone, if not sent yet, is wrong.
  std::erase_if(undelivered_, [&](const v1::AgentMessage& m) {
    return m.has_rank_gone() && m.rank_gone().job() == key.job && m.rank_gone().rank() == key.rank;
  });
  Session& session = by_rank_[key];
  session.connection = connection;
  session.hello = message.hello();
  if (session.hello.has_active_plan()) {
    session.offered[session.hello.active_plan_version()] = session.hello.active_plan();
  }
  by_connection_[connection] = key;
  Forward(key, std::move(message), &effects);
  return effects;
}

// Returns true if the answer is to the open offer. An ack may still become a nack, but not the
// reverse.
bool PlanSubscription::AcceptAnswer(Session& session, const v1::RankMessage& message) {
  const bool is_ack = message.has_ack();
  const uint64_t version = is_ack ? message.ack().version() : message.nack().version();
  const std::string& nonce = is_ack ? message.ack().nonce() : message.nack().nonce();
  const bool open =
      !session.open_nonce.empty() && nonce == session.open_nonce && version == session.open_version;
  const bool repeated = session.answer && (is_ack || session.answer->has_nack());
  if (!open || repeated) {
    ++counters_.stale_answers;
    return false;
  }
  ++(is_ack ? counters_.acks : counters_.nacks);
  session.answer = message;
  return true;
}

void PlanSubscription::SetActivePlan(Session& session, uint64_t version) {
  if (version != session.hello.active_plan_version()) {
    session.hello.set_active_plan_version(version);
    const auto plan = session.offered.find(version);
    if (plan != session.offered.end()) {
      *session.hello.mutable_active_plan() = plan->second;
    } else {
      session.hello.clear_active_plan();  // no plan is better than the wrong one
    }
  }
  if (session.open_version <= version) {
    session.open_nonce.clear();
    session.answer.reset();
  }
}

void PlanSubscription::Forward(const RankKey& key, v1::RankMessage message, Effects* effects) {
  const Tier tier = TierOf(message);
  if (controller_connected_) {
    effects->push_back(SendToController{FromRank(key, std::move(message)), tier});
  } else if (message.has_event()) {
    KeepUndelivered(FromRank(key, std::move(message)));
  }
  // Everything else is in the session and is sent again on connecting. Telemetry would be out of
  // date.
}

void PlanSubscription::KeepUndelivered(v1::AgentMessage message) {
  if (undelivered_.size() >= kUndeliveredMax) {
    undelivered_.pop_front();
    ++counters_.undelivered_dropped;
  }
  undelivered_.push_back(std::move(message));
}

Effects PlanSubscription::OnRankClosed(ConnectionId connection, const std::string& reason) {
  const auto known = by_connection_.find(connection);
  if (known == by_connection_.end()) return {};
  const RankKey key = known->second;
  by_connection_.erase(known);
  by_rank_.erase(key);
  claims_.Release(key.job, key.rank);
  if (!controller_connected_) {
    KeepUndelivered(Gone(key, reason));
    return {};
  }
  return {SendToController{Gone(key, reason), Tier::kControl}};
}

Effects PlanSubscription::OnControllerConnected() {
  controller_connected_ = true;
  Effects effects;
  v1::AgentMessage hello;
  *hello.mutable_hello() = node_;
  effects.push_back(SendToController{std::move(hello), Tier::kControl});
  for (const auto& [key, session] : by_rank_) {
    v1::RankMessage message;
    *message.mutable_hello() = session.hello;
    Forward(key, std::move(message), &effects);
    if (session.buckets) {
      v1::RankMessage buckets;
      *buckets.mutable_buckets() = *session.buckets;
      Forward(key, std::move(buckets), &effects);
    }
    if (session.answer) Forward(key, *session.answer, &effects);
  }
  for (v1::AgentMessage& message : undelivered_) {
    effects.push_back(SendToController{std::move(message), Tier::kControl});
  }
  undelivered_.clear();
  return effects;
}

void PlanSubscription::OnControllerLost(std::vector<v1::AgentMessage> unsent) {
  controller_connected_ = false;
  for (v1::AgentMessage& message : unsent) {
    const bool is_event = message.has_rank() && message.rank().message().has_event();
    bool is_gone = message.has_rank_gone();
    // Its hello reports a rank that has come back.
    if (is_gone) {
      is_gone = !by_rank_.contains(RankKey{message.rank_gone().job(), message.rank_gone().rank()});
    }
    if (is_event || is_gone) KeepUndelivered(std::move(message));
  }
}

Effects PlanSubscription::OnCommand(const v1::ToRank& command) {
  const RankKey key{command.job(), command.rank()};
  const auto found = by_rank_.find(key);
  if (found == by_rank_.end()) {
    return {SendToController{Gone(key, StrCat("not attached to node '", node_.node(), "'")),
                             Tier::kControl}};
  }
  Session& session = found->second;
  switch (command.command().body_case()) {
    case v1::RankCommand::kOffer: {
      const v1::PlanOffer& offer = command.command().offer();
      ++counters_.offers;
      session.open_version = offer.plan().version();
      session.open_nonce = offer.nonce();
      session.answer.reset();
      session.offered[offer.plan().version()] = offer.plan();
      if (offer.has_lease_plan())
        session.offered[offer.lease_plan().version()] = offer.lease_plan();
      while (session.offered.size() > kOfferedPlansMax) {
        auto oldest = session.offered.begin();
        if (oldest->first == session.open_version) ++oldest;
        session.offered.erase(oldest);
      }
      break;
    }
    case v1::RankCommand::kWithdraw:
      // The plan is kept, because an activation may be on its way already.
      if (session.open_version == command.command().withdraw().version()) {
        session.open_nonce.clear();
        session.answer.reset();
      }
      break;
    case v1::RankCommand::kArm:
    case v1::RankCommand::kLease:
      break;
    case v1::RankCommand::kRefusal:
      return {RefuseRank{session.connection, command.command().refusal().reason(),
                         command.command().refusal().retry_after_s()}};
    case v1::RankCommand::kChallenge:  // these are sent by the agent itself
    case v1::RankCommand::kNcclTable:
    case v1::RankCommand::BODY_NOT_SET:
      ++counters_.unknown_messages;
      return {};
  }
  return {SendToRank{session.connection, command.command()}};
}

size_t PlanSubscription::unauthenticated_rank_count() const {
  return static_cast<size_t>(std::count_if(by_rank_.begin(), by_rank_.end(), [](const auto& rank) {
    return rank.second.hello.unauthenticated_peers() > 0;
  }));
}

const RankKey* PlanSubscription::FindKey(ConnectionId connection) const {
  const auto it = by_connection_.find(connection);
  return it == by_connection_.end() ? nullptr : &it->second;
}

}  // namespace weir::agent
