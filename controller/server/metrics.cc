// SPDX-License-Identifier: Apache-2.0
// /metrics of the controller. Labels are bounded: nodes and jobs have limits, and there are no
// labels for steps, buckets or peer pairs.

#include "controller/server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <set>
#include <string>

#include "controller/fleet/link_sharing.h"
#include "controller/job/bounds.h"

namespace weir {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

class Collector {
 public:
  void Add(const std::string& name, const std::string& help, MetricType type, const Labels& labels,
           double value) {
    ClientMetric metric;
    SetLabels(labels, &metric);
    if (type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    FamilyOf(name, help, type).metric.push_back(std::move(metric));
  }

  void Gauge(const std::string& name, const std::string& help, const Labels& labels, double value) {
    Add(name, help, MetricType::Gauge, labels, value);
  }
  void Counter(const std::string& name, const std::string& help, const Labels& labels,
               double value) {
    Add(name, help, MetricType::Counter, labels, value);
  }

  void AddHistogram(const std::string& name, const std::string& help, const Labels& labels,
                    const Histogram& histogram) {
    ClientMetric metric;
    SetLabels(labels, &metric);
    metric.histogram.sample_count = histogram.count;
    metric.histogram.sample_sum = histogram.sum;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      cumulative += histogram.counts[i];
      ClientMetric::Bucket bucket;
      bucket.cumulative_count = cumulative;
      bucket.upper_bound = i < Histogram::kBoundsS.size() ? Histogram::kBoundsS[i]
                                                          : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back(bucket);
    }
    FamilyOf(name, help, MetricType::Histogram).metric.push_back(std::move(metric));
  }

  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  static void SetLabels(const Labels& labels, ClientMetric* metric) {
    for (const auto& [name, value] : labels) metric->label.push_back({name, value});
  }
  MetricFamily& FamilyOf(const std::string& name, const std::string& help, MetricType type) {
    for (MetricFamily& family : families_) {
      if (family.name == name) return family;
    }
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
    return families_.back();
  }
  std::vector<MetricFamily> families_;
};

// Shares of the time that dense would have taken; none while nothing is compared.
void CollectBenefit(const JobView& state, const Labels& labels, Collector* out) {
  const Benefit& benefit = state.benefit;
  out->Gauge("weir_progress_exponent",
             "A step of gain g makes g to this power of a dense step's "
             "progress, as the job's losses say.",
             labels, state.progress.exponent);
  if (benefit.verdict == BenefitVerdict::kUnknown) return;
  const auto of = [&](const char* bound, double share) {
    Labels more = labels;
    more.emplace_back("bound", bound);
    out->Gauge("weir_job_saved_time_ratio",
               "Share of the time that dense would have taken for the same progress which the job "
               "has saved; negative: it has cost time. The bounds hold it with 90 %.",
               more, Finite(share));
  };
  of("mean", benefit.saved_share);
  of("low", benefit.saved_share_low);
  of("high", benefit.saved_share_high);
  out->Gauge("weir_job_dense_measured",
             "1 where dense was measured in this job, not predicted alone.", labels,
             benefit.basis == BenefitBasis::kMeasured ? 1 : 0);
  out->Gauge("weir_job_dense_checks_time_ratio",
             "Share of training time that went into dense steps for that figure.", labels,
             benefit.dense_checks_share);
}

void CollectLateRanks(const JobView& state, const Labels& labels, Collector* out) {
  double slower = 1;
  for (const auto& rank : state.ranks) slower = std::max(slower, rank.slower);
  out->Gauge("weir_slowest_rank_ratio",
             "Time that the slowest rank computes over the middle rank's; 1: none is slower beyond "
             "doubt.",
             labels, slower);
  CoreObservation worst;  // of the ranks
  int starved = 0;
  for (const auto& rank : state.ranks) {
    if (!rank.cores.has_value()) continue;
    worst.wait_ratio = std::max(worst.wait_ratio, rank.cores->recent.wait_ratio);
    worst.steal_ratio = std::max(worst.steal_ratio, rank.cores->recent.steal_ratio);
    starved += rank.cores->starved ? 1 : 0;
  }
  out->Gauge("weir_core_wait_ratio",
             "Greatest share over the ranks of the time in which threads could run that they "
             "waited for a core of their host.",
             labels, worst.wait_ratio);
  out->Gauge("weir_core_steal_ratio",
             "Greatest share over the ranks' hosts of the time of their cores that the hypervisor "
             "gave to others.",
             labels, worst.steal_ratio);
  out->Gauge("weir_starved_ranks",
             "Number of ranks that wait for cores longer than the job is used to; their steps "
             "count against no link and no codec.",
             labels, starved);
  std::set<std::string> late_gpus;
  for (const auto& rank : state.ranks) {
    if (rank.nccl.has_value() && rank.nccl->cause == NcclCause::kGpusLate) {
      late_gpus.insert(rank.node);
    }
  }
  out->Gauge("weir_late_gpu_nodes",
             "Number of nodes of the job for whose GPUs NCCL's transfers wait, and most other "
             "nodes for theirs.",
             labels, static_cast<double>(late_gpus.size()));
}

void CollectJob(const Job& job, Collector* out) {
  // The label is not "job", because Prometheus puts a label of that name on every series and
  // renames ours.
  const Labels labels = {{"training_job", job.name()}};
  const auto with = [&](const std::string& name, const std::string& value) {
    Labels more = labels;
    more.emplace_back(name, value);
    return more;
  };
  const JobView state = job.View();
  const JobCounters& counters = job.counters();
  out->Gauge("weir_job_ranks", "Number of connected ranks of the job.", labels,
             static_cast<double>(std::count_if(state.ranks.begin(), state.ranks.end(),
                                               [](const auto& rank) { return rank.connected; })));
  out->Gauge("weir_job_world_size", "Number of ranks that the job needs.", labels, state.world);
  out->Gauge("weir_job_running", "Whether all ranks of the job are connected: 1 or 0.", labels,
             state.state == "running" ? 1 : 0);
  out->Gauge("weir_job_unauthenticated_peers",
             "Number of peers that a rank reaches over a network without authentication; the "
             "largest of all ranks of the job.",
             labels, state.unauthenticated_peers);
  Labels identity = with("frames", ProtectionText(state.protection, state.unauthenticated_peers));
  identity.emplace_back("key_id", state.key_id);
  out->Gauge("weir_job_identity_info",
             "Protection of the job's frames, and the first digits of the public key that its "
             "ranks prove; always 1.",
             identity, 1);
  out->Gauge("weir_plan_version", "Version of the job's active plan.", labels,
             static_cast<double>(state.active_plan.has_value() ? state.active_plan->version : 0));
  out->Counter("weir_job_sent_bytes_total", "Bytes that the job's ranks have sent for gradients.",
               labels, static_cast<double>(state.bytes_sent));
  out->Gauge("weir_gradient_gain_ratio",
             "Share of the gradient's energy that the ranks send, from 0 to 1.", labels,
             state.gain);
  CollectBenefit(state, labels, out);
  out->Gauge(
      "weir_residual_ratio",
      "Norm of the residual divided by the norm of the gradient; the largest of all buckets.",
      labels, job.decisions().residual_ratio());
  if (const auto* point = job.series().newest(); point != nullptr) {
    out->Gauge("weir_compression_ratio",
               "Fraction of the elements of the largest bucket that is kept, from 0 to 1.", labels,
               point->ratio);
  }
  out->Gauge("weir_job_nothing_to_choose",
             "1 where the job's policy leaves no plan to choose, so that what runs goes on.",
             labels, state.nothing_to_choose.empty() ? 0 : 1);
  out->Gauge("weir_policy_gain_min_ratio", "Least gain that the job's policy permits, from 0 to 1.",
             labels, job.decisions().policy().gain_min);
  for (const auto& [reason, count] : counters.decisions) {
    out->Counter("weir_decisions_total", "Number of evaluations of the candidates, by trigger.",
                 with("reason", reason), static_cast<double>(count));
  }
  out->Counter("weir_decision_records_total",
               "Number of decisions that were recorded; other evaluations changed nothing.", labels,
               static_cast<double>(counters.records));
  out->Counter("weir_plan_switches_total", "Number of plans that were offered to the ranks.",
               labels, static_cast<double>(counters.switches));
  out->Counter("weir_plan_nacks_total", "Number of plans that a rank refused.", labels,
               static_cast<double>(counters.nacks));
  out->Counter("weir_plan_withdrawals_total",
               "Number of plans that were withdrawn before they were armed.", labels,
               static_cast<double>(counters.withdrawals));
  out->Counter("weir_plan_rollbacks_total",
               "Number of returns to dense because a plan did not do as predicted.", labels,
               static_cast<double>(counters.rollbacks));
  out->Counter("weir_skipped_steps_total",
               "Number of steps that were skipped for values that are not finite.", labels,
               static_cast<double>(counters.skipped_steps));
  if (state.non_finite.has_value()) {
    out->Gauge("weir_non_finite_rank",
               "Rank whose gradient contained NaN or infinity in the newest skipped step; -1 if "
               "not known.",
               labels, state.non_finite->guilty_rank);
  }
  CollectLateRanks(state, labels, out);
  out->Counter("weir_decision_errors_total", "Number of decisions that failed with an error.",
               labels, static_cast<double>(counters.decision_errors));
  out->Counter("weir_decide_seconds_total", "Time in seconds that the solver has taken.", labels,
               counters.decide_s_sum);
  if (job.series().predictions() > 0) {
    out->Gauge(
        "weir_prediction_error_ratio",
        "Median of the absolute relative error of predicted network times, where 0.1 is 10 %.",
        labels, job.series().PredictionErrorMedian());
  }
  if (job.model() != nullptr) {
    out->Gauge("weir_bottleneck_bandwidth_bytes_per_second",
               "Estimated bandwidth in bytes per second of the job's slowest link.", labels,
               Finite(job.model()->bandwidth_bytes_per_s().value));
    out->Gauge("weir_latency_seconds",
               "Estimated one-way latency in seconds of the job's slowest link.", labels,
               Finite(job.model()->latency_s().value));
  }
  const std::string phase_help = "Time in seconds that rank 0 takes per step, by phase.";
  const StepSeries& series = job.series();
  out->AddHistogram("weir_step_phase_seconds", phase_help, with("phase", "step"), series.step);
  out->AddHistogram("weir_step_phase_seconds", phase_help, with("phase", "compute"),
                    series.compute);
  out->AddHistogram("weir_step_phase_seconds", phase_help, with("phase", "exposed"),
                    series.exposed);
  out->AddHistogram("weir_step_phase_seconds", phase_help, with("phase", "codec"), series.codec);
}

void CollectAggregator(const std::string& name, const AggregatorReport& said, Collector* out) {
  const Labels labels = {{"aggregator", name}};
  out->Gauge("weir_controller_aggregator_reachable", "Whether the aggregator answers: 1 or 0.",
             labels, said.reachable ? 1 : 0);
  out->Gauge("weir_controller_aggregator_slots_granted",
             "Number of the aggregator's slots that leases hold, as of its last answer.", labels,
             said.slots - std::min(said.slots, said.slots_free));
  out->Gauge("weir_controller_aggregator_slots_free",
             "Number of the aggregator's slots that no lease holds, as of its last answer.", labels,
             said.slots_free);
  out->Gauge("weir_controller_aggregator_leases",
             "Number of leases of all jobs on the aggregator, as of its last answer.", labels,
             static_cast<double>(said.leases.size()));
  double stalled_s = 0;
  for (const auto& lease : said.leases) stalled_s = std::max(stalled_s, lease.waiting_s);
  out->Gauge("weir_controller_aggregator_stalled_seconds",
             "Age in seconds of the round that has waited longest for a worker, as of the "
             "aggregator's last answer.",
             labels, stalled_s);
}

void CollectTls(const TlsHealth& tls, Collector* out) {
  out->Gauge("weir_tls_last_reload_successful",
             "Whether the current TLS files are in use: 1, or 0 if they are invalid.", {},
             tls.renewed ? 1 : 0);
  out->Counter("weir_tls_reload_failures_total",
               "Number of times that changed TLS files were found invalid.", {},
               static_cast<double>(tls.refused));
  out->Gauge("weir_tls_certificate_expiry_timestamp_seconds",
             "Unix time in seconds at which the certificate in use expires.", {},
             tls.certificate_end_unix_s);
}

}  // namespace

