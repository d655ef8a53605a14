// SPDX-License-Identifier: Apache-2.0
#pragma once
// The node agent, which connects ranks, probers and controller. All state belongs to one thread;
// sockets, gRPC and probers only put events into its queue.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "agent/controller_stream.h"
#include "agent/core_reports.h"
#include "agent/health_server.h"
#include "agent/http_endpoint.h"
#include "agent/latency_prober.h"
#include "agent/local_server.h"
#include "agent/measure/byte_budget.h"
#include "agent/measure/gpus.h"
#include "agent/measure/iperf_bandwidth.h"
#include "agent/measure/passive.h"
#include "agent/measure/udp_echo.h"
#include "agent/metrics.h"
#include "agent/nccl_bridge.h"
#include "agent/plan_subscription.h"
#include "agent/probe_runner.h"
#include "agent/tiered_queue.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

namespace weir::agent {

struct AgentOptions {
  std::string node;     // name, unique in the cluster
  std::string address;  // IP address for other nodes; probers bind it
  std::string version;
  std::string instance;                            // random per process
  uint16_t probe_port = 7446;                      // UDP echo and TCP connect; 0: any
  uint16_t iperf_port = 0;                         // 0: iperf3 disabled, as server and as client
  std::string helper_program;                      // this program, started again for iperf3 tests
  HttpEndpoint::Options http;                      // of /metrics and /healthz; no address: none
  std::string health_address;                      // HOST:PORT of gRPC health checks; empty: none
  std::string nvml_library = "libnvidia-ml.so.1";  // opened at the start; empty: no GPUs
  std::string nccl_table_file;  // for processes with libnccl-weir.so; empty: none
  LocalServer::Options local;
  ControllerStream::Options controller;  // no address: runs without a controller
  ByteBudget::Options budget;
  size_t inbox_items_max = 8192;
  size_t inbox_bytes_max = 64u << 20;
  uint64_t seed = 0;
};

/// The thread "weir-agent" owns all members below the line "executor's".
class Agent : private LocalServer::Handler, private ControllerStream::Handler {
 public:
  /// Binds every port, then starts. kUnavailable, kFailedPrecondition or kInvalidArgument name the
  /// port, path or option. `clock` must outlive the agent.
  static StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options, const Clock& clock);
  /// Ends every thread and child process, within 2 s.
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  uint16_t probe_port() const { return echo_->port(); }
  uint16_t local_tcp_port() const { return local_->tcp_port(); }
  int http_port() const { return http_ == nullptr ? 0 : http_->port(); }
  int health_port() const { return health_ == nullptr ? 0 : health_->port(); }

 private:
  struct RankSaid {
    ConnectionId connection;
    v1::RankMessage message;
    std::shared_ptr<const RankPeer> peer;
  };
  struct RankLeft {
    ConnectionId connection;
    std::string reason;
  };
  struct ControllerUp {
    uint64_t generation;
  };
  struct ControllerSaid {
    uint64_t generation;
    v1::ControllerMessage message;
  };
  struct ControllerDown {
    uint64_t generation;
    std::string reason;
    std::vector<v1::AgentMessage> unsent;
  };
  struct ProbeDone {
    ProbeTask task;
    v1::ProbeResult result;
    TimePoint at;
  };
  using Event = std::variant<RankSaid, RankLeft, ControllerUp, ControllerSaid, ControllerDown,
                             LatencyResult, ProbeDone>;

  struct PeerState {
    v1::Peer peer;
    double rtt_s = 0;
    double loss_ratio = 0;
    double bandwidth_bytes_per_s = 0;
  };

  Agent(AgentOptions options, v1::NodeHello hello, const Clock& clock);
  Status Open();

  // Called from other threads.
  bool OnRankMessage(ConnectionId connection, v1::RankMessage message, size_t bytes,
                     const std::shared_ptr<const RankPeer>& peer) override;
  void OnRankClosed(ConnectionId connection, const std::string& reason) override;
  void OnControllerConnected(uint64_t generation) override;
  void OnControllerMessage(uint64_t generation, v1::ControllerMessage message) override;
  void OnControllerLost(uint64_t generation, const std::string& reason,
                        std::vector<v1::AgentMessage> unsent) override;
  bool Post(Event event, Tier tier, size_t bytes);

  // Called on the executor's thread.
  void Run();
  std::optional<Event> NextEvent(TimePoint deadline);
  void Handle(RankSaid& event);
  void Handle(RankLeft& event);
  void Handle(ControllerUp& event);
  void Handle(ControllerSaid& event);
  void Handle(ControllerDown& event);
  void Handle(LatencyResult& event);
  void Handle(ProbeDone& event);
  void Apply(Effects effects);
  void SendToController(v1::AgentMessage message, Tier tier);
  void OnNcclReport(ConnectionId connection, const v1::NcclReport& report);
  void TakeNcclTable(const v1::NcclTable& table);
  void SendNcclTables();
  void SendNcclTable(ConnectionId connection);
  void ObserveTelemetry(ConnectionId connection, const v1::RankMessage& message);
  std::string NodeOf(const std::string& datapath_address) const;
  void SetPeers(const v1::PeerList& list);
  void StartProbe(const v1::ProbeRequest& request);
  StatusOr<ProbeTask> PlanProbe(const v1::ProbeRequest& request);
  void Tick();
  Status Alive() const;  // on any thread
  void SendHeartbeat();
  void PublishMetrics();

  const AgentOptions options_;
  const Clock& clock_;
  AgentMetrics metrics_;

  Mutex inbox_mutex_;
  CondVar inbox_ready_;
  TieredQueue<Event> inbox_ WEIR_GUARDED_BY(inbox_mutex_);
  bool stopping_ WEIR_GUARDED_BY(inbox_mutex_) = false;

  PlanSubscription subscription_;
  NcclBridge nccl_;
  PassiveEstimator passive_;
  CoreReports cores_;
  ByteBudget budget_;
  std::map<std::string, PeerState> peers_;  // by node
  uint64_t generation_ = 0;                 // of the connection to the controller; 0: none
  bool welcomed_ = false;                   // by that controller: it is one that leads
  uint64_t controller_connections_ = 0;
  Duration heartbeat_interval_;
  TimePoint next_heartbeat_{};
  TimePoint next_metrics_{};
  double last_heartbeat_unix_s_ = 0;
  std::map<std::string, TimePoint> probe_started_;  // by id; at most as many as the runner holds

  std::atomic<TimePoint> last_tick_;
  std::unique_ptr<HttpEndpoint> http_;
  std::unique_ptr<HealthServer> health_;
  std::unique_ptr<GpuMonitor> gpus_;
  std::unique_ptr<EchoServer> echo_;
  std::unique_ptr<IperfServer> iperf_server_;
  std::unique_ptr<LatencyProber> latency_;
  std::unique_ptr<ProbeRunner> probes_;
  std::unique_ptr<LocalServer> local_;
  std::unique_ptr<ControllerStream> stream_;
  std::thread thread_;
};

}  // namespace weir::agent
