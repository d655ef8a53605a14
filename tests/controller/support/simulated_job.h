// SPDX-License-Identifier: Apache-2.0
#pragma once
// A data-parallel job that exists only as arithmetic: ranks with skew and noise over a network
// whose latency and bandwidth the test sets. It reports what real ranks and agents would report.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "controller/model/cost_model.h"
#include "controller/model/job_model.h"
#include "controller/model/timeline.h"
#include "datapath/base/clock.h"
#include "datapath/base/random.h"
#include "tests/controller/support/model_fixture.h"

namespace weir::test {

struct TrueNetwork {
  double latency_s = 2e-4;
  double bandwidth = 1.19e8;
};

class SimulatedJob {
 public:
  struct Options {
    int world = 4;
    std::vector<uint64_t> elements = {600000, 1000000, 900000};
    double compute_s = 0.08, backward_s = 0.05;
    double compute_noise = 0.05;  // relative, per rank and step
    double network_noise = 0.08;  // relative, per collective
    double overhead_s = 6e-4;     // of a collective, unknown to the model
    double alpha_factor = 1.1, gamma = 3e-10;
    double queue_s = 0.015;  // what a busy link adds to a round trip
    int slow_rank = -1;      // takes slow_compute times as long until its first bucket
    double slow_compute = 1;
    bool arrivals = false;  // ranks stamp the payloads that come from the rank before
    // Share of steps in which other work takes a host's cores: it computes up to half longer,
    // collectives wait for it, and what it sends and receives looks slow.
    double busy = 0, busy_stretch = 1.5;
    bool busy_codecs = false;  // its codecs take longer, too
    bool cores = false;        // agents report that waiting
    bool framework = false;    // the caller has a process group of its own
    uint64_t seed = 1;
  };

  SimulatedJob(Options options, FakeClock& clock)
      : options_(options),
        clock_(clock),
        random_(options.seed),
        model_("sim", options.world, clock) {
    truth_ = MakeSnapshot(options.world, 0, 0);
    truth_.buckets.clear();
    truth_.reduce_s_per_byte = options.gamma;
    std::vector<BucketDefinition> definitions;
    for (size_t b = 0; b < options.elements.size(); ++b) {
      BucketModel bucket;
      bucket.key = "bucket" + std::to_string(b);
      bucket.elements = options.elements[b];
      bucket.order = static_cast<int>(b);
      FillCurve(&bucket);
      truth_.buckets.push_back(bucket);
      definitions.push_back({bucket.key, bucket.elements, bucket.order});
    }
    if (options.framework) truth_.collectives.push_back(ByCaller());
    for (CollectiveModel& collective : truth_.collectives) {
      collective.overhead_s = options.overhead_s;
      collective.alpha_scale = options.alpha_factor;
    }
    for (int r = 0; r < options.world; ++r) {
      model_.SetRankNode(r, "node" + std::to_string(r));
      auto collectives = Collectives();
      for (auto& collective : collectives) collective.gain_scale = 1;
      if (options.framework) collectives.push_back(ByCaller());
      model_.SetCapabilities(r, Codecs(), collectives);
      begin_s_.push_back(0.003 * random_.Uniform());
    }
    model_.SetBuckets(definitions);
    plan_.assign(definitions.size(), ChoiceModel{});
  }

  JobModel& model() { return model_; }
  uint64_t step() const { return step_; }
  const PlanModel& plan() const { return plan_; }
  double last_step_s() const { return last_step_s_; }
  double clock_s() const { return clock_s_; }
  /// The share of the last step in which the network was in use.
  double busy_share() const { return std::min(1.0, busy_ / last_step_s_); }
  int probes() const { return probes_; }

  void SetPlan(uint64_t version, const PlanModel& plan) {
    plan_ = plan;
    version_ = version;
    model_.SetActivePlan(version, step_ + 1, plan);
  }

  /// From the next step on; see Options.
  void SetBusy(double share) { options_.busy = share; }

  /// Seconds of one step without noise under `plan`: what the best choice is judged by.
  double TrueStep(const TrueNetwork& network, const PlanModel& plan) const {
    std::vector<BucketTimes> times;
    for (size_t b = 0; b < plan.size(); ++b) {
      const BucketCost cost = Cost(b, plan[b]);
      times.push_back({Ready(b), cost.EncodeSeconds(network.latency_s),
                       cost.NetworkSeconds(network.latency_s, 1 / network.bandwidth),
                       cost.decode_s});
    }
    return PredictStep(times, options_.compute_s + options_.backward_s, options_.backward_s).step_s;
  }
  double TrueGain(const PlanModel& plan) const {
    double kept = 0, elements = 0;
    for (size_t b = 0; b < plan.size(); ++b) {
      kept += Cost(b, plan[b]).gain * static_cast<double>(options_.elements[b]);
      elements += static_cast<double>(options_.elements[b]);
    }
    return kept / elements;
  }

