// SPDX-License-Identifier: Apache-2.0
#include "agent/probe_runner.h"

#include <utility>

#include "agent/measure/iperf_bandwidth.h"
#include "agent/measure/route.h"
#include "datapath/base/random.h"

namespace weir::agent {
namespace {

constexpr size_t kWaitingMax = 8;

void FillIperf(const StatusOr<IperfReport>& report, const ProbeTask& task,
               v1::ProbeResult* result) {
  v1::LinkSample& sample = *result->mutable_sample();
  if (!report.ok()) {
    sample.set_error(Message(report.status()));
    // A failed test may have sent any amount up to its limit, unless it never reached its server.
    const bool never_ran = report.status().code() == StatusCode::kUnavailable;
    result->set_bytes_used(never_ran ? 0 : task.bytes_max);
    return;
  }
  sample.set_bandwidth_bytes_per_s(report->bandwidth_bytes_per_s);
  sample.set_bandwidth_deviation_bytes_per_s(report->deviation_bytes_per_s);
  sample.set_samples(1);
  result->set_bytes_used(report->bytes_sent);
}

void FillRoute(const StatusOr<Route>& route, v1::ProbeResult* result) {
  v1::LinkSample& sample = *result->mutable_sample();
  if (!route.ok()) {
    sample.set_error(Message(route.status()));
    return;
  }
  sample.set_hops(route->hops);
  sample.set_samples(1);
  result->set_bytes_used(route->bytes_used);
}

}  // namespace

StatusOr<ProbeMethod> ParseProbeMethod(std::string_view name) {
  if (name == "iperf3") return ProbeMethod::kIperf;
  if (name == "traceroute") return ProbeMethod::kRoute;
  return NotFound(StrCat("unknown probe method '", name, "'; valid: iperf3, traceroute"));
}

std::string Name(ProbeMethod method) {
  switch (method) {
    case ProbeMethod::kIperf:
      return "iperf3";
    case ProbeMethod::kRoute:
      return "traceroute";
  }
  return "";
}

ProbeRunner::ProbeRunner(Options options,
                         std::function<void(const ProbeTask&, v1::ProbeResult)> done,
                         const Clock& clock)
    : options_(std::move(options)),
      done_(std::move(done)),
      clock_(clock),
      next_nonce_(options_.seed),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

ProbeRunner::~ProbeRunner() {
  thread_.request_stop();
  DiscardAll();
  thread_.join();
}

Status ProbeRunner::Enqueue(ProbeTask task) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= kWaitingMax) {
    return ResourceExhausted(StrCat(kWaitingMax, " probes wait already"));
  }
  waiting_.push_back(std::move(task));
  changed_.notify_all();
  return OkStatus();
}

uint64_t ProbeRunner::DiscardAll() {
  const std::lock_guard lock(mutex_);
  uint64_t granted = 0;
  for (const ProbeTask& task : waiting_) granted += task.bytes_max;
  waiting_.clear();
  running_.request_stop();
  return granted;
}

void ProbeRunner::Run(const std::stop_token& stop) {
  NameThread("weir-probe");
  while (true) {
    ProbeTask task;
    std::stop_token task_stop;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return;
      if (stop.stop_requested()) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = std::stop_source();
      task_stop = running_.get_token();
    }
    done_(task, Execute(task, task_stop));
  }
}

v1::ProbeResult ProbeRunner::Execute(const ProbeTask& task, const std::stop_token& stop) {
  v1::ProbeResult result;
  result.set_probe_id(task.id);
  result.mutable_sample()->set_target_node(task.node);
  result.mutable_sample()->set_method(Name(task.method));
  const TimePoint now = clock_.Now();
  if (now >= task.deadline) {
    result.mutable_sample()->set_error("its deadline passed while other probes ran");
    return result;
  }
  switch (task.method) {
    case ProbeMethod::kIperf: {
      IperfOptions options;
      options.helper_program = options_.helper_program;
      options.host = task.probe_address.ip();
      options.port = task.iperf_port;
      options.bytes_max = task.bytes_max;
      options.time_max = task.deadline - now;
      FillIperf(MeasureIperfBandwidth(options, clock_, stop), task, &result);
      break;
    }
    case ProbeMethod::kRoute: {
      RouteOptions options;
      options.deadline = task.deadline;
      options.nonce = Mix64(next_nonce_++);
      FillRoute(MeasureRoute(task.probe_address, options, clock_, stop), &result);
      break;
    }
  }
  return result;
}

}  // namespace weir::agent
