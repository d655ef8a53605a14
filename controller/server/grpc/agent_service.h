// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agents' stream. Handlers only hand messages to the executor; at most one message of a stream
// waits there, so a fast agent is slowed by flow control instead of filling memory. A message
// counts as a sign of life when it arrives, however long it waits.

#include <memory>

#include "controller/server/admin_calls.h"
#include "controller/server/auth/authenticator.h"
#include "controller/server/executor.h"
#include "controller/server/grpc/admission.h"
#include "controller/server/grpc/local_callers.h"
#include "controller/server/served_plane.h"
#include "weir/v1/agent.grpc.pb.h"

namespace weir {

/// Initial metadata of an agent's stream: the term of the leader, which grows from one to the next.
inline constexpr const char* kTermMetadata = "weir-term";
/// Trailing metadata of what a standby refuses: where gRPC of the leader is.
inline constexpr const char* kLeaderMetadata = "weir-leader";

/// The callback service. Only a leader takes streams. A stream may only name a node that its caller
/// speaks for (RequireNode). All referenced objects must outlive the server that carries it.
class AgentServiceImpl : public v1::AgentService::CallbackService {
 public:
  /// Messages waiting for one slow agent; beyond it the stream ends and the agent starts afresh.
  static constexpr size_t kWriteQueueMax = 4096;

  /// Messages of one stream within a second; the next ones are read later.
  static constexpr int kMessagesPerSecondMax = 10000;

  /// Trailing metadata of a refused greeting: after how many milliseconds the agent shall come
  /// back.
  static constexpr const char* kRetryAfter = "weir-retry-after-ms";

  AgentServiceImpl(Executor& executor, ServedPlane& served, AdminCalls& calls,
                   Authenticator& authenticator, const LocalCallers& local, AdmissionLimits limits)
      : executor_(executor),
        served_(served),
        calls_(calls),
        authenticator_(authenticator),
        local_(local),
        admission_(limits) {}

  grpc::ServerBidiReactor<v1::AgentMessage, v1::ControllerMessage>* Connect(
      grpc::CallbackServerContext* context) override;

 private:
  Executor& executor_;
  ServedPlane& served_;
  AdminCalls& calls_;
  Authenticator& authenticator_;
  const LocalCallers& local_;
  Admission admission_;
};

}  // namespace weir