  /// Runs one step and reports it; sends latency probes once a second of simulated time.
  void Step(const TrueNetwork& network) {
    ++step_;
    const int world = options_.world;
    std::vector<StepObservation> reports(world);
    taken_.assign(world, false);
    std::vector<double> first(world), free(world), last(world);
    for (int r = 0; r < world; ++r) {
      const double noise = 1 + options_.compute_noise * std::fabs(random_.Normal());
      const double slow = r == options_.slow_rank ? options_.slow_compute : 1;
      taken_[r] = options_.busy > 0 && random_.Uniform() < options_.busy;
      const double late = taken_[r] ? 1 + 0.5 * random_.Uniform() : 1;
      first[r] = begin_s_[r] + options_.compute_s * noise * slow * late;
      free[r] = last[r] = first[r];
      reports[r].rank = r;
      reports[r].step = step_;
      reports[r].plan_version = version_;
      reports[r].compute_s = first[r] - begin_s_[r];
    }
    if (options_.arrivals) {
      for (int r = 0; r < world; ++r) {
        double s_per_byte = std::exp(0.05 * random_.Normal()) / network.bandwidth;
        double deviation = 0.05;
        if (taken_[r] || taken_[(r + world - 1) % world]) {
          s_per_byte *= std::exp(1.5 * std::fabs(random_.Normal()));
          deviation = 0.2 + 0.4 * random_.Uniform();
        }
        reports[r].arrivals.push_back(
            {(r + world - 1) % world, s_per_byte, deviation, s_per_byte, 3e5, false});
      }
    }
    busy_ = 0;
    stalled_s_ = 0;
    for (size_t b = 0; b < plan_.size(); ++b) RunBucket(network, b, first, &free, &last, &reports);
    Finish(network, first, last, &reports);
  }

  /// A short bandwidth probe between two nodes.
  void Probe(const TrueNetwork& network) {
    ++probes_;
    LinkObservation link;
    link.source_node = "node" + std::to_string(random_.Below(2));
    link.target_node = "node" + std::to_string(2 + random_.Below(2));
    link.method = "iperf3";
    link.bandwidth_bytes_per_s = network.bandwidth * std::exp(0.1 * random_.Normal());
    model_.OnLink(link);
  }

 private:
  double Ready(size_t bucket) const {
    const double count = static_cast<double>(options_.elements.size());
    return count > 1 ? options_.backward_s * static_cast<double>(bucket) / (count - 1) : 0;
  }

  BucketCost Cost(size_t b, const ChoiceModel& choice) const {
    for (const CodecModel& codec : truth_.codecs) {
      for (const CollectiveModel& collective : truth_.collectives) {
        if (codec.name == choice.codec && collective.name == choice.collective) {
          return PredictBucket(truth_, truth_.buckets[b], codec, collective, choice.ratio);
        }
      }
    }
    return {};
  }