std::string MetricsText(const Fleet& fleet, size_t watchers, const std::optional<TlsHealth>& tls) {
  const PolicySet& policies = fleet.policies();
  const FleetCounters& counters = fleet.counters();
  Collector out;
  out.Gauge("weir_build_info", "Version of this controller; always 1.",
            {{"version", fleet.options().version}}, 1);
  out.Gauge("weir_config_last_reload_successful", "Whether every policy file was accepted: 1 or 0.",
            {}, policies.last_reload_successful() ? 1 : 0);
  out.Gauge("weir_config_last_reload_success_timestamp_seconds",
            "Unix time in seconds at which every policy file was last accepted.", {},
            policies.last_success_unix_s());
  uint64_t connected = 0;
  for (const auto& [name, node] : fleet.nodes().all()) {
    connected += node.connected() ? 1 : 0;
    out.Gauge("weir_node_connected", "Whether the node's agent is connected: 1 or 0.",
              {{"node", name}}, node.connected() ? 1 : 0);
    out.Gauge("weir_node_last_seen_timestamp_seconds",
              "Unix time in seconds of the last message of the node's agent.", {{"node", name}},
              node.last_seen_unix_s);
  }
  out.Gauge("weir_nodes", "Number of nodes whose agents are connected.", {},
            static_cast<double>(connected));
  out.Gauge("weir_jobs", "Number of jobs that the controller keeps.", {},
            static_cast<double>(fleet.jobs().all().size()));
  out.Gauge("weir_links", "Number of directed links with a measurement.", {},
            static_cast<double>(fleet.nodes().links().size()));
  out.Gauge("weir_link_age_seconds",
            "Age in seconds of the newest sample of a link between connected nodes; the largest of "
            "all links.",
            {}, fleet.nodes().StalestLinkS());
  out.Gauge("weir_watchers", "Number of open event streams.", {}, static_cast<double>(watchers));
  out.Counter("weir_agent_messages_total", "Number of messages from agents.", {},
              static_cast<double>(counters.agent_messages));
  out.Counter("weir_agent_message_errors_total",
              "Number of messages from agents that were refused.", {},
              static_cast<double>(counters.agent_errors));
  uint64_t store_errors = counters.store_errors;
  for (const auto& [name, job] : fleet.jobs().all()) store_errors += job->counters().store_errors;
  out.Counter("weir_store_errors_total", "Number of failed writes to the state store.", {},
              static_cast<double>(store_errors));
  out.Counter("weir_probe_bytes_total", "Bytes that were granted to active bandwidth probes.", {},
              static_cast<double>(fleet.probes().spent_bytes()));
  out.Counter("weir_probe_seconds_total", "Time in seconds in which active bandwidth probes ran.",
              {}, fleet.probes().spent_s());
  out.Gauge("weir_probe_credit_bytes", "Bytes that active probes may still send.", {},
            fleet.probes().credit_bytes());
  out.Gauge("weir_probes_running", "Number of active probes that are running.", {},
            static_cast<double>(fleet.probes().running()));
  if (tls.has_value()) CollectTls(*tls, &out);
  for (const auto& [name, state] : fleet.aggregators()) CollectAggregator(name, state.said, &out);
  const std::map<std::string, size_t> sharing = SharingCounts(fleet.NodesOfJobs());
  for (const auto& [name, job] : fleet.jobs().all()) {
    CollectJob(*job, &out);
    const auto others = sharing.find(name);
    out.Gauge(
        "weir_job_sharing_jobs",
        "Number of other attached jobs with which the job shares two nodes or more, and so the "
        "links between them.",
        {{"training_job", name}},
        others == sharing.end() ? 0 : static_cast<double>(others->second));
  }
  return out.Text();
}

}  // namespace weir
