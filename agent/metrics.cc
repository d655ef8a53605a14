// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>

namespace weir::agent {

using Labels = std::map<std::string, std::string>;

struct AgentMetrics::Families {
  struct Statistics {
    prometheus::Gauge* minimum;
    prometheus::Gauge* median;
    prometheus::Gauge* maximum;

    void Set(std::vector<double> values) const {
      if (values.empty()) return;
      std::sort(values.begin(), values.end());
      minimum->Set(values.front());
      median->Set(values[values.size() / 2]);
      maximum->Set(values.back());
    }
  };

  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();

  prometheus::Gauge& Gauge(const char* name, const char* help, const Labels& labels = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add(labels);
  }
  prometheus::Counter& Counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(*registry).Add({});
  }
  void Set(const TlsHealth& tls);
  void Set(const NcclSnapshot& nccl);
  void Set(const Gpus& gpus);
  prometheus::Family<prometheus::Counter>& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(*registry);
  }
  Statistics OverPeers(const char* name, const char* help) {
    auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(*registry);
    return {&family.Add({{"statistic", "min"}}), &family.Add({{"statistic", "median"}}),
            &family.Add({{"statistic", "max"}})};
  }

  prometheus::Gauge& connected =
      Gauge("weir_agent_controller_connected",
            "Whether the agent's stream to the controller is open: 1 or 0.");
  prometheus::Gauge& heartbeat =
      Gauge("weir_agent_heartbeat_timestamp_seconds",
            "Unix time in seconds of the last heartbeat that the agent sent to the controller.");
  prometheus::Gauge& ranks =
      Gauge("weir_agent_ranks", "Number of training ranks that are attached to this agent.");
  prometheus::Gauge& unauthenticated_ranks =
      Gauge("weir_agent_unauthenticated_ranks",
            "Number of attached ranks that reach peers over a network without authentication.");
  prometheus::Gauge& open_connections = Gauge(
      "weir_agent_local_connections", "Number of open connections on the agent's local sockets.");
  prometheus::Gauge& peers =
      Gauge("weir_agent_peers", "Number of other nodes to which this agent measures links.");
  prometheus::Gauge& budget =
      Gauge("weir_agent_probe_budget_bytes", "Bytes that active probes may send now.");
  Statistics rtt = OverPeers("weir_link_rtt_seconds",
                             "Round-trip time in seconds from this node to its peers; the label "
                             "names the statistic over the peers.");
  Statistics loss = OverPeers("weir_link_probe_loss_ratio",
                              "Share of latency probes without an answer, from 0 to 1; the label "
                              "names the statistic over the peers.");
  Statistics bandwidth = OverPeers("weir_link_bandwidth_bytes_per_second",
                                   "Measured bandwidth in bytes per second from this node to its "
                                   "peers; the label names the statistic over the peers.");
  prometheus::Counter& connections =
      Counter("weir_agent_controller_connections_total",
              "Number of streams to the controller that the agent has opened.");
  prometheus::Counter& refused = Counter(
      "weir_agent_refused_connections_total",
      "Number of local connections that the agent has refused, mostly for malformed input.");
  prometheus::Counter& iperf_served =
      Counter("weir_agent_iperf_server_tests_total",
              "Number of iperf3 tests that this node has served, including failed ones.");
  prometheus::Family<prometheus::Counter>& plans =
      Counters("weir_agent_plan_messages_total",
               "Number of messages about plans between controller and ranks, by kind.");
  prometheus::Family<prometheus::Counter>& dropped =
      Counters("weir_agent_dropped_messages_total",
               "Number of telemetry messages that were dropped because a queue was full.");
  prometheus::Family<prometheus::Counter>& rank_messages = Counters(
      "weir_agent_rank_messages_total", "Number of messages received from ranks, by kind.");
  prometheus::Family<prometheus::Counter>& probes = Counters(
      "weir_agent_probes_total", "Number of finished probes of links, by method and outcome.");
  prometheus::Family<prometheus::Counter>& probe_bytes = Counters(
      "weir_agent_probe_sent_bytes_total", "Bytes that active probes have sent, by method.");
  prometheus::Gauge& nccl_communicators =
      Gauge("weir_nccl_communicators",
            "Number of NCCL communicators that have a tuner; each rank of a communicator counts.");
  prometheus::Gauge& nccl_obstructed =
      Gauge("weir_nccl_obstructed_communicators",
            "Number of NCCL communicators that cannot change their table, for example because they "
            "span several nodes.");
  prometheus::Gauge& nccl_refusing = Gauge(
      "weir_nccl_refusing_processes", "Number of processes that refuse the agent's NCCL table.");
  prometheus::Family<prometheus::Counter>& nccl_calls = Counters(
      "weir_nccl_calls_total", "Number of collective calls of NCCL, by the source of the choice.");
  prometheus::Family<prometheus::Counter>& nccl_operations = Counters(
      "weir_nccl_sampled_operations_total", "Number of NCCL operations that were measured.");
  prometheus::Family<prometheus::Counter>& nccl_bytes =
      Counters("weir_nccl_sampled_sent_bytes_total",
               "Bytes that measured NCCL operations have sent to other nodes.");
  prometheus::Family<prometheus::Counter>& nccl_waits =
      Counters("weir_nccl_sampled_wait_seconds_total",
               "Time in seconds that network transfers of measured NCCL operations waited, by "
               "cause; transfers overlap, so the sum may exceed the time that passed.");
  prometheus::Family<prometheus::Histogram>& probe_time =
      prometheus::BuildHistogram()
          .Name("weir_agent_probe_duration_seconds")
          .Help("Duration in seconds of scheduled probes.")
          .Register(*registry);
};

