// SPDX-License-Identifier: Apache-2.0
#pragma once
// One simulated agent on a real gRPC stream of its own connection, without threads of its own.

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/tiered_queue.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "tests/bench/fleet/measures.h"
#include "weir/v1/agent.grpc.pb.h"

namespace weir::fleet_bench {

/// Runs functions later, on a thread of its own. Thread-safe.
class Timer {
 public:
  virtual ~Timer() = default;
  virtual void After(double seconds, std::function<void()> task) = 0;
  virtual double Uniform() = 0;  // of [0, 1)
};

/// Connects as agents do: a first try at once, later ones after a back-off with jitter, or after
/// the time that the controller asks for. All methods are thread-safe. Never destroyed before the
/// process ends.
class LoadAgent {
 public:
  using RankCommandHandler = std::function<void(int agent, const v1::ToRank& command)>;

  LoadAgent(int index, std::string controller, Timer& timer, Measures& measures,
            RankCommandHandler on_command, std::function<std::vector<v1::AgentMessage>()> ranks);

  void Connect();
  /// No further connections; the present one ends.
  void Stop();
  /// Telemetry displaces older telemetry where the connection is slow.
  void Send(v1::AgentMessage message, agent::Tier tier);
  bool welcomed() const;
  int index() const { return index_; }

 private:
  class Stream;

  void OnMessage(const v1::ControllerMessage& message);
  void OnEnd(const grpc::Status& status, double retry_after_s);
  void Heartbeat(uint64_t connection);
  void Probe(uint64_t connection);

  const int index_;
  const std::string controller_, name_;
  Timer& timer_;
  Measures& measures_;
  const RankCommandHandler on_command_;
  const std::function<std::vector<v1::AgentMessage>()> ranks_;

  mutable Mutex mutex_;
  Stream* stream_ WEIR_GUARDED_BY(mutex_) = nullptr;
  uint64_t connection_ WEIR_GUARDED_BY(mutex_) = 0;
  bool stopped_ WEIR_GUARDED_BY(mutex_) = false;
  bool welcomed_ WEIR_GUARDED_BY(mutex_) = false;
  double back_off_s_ WEIR_GUARDED_BY(mutex_) = 0.2;
  double heartbeat_s_ WEIR_GUARDED_BY(mutex_) = 5;
  v1::PeerList peers_ WEIR_GUARDED_BY(mutex_);
  TimePoint lost_at_ WEIR_GUARDED_BY(mutex_){};  // or of the first try
  TimePoint tried_at_ WEIR_GUARDED_BY(mutex_){};
};

/// The node that agent `index` is of.
std::string NodeName(int index);

}  // namespace weir::fleet_bench
