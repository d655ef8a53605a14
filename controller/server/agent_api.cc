// SPDX-License-Identifier: Apache-2.0
#include "controller/server/agent_api.h"

#include "controller/messages/mapping.h"
#include "controller/server/fleet_mapping.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

constexpr double kRetrySoon_s = 2;  // for a rank that other ranks of its job may soon confirm

int RankOf(uint32_t rank) { return static_cast<int>(rank & 0x7fffffff); }

}  // namespace

Status AgentApi::OnMessage(const std::shared_ptr<AgentLink>& link,
                           const v1::AgentMessage& message) {
  FleetCounters& counters = fleet_.counters();
  ++counters.agent_messages;
  if (message.body_case() == v1::AgentMessage::kHello) {
    const Status accepted = fleet_.OnNodeGreeting(link, ToModel(message.hello()));
    if (!accepted.ok()) ++counters.agent_errors;
    return accepted;
  }
  const std::string name = fleet_.nodes().Heard(link.get());
  if (name.empty()) {
    ++counters.agent_errors;
    return FailedPrecondition("the first message of an agent must be NodeHello");
  }
  NodeState& node = *fleet_.nodes().Find(name);
  switch (message.body_case()) {
    case v1::AgentMessage::kRank:
      OnFromRank(name, message.rank());
      break;
    case v1::AgentMessage::kRankGone:
      fleet_.OnRankGone(name, message.rank_gone().job(), RankOf(message.rank_gone().rank()),
                        message.rank_gone().reason());
      break;
    case v1::AgentMessage::kLink:
      if (const auto report = ToModel(name, message.link())) fleet_.OnLinkReport(*report);
      break;
    case v1::AgentMessage::kProbe:
      fleet_.OnProbeResult(message.probe().probe_id(), message.probe().bytes_used());
      if (const auto report = ToModel(name, message.probe().sample())) fleet_.OnLinkReport(*report);
      break;
    case v1::AgentMessage::kHeartbeat:
      if (message.heartbeat().unix_s() > 0) {
        node.clock_ahead_s = Finite(message.heartbeat().unix_s() - node.last_seen_unix_s);
      }
      break;
    case v1::AgentMessage::kNccl:
      if (const auto sums = ToModel(message.nccl())) {
        fleet_.OnNccl(name, *sums);
      } else {
        ++counters.agent_errors;
      }
      break;
    case v1::AgentMessage::kHello:
    case v1::AgentMessage::BODY_NOT_SET:
      break;
  }
  return OkStatus();
}

void AgentApi::OnFromRank(const std::string& node, const v1::FromRank& message) {
  if (message.message().body_case() != v1::RankMessage::kHello) {
    const int rank = RankOf(message.rank());
    if (const auto said = ToModel(rank, message.message())) {
      fleet_.OnRankSaid(node, message.job(), rank, *said);
    }
    return;
  }
  const v1::RankHello& hello = message.message().hello();
  Status accepted = CheckHello(hello);
  if (accepted.ok() && (hello.job() != message.job() || hello.rank() != message.rank())) {
    accepted =
        InvalidArgument(StrCat("the envelope names job '", message.job(), "' rank ", message.rank(),
                               ", the greeting job '", hello.job(), "' rank ", hello.rank()));
  }
  if (accepted.ok()) accepted = fleet_.OnRankGreeting(node, ToModel(hello));
  if (accepted.ok()) {
    LearnCapabilities(hello.capabilities());
  } else {
    RefuseRank(node, message, accepted);
  }
}

void AgentApi::LearnCapabilities(const v1::Capabilities& capabilities) {
  if (!journal_.SaveCapabilities(capabilities).ok()) ++fleet_.counters().store_errors;
  fleet_.OnNames(NamesOf(capabilities));
}

// Only the rank is refused; its agent and the other ranks are not affected.
void AgentApi::RefuseRank(const std::string& node, const v1::FromRank& message, const Status& why) {
  ++fleet_.counters().agent_errors;
  refusals_.Log(LogLevel::kWarning, "controller",
                StrCat("rank refused on node ", node, ": ", Message(why)));
  const bool again = why.code() == StatusCode::kUnavailable;
  fleet_.nodes().Send(
      node, RefusalToRank{message.job(), message.rank(), Message(why), again ? kRetrySoon_s : 0});
}

}  // namespace weir