namespace {

// Counters that are kept elsewhere only ever grow.
template <typename Number>
void RaiseTo(prometheus::Counter& counter, Number value) {
  const double difference = static_cast<double>(value) - counter.Value();
  if (difference > 0) counter.Increment(difference);
}

}  // namespace

// In plain text there are none of these.
void AgentMetrics::Families::Set(const TlsHealth& tls) {
  Gauge("weir_tls_last_reload_successful",
        "Whether the current TLS files are in use: 1, or 0 if they are invalid.")
      .Set(tls.renewed ? 1 : 0);
  RaiseTo(Counter("weir_tls_reload_failures_total",
                  "Number of times that changed TLS files were found invalid."),
          tls.refused);
  if (tls.certificate_end_unix_s == 0) return;
  Gauge("weir_tls_certificate_expiry_timestamp_seconds",
        "Unix time in seconds at which the certificate in use expires.")
      .Set(tls.certificate_end_unix_s);
}

void AgentMetrics::Families::Set(const NcclSnapshot& nccl) {
  nccl_communicators.Set(static_cast<double>(nccl.communicators));
  nccl_obstructed.Set(static_cast<double>(nccl.obstructed));
  nccl_refusing.Set(static_cast<double>(nccl.refusing));
  RaiseTo(nccl_calls.Add({{"choice", "rule"}}), nccl.steered_calls);
  RaiseTo(nccl_calls.Add({{"choice", "refused_rule"}}), nccl.refused_calls);
  RaiseTo(nccl_calls.Add({{"choice", "nccl"}}),
          nccl.calls - std::min(nccl.calls, nccl.steered_calls + nccl.refused_calls));
  for (const auto& [place, totals] : nccl.totals) {
    Labels labels = {{"function", std::string(kNcclFunctions[place.first])},
                     {"size", std::string(kNcclSizes[place.second])}};
    RaiseTo(nccl_operations.Add(labels), totals.operations);
    RaiseTo(nccl_bytes.Add(labels), totals.sent_bytes);
    for (size_t i = 0; i < kNcclCauses.size(); ++i) {
      labels["cause"] = kNcclCauses[i];
      RaiseTo(nccl_waits.Add(labels), totals.wait_s[i]);
    }
  }
  if (!nccl.table.has_value()) return;
  Gauge("weir_nccl_table_last_reload_successful",
        "Whether the NCCL table in the file is in use: 1 or 0.")
      .Set(*nccl.table ? 1 : 0);
}