  void RunBucket(const TrueNetwork& network, size_t b, const std::vector<double>& first,
                 std::vector<double>* free, std::vector<double>* last,
                 std::vector<StepObservation>* reports) {
    const BucketCost cost = Cost(b, plan_[b]);
    const bool waits = std::any_of(taken_.begin(), taken_.end(), [](bool taken) { return taken; });
    const double free_s = cost.NetworkSeconds(network.latency_s, 1 / network.bandwidth) *
                          std::exp(options_.network_noise * random_.Normal());
    const double stretch = waits ? 1 + options_.busy_stretch * random_.Uniform() : 1;
    const double network_s = stretch * free_s;
    stalled_s_ += network_s - free_s;
    const double encode_s =
        cost.EncodeSeconds(network.latency_s) * (options_.busy_codecs ? stretch : 1);
    busy_ += network_s;
    std::vector<double> enter(options_.world);
    double last_enter = 0, last_other = 0;
    for (int r = 0; r < options_.world; ++r) {
      const double ready = first[r] + Ready(b);
      (*last)[r] = std::max((*last)[r], ready);
      enter[r] = std::max(ready + encode_s, (*free)[r]);
      if (enter[r] > last_enter) {
        last_other = last_enter;
        last_enter = enter[r];
      } else {
        last_other = std::max(last_other, enter[r]);
      }
    }
    const bool gather = plan_[b].collective == "sparse_all_gather";
    for (int r = 0; r < options_.world; ++r) {
      // In a gather the last to come finds the others' payloads waiting.
      double leave = last_enter + network_s;
      if (gather && enter[r] == last_enter)
        leave = std::max(enter[r] + 1e-4, last_other + network_s);
      (*free)[r] = leave;
      BucketObservation out;
      out.bucket = truth_.buckets[b].key;
      out.codec = plan_[b].codec;
      out.collective = plan_[b].collective;
      out.ratio = plan_[b].ratio;
      out.ready_s = Ready(b);
      out.encode_s = encode_s;
      out.decode_s = cost.decode_s;
      out.network_s = leave - enter[r];
      out.entry_offset_s = enter[r] - begin_s_[r];
      for (const CodecModel& codec : truth_.codecs) {
        if (codec.name == plan_[b].codec) {
          const WireBytes bytes =
              PredictWireBytes(codec, static_cast<double>(options_.elements[b]), plan_[b].ratio);
          out.payload_bytes = static_cast<uint64_t>(bytes.payload + bytes.index);
        }
      }
      out.gain = cost.gain;
      (*reports)[r].buckets.push_back(out);
      if (step_ % 5 == 1) {
        (*reports)[r].gains.push_back({out.bucket, truth_.buckets[b].gain_ratios,
                                       truth_.buckets[b].gains, truth_.buckets[b].peak_over_rms});
      }
    }
    for (int r = 0; r < options_.world; ++r) (*free)[r] += 0;
    decode_s_ = cost.decode_s;
  }

  void Finish(const TrueNetwork& network, const std::vector<double>& first,
              const std::vector<double>& last, std::vector<StepObservation>* reports) {
    const double before_s = clock_s_;
    double end = 0;
    for (int r = 0; r < options_.world; ++r) {
      StepObservation& report = (*reports)[r];
      const BucketObservation& final = report.buckets.back();
      const double done = begin_s_[r] + final.entry_offset_s + final.network_s + decode_s_;
      report.backward_s = last[r] - first[r];
      report.exposed_s = std::max(0.0, done - last[r]);
      const double next = std::max(done, last[r]) + 1e-3 * random_.Uniform();
      report.step_s = next - begin_s_[r];
      begin_s_[r] = next;
      end = std::max(end, next);
    }
    last_step_s_ = end - clock_s_;
    clock_s_ = end;
    clock_.Advance(FromSeconds(last_step_s_));
    for (int r = 0; options_.cores && r < options_.world; ++r) {
      const double waited = taken_[r] ? stalled_s_ / last_step_s_ : 0;
      const double seen = std::min(1.0, waited + 0.02 * random_.Uniform());
      (*reports)[r].cores =
          CoreObservation{.wait_ratio = taken_[r] ? 0.4 : 0.01, .datapath_wait_ratio = seen};
    }
    for (const StepObservation& report : *reports) model_.OnStep(report);
    if (std::floor(before_s) != std::floor(clock_s_)) ProbeLatency(network);
  }

  void ProbeLatency(const TrueNetwork& network) {
    const double load = std::clamp(busy_ / last_step_s_, 0.0, 1.0);
    for (int r = 0; r < options_.world; ++r) {
      LinkObservation link;
      link.source_node = "node" + std::to_string(r);
      link.target_node = "node" + std::to_string((r + 1) % options_.world);
      link.method = "udp_echo";
      // A probe meets the queue with the probability that the link is in use.
      const double queue = random_.Uniform() < load ? options_.queue_s * random_.Uniform() : 0;
      link.rtt_s = 2 * network.latency_s + queue + 1e-4 * random_.Uniform();
      model_.OnLink(link);
    }
  }

  Options options_;
  FakeClock& clock_;
  Random random_;
  JobModel model_;
  Snapshot truth_;
  PlanModel plan_;
  uint64_t version_ = 0, step_ = 0;
  std::vector<double> begin_s_;
  std::vector<bool> taken_;  // the cores of each host, in this step
  double clock_s_ = 0, last_step_s_ = 0, busy_ = 0, decode_s_ = 0;
  double stalled_s_ = 0;  // by which collectives of the step waited for cores
  int probes_ = 0;
};

}  // namespace weir::test
