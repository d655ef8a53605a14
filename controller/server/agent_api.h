// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agents' side of a fleet: takes their messages apart. Orders go the other way through
// AgentLink.

#include <memory>
#include <string>

#include "controller/fleet/fleet.h"
#include "controller/server/store_journal.h"
#include "datapath/base/log_limit.h"
#include "weir/v1/agent.pb.h"

namespace weir {

/// Not thread-safe: all calls on the executor's thread. The references outlive it.
class AgentApi {
 public:
  AgentApi(Fleet& fleet, StoreJournal& journal) : fleet_(fleet), journal_(journal) {}

  /// The first message of a stream is NodeHello. An error ends the stream.
  Status OnMessage(const std::shared_ptr<AgentLink>& link, const v1::AgentMessage& message);
  void OnClosed(const std::shared_ptr<AgentLink>& link) { fleet_.OnAgentClosed(link); }

 private:
  void OnFromRank(const std::string& node, const v1::FromRank& message);
  void LearnCapabilities(const v1::Capabilities& capabilities);
  void RefuseRank(const std::string& node, const v1::FromRank& message, const Status& why);

  Fleet& fleet_;
  StoreJournal& journal_;
  LogLimit refusals_;
};

}  // namespace weir