// A node without GPUs has none of these.
void AgentMetrics::Families::Set(const Gpus& gpus) {
  for (size_t i = 0; i < gpus.info.size(); ++i) {
    const GpuInfo& info = gpus.info[i];
    const GpuSample& sample = gpus.samples[i];
    const Labels gpu = {{"gpu", std::to_string(i)}};
    const auto with = [&gpu](const char* name, const std::string& value) {
      Labels labels = gpu;
      labels[name] = value;
      return labels;
    };
    Gauge("weir_gpu_info", "A GPU of the node and its name; always 1.", with("name", info.name))
        .Set(1);
    Gauge("weir_gpu_utilization_ratio",
          "Share of the time in which the GPU ran a kernel, from 0 to 1.", gpu)
        .Set(sample.utilisation);
    Gauge("weir_gpu_memory_utilization_ratio",
          "Share of the time in which the GPU's memory was read or written, from 0 to 1.", gpu)
        .Set(sample.memory_utilisation);
    Gauge("weir_gpu_memory_used_bytes", "Bytes of GPU memory in use.", gpu)
        .Set(static_cast<double>(sample.memory_used_bytes));
    Gauge("weir_gpu_clock_hertz", "Present clock rate of the GPU in hertz.", with("clock", "sm"))
        .Set(sample.sm_clock_hz);
    Gauge("weir_gpu_clock_hertz", "Present clock rate of the GPU in hertz.",
          with("clock", "memory"))
        .Set(sample.memory_clock_hz);
    Gauge("weir_gpu_pcie_generation",
          "Present PCIe generation of the GPU's link, which is lower when idle.", gpu)
        .Set(sample.pcie_generation);
    Gauge("weir_gpu_pcie_lanes", "Present number of PCIe lanes of the GPU's link.", gpu)
        .Set(sample.pcie_width);
    Gauge("weir_gpu_pcie_bandwidth_bytes_per_second",
          "Upper bound in bytes per second of copies to and from the host in one direction; 0 if "
          "unknown.",
          gpu)
        .Set(info.pcie_bytes_per_s());
    Gauge("weir_gpu_nvlinks", "Number of active NVLink connections.", gpu).Set(info.nvlinks);
  }
}

AgentMetrics::AgentMetrics(const std::string& node, const std::string& version)
    : families_(std::make_unique<Families>()) {
  families_
      ->Gauge("weir_agent_info", "The agent's node and version; always 1.",
              {{"node", node}, {"version", version}})
      .Set(1);
}

AgentMetrics::~AgentMetrics() = default;

void AgentMetrics::Set(const MetricsSnapshot& s) {
  Families& f = *families_;
  f.connected.Set(s.controller_connected ? 1 : 0);
  f.heartbeat.Set(s.controller_heartbeat_unix_s);
  f.ranks.Set(static_cast<double>(s.ranks));
  f.unauthenticated_ranks.Set(static_cast<double>(s.unauthenticated_ranks));
  f.open_connections.Set(static_cast<double>(s.connections));
  f.peers.Set(static_cast<double>(s.peers));
  f.budget.Set(static_cast<double>(s.probe_budget_bytes));
  f.rtt.Set(s.rtt_s);
  f.loss.Set(s.loss_ratio);
  f.bandwidth.Set(s.bandwidth_bytes_per_s);
  if (s.tls.has_value()) f.Set(*s.tls);
  f.Set(s.nccl);
  f.Set(s.gpus);
  RaiseTo(f.connections, s.controller_connections);
  RaiseTo(f.refused, s.refused_connections);
  RaiseTo(f.iperf_served, s.iperf_tests_served);
  RaiseTo(f.plans.Add({{"kind", "offer"}}), s.offers);
  RaiseTo(f.plans.Add({{"kind", "ack"}}), s.acks);
  RaiseTo(f.plans.Add({{"kind", "nack"}}), s.nacks);
  RaiseTo(f.plans.Add({{"kind", "activation"}}), s.activations);
  RaiseTo(f.plans.Add({{"kind", "stale_answer"}}), s.stale_answers);
  RaiseTo(f.dropped.Add({{"queue", "from_ranks"}}), s.dropped_from_ranks);
  RaiseTo(f.dropped.Add({{"queue", "to_controller"}}), s.dropped_to_controller);
}

void AgentMetrics::CountRankMessage(const std::string& kind) {
  families_->rank_messages.Add({{"kind", kind}}).Increment();
}

void AgentMetrics::CountLatencyProbe(const std::string& method, bool ok) {
  families_->probes.Add({{"method", method}, {"outcome", ok ? "ok" : "error"}}).Increment();
}

void AgentMetrics::CountProbe(const std::string& method, bool ok, uint64_t bytes, double seconds) {
  CountLatencyProbe(method, ok);
  families_->probe_bytes.Add({{"method", method}}).Increment(static_cast<double>(bytes));
  static const std::vector<double> kBounds = {0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60};
  families_->probe_time.Add({{"method", method}}, kBounds).Observe(seconds);
}

std::string AgentMetrics::Text() const {
  return prometheus::TextSerializer().Serialize(families_->registry->Collect());
}

}  // namespace weir::agent
