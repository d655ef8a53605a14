// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agents' stream. Handlers only hand messages to the executor; at most one message of a stream
// waits there, so a fast agent is slowed by flow control instead of filling memory.

#include <memory>

#include "controller/server/agent_api.h"
#include "controller/server/executor.h"
#include "weir/v1/agent.grpc.pb.h"

namespace weir {

/// The callback service. `executor` and `agents` must outlive the server that carries it.
class AgentServiceImpl : public v1::AgentService::CallbackService {
 public:
  /// Messages waiting for one slow agent; beyond it the stream ends and the agent starts afresh.
  static constexpr size_t kWriteQueueMax = 4096;

  AgentServiceImpl(Executor& executor, AgentApi& agents) : executor_(executor), agents_(agents) {}

  grpc::ServerBidiReactor<v1::AgentMessage, v1::ControllerMessage>* Connect(
      grpc::CallbackServerContext* context) override;

 private:
  Executor& executor_;
  AgentApi& agents_;
};

}  // namespace weir
