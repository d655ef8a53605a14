// SPDX-License-Identifier: Apache-2.0
#include "deploy/aggregator/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "deploy/aggregator/lease_api.h"

namespace weir::aggregation {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using MetricLabels = std::vector<ClientMetric::Label>;

class Page {
 public:
  /// Starts a family, to which the following Add()s belong.
  void Family(const char* name, const char* help, MetricType type) {
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
  }
  void Add(MetricLabels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void Add(MetricLabels labels, uint64_t value) {
    Add(std::move(labels), static_cast<double>(value));
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddPackets(const std::vector<ShardStatus>& shards, Page* page) {
  page->Family("weir_aggregator_packets_total",
               "Number of packets that the aggregator has received, by outcome.",
               MetricType::Counter);
  for (size_t s = 0; s < shards.size(); ++s) {
    const AggregatorCounters& c = shards[s].counters.packets;
    const std::pair<const char*, uint64_t> outcomes[] = {
        {"added", c.added},     {"completed", c.completed}, {"served_again", c.served},
        {"noticed", c.noticed}, {"duplicate", c.duplicate}, {"stale", c.stale},
        {"early", c.early},     {"malformed", c.malformed}, {"unknown_lease", c.unknown},
        {"foreign", c.foreign}};
    for (const auto& [outcome, count] : outcomes) {
      page->Add({{"shard", std::to_string(s)}, {"outcome", outcome}}, count);
    }
  }
}

void AddShards(const std::vector<ShardStatus>& shards, Page* page) {
  const auto family = [&](const char* name, const char* help, MetricType type, auto value) {
    page->Family(name, help, type);
    for (size_t s = 0; s < shards.size(); ++s) {
      page->Add({{"shard", std::to_string(s)}}, static_cast<double>(value(shards[s])));
    }
  };
  family("weir_aggregator_cut_off_rounds_total",
         "Number of rounds that ended without some workers.", MetricType::Counter,
         [](const ShardStatus& s) { return s.counters.packets.cut_off; });
  page->Family("weir_aggregator_forwarded_packets_total",
               "Number of sums sent to the aggregator above; the label tells whether a worker "
               "asked again before the result came.",
               MetricType::Counter);
  for (size_t s = 0; s < shards.size(); ++s) {
    const AggregatorCounters& c = shards[s].counters.packets;
    page->Add({{"shard", std::to_string(s)}, {"again", "no"}}, c.forwarded);
    page->Add({{"shard", std::to_string(s)}, {"again", "yes"}}, c.forwarded_again);
  }
  family("weir_aggregator_delivered_packets_total",
         "Number of results received from the aggregator above.", MetricType::Counter,
         [](const ShardStatus& s) { return s.counters.packets.delivered; });
  family("weir_aggregator_sent_packets_total",
         "Number of replies that the kernel accepted for sending.", MetricType::Counter,
         [](const ShardStatus& s) { return s.counters.port.sent; });
  family("weir_aggregator_unsent_packets_total",
         "Number of replies that were lost because the kernel had no room for them.",
         MetricType::Counter, [](const ShardStatus& s) { return s.counters.port.unsent; });
  family("weir_aggregator_injected_losses_total",
         "Number of packets that were dropped on purpose (--drop).", MetricType::Counter,
         [](const ShardStatus& s) { return s.counters.dropped; });
  family("weir_aggregator_cpu_seconds_total", "Processor time in seconds of the shard's thread.",
         MetricType::Counter, [](const ShardStatus& s) { return ToSeconds(s.counters.cpu_time); });
  family("weir_aggregator_granted_slots", "Number of slots that leases hold.", MetricType::Gauge,
         [](const ShardStatus& s) { return s.slots_granted; });
  family("weir_aggregator_leases", "Number of leases that jobs hold.", MetricType::Gauge,
         [](const ShardStatus& s) { return s.leases; });
}

void AddTls(const TlsHealth& tls, Page* page) {
  page->Family("weir_tls_last_reload_successful",
               "Whether the current TLS files are in use: 1, or 0 if they are invalid.",
               MetricType::Gauge);
  page->Add({}, tls.renewed ? 1.0 : 0.0);
  page->Family("weir_tls_reload_failures_total",
               "Number of times that changed TLS files were found invalid.", MetricType::Counter);
  page->Add({}, tls.refused);
  page->Family("weir_tls_certificate_expiry_timestamp_seconds",
               "Unix time in seconds at which the certificate in use expires.", MetricType::Gauge);
  page->Add({}, tls.certificate_end_unix_s);
}

// The label is not "job", because Prometheus puts a label of that name on every series.
MetricLabels LabelsOf(const LeaseGrant& grant) {
  return {{"training_job", grant.job}, {"mode", std::string(ModeName(grant.lease.mode))}};
}

}  // namespace

std::string MetricsText(const std::string& version, const std::vector<ShardStatus>& shards,
                        const std::vector<LeaseStatus>& leases,
                        const std::optional<TlsHealth>& tls) {
  Page page;
  page.Family("weir_aggregator_info", "The aggregator's version; always 1.", MetricType::Gauge);
  page.Add({{"version", version}}, 1.0);
  AddPackets(shards, &page);
  AddShards(shards, &page);
  if (tls.has_value()) AddTls(*tls, &page);
  page.Family("weir_aggregator_oldest_round_age_seconds",
              "Age in seconds of the job's oldest incomplete round; 0 if no round is incomplete.",
              MetricType::Gauge);
  for (const LeaseStatus& status : leases) {
    page.Add(LabelsOf(status.grant),
             status.oldest.has_value() ? ToSeconds(status.oldest->age) : 0.0);
  }
  page.Family(
      "weir_aggregator_oldest_round_missing_workers",
      "Number of workers that the job's oldest incomplete round waits for; /v1/leases names them.",
      MetricType::Gauge);
  for (const LeaseStatus& status : leases) {
    page.Add(LabelsOf(status.grant),
             status.oldest.has_value() ? static_cast<double>(status.oldest->missing.size()) : 0.0);
  }
  return page.Text();
}

}  // namespace weir::aggregation
