// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/iperf_bandwidth.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/measure/iperf_helper.h"
#include "datapath/base/log.h"

namespace weir::agent {
namespace {

constexpr int kReportDepthMax = 32;
constexpr double kRelativeDeviationMin =
    0.1;  // for one short test: its repeatability, not its noise

HelperCommand MakeCommand(const std::string& program, const nlohmann::json& request) {
  return HelperCommand{
      program,
      {kProbeHelperFlag},
      request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

// Reads a finite number of at least zero; anything else is kDataLoss.
StatusOr<double> Number(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) {
    return DataLoss(StrCat("iperf report lacks the number '", key, "'"));
  }
  const double value = it->get<double>();
  if (!std::isfinite(value) || value < 0) {
    return DataLoss(StrCat("iperf report: '", key, "' is ", value));
  }
  return value;
}

// The standard deviation of the rate over the intervals, or 0 with fewer than three.
double IntervalDeviation(const nlohmann::json& report) {
  const auto intervals = report.find("intervals");
  if (intervals == report.end() || !intervals->is_array()) return 0;
  std::vector<double> rates;
  for (const auto& interval : *intervals) {
    const auto sum = interval.is_object() ? interval.find("sum") : interval.end();
    if (!interval.is_object() || sum == interval.end() || !sum->is_object()) continue;
    const StatusOr<double> rate = Number(*sum, "bits_per_second");
    if (rate.ok()) rates.push_back(*rate / 8);
  }
  if (rates.size() < 3) return 0;
  double mean = 0;
  for (const double rate : rates) mean += rate / static_cast<double>(rates.size());
  double square = 0;
  for (const double rate : rates) square += (rate - mean) * (rate - mean);
  return std::sqrt(square / static_cast<double>(rates.size() - 1));
}

uint64_t ToBytes(double value) {
  return value < 9e18 ? static_cast<uint64_t>(value) : std::numeric_limits<uint64_t>::max();
}

}  // namespace

StatusOr<IperfReport> ParseIperfReport(std::string_view json) {
  bool too_deep = false;
  const auto callback = [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kReportDepthMax) too_deep = true;
    return !too_deep;
  };
  const nlohmann::json report = nlohmann::json::parse(json, callback, false);
  if (too_deep) return DataLoss(StrCat("iperf report nested deeper than ", kReportDepthMax));
  if (!report.is_object()) return DataLoss("iperf report is not a JSON object");
  const auto error = report.find("error");
  if (error != report.end()) {
    return Unavailable(error->is_string() ? error->get<std::string>() : "iperf failed");
  }
  const auto end = report.find("end");
  if (end == report.end() || !end->is_object()) return DataLoss("iperf report lacks 'end'");
  const auto received = end->find("sum_received");
  const auto sent = end->find("sum_sent");
  if (received == end->end() || !received->is_object() || sent == end->end() ||
      !sent->is_object()) {
    return DataLoss("iperf report lacks the totals of sender and receiver");
  }
  IperfReport result;
  WEIR_ASSIGN_OR_RETURN(const double bytes, Number(*received, "bytes"));
  WEIR_ASSIGN_OR_RETURN(result.seconds, Number(*received, "seconds"));
  WEIR_ASSIGN_OR_RETURN(const double bytes_sent, Number(*sent, "bytes"));
  if (bytes < 1 || result.seconds <= 0) {
    return DataLoss(StrCat("iperf receiver saw ", bytes, " bytes in ", result.seconds, " s"));
  }
  result.bytes_received = ToBytes(bytes);
  result.bytes_sent = ToBytes(bytes_sent);
  result.bandwidth_bytes_per_s = bytes / result.seconds;
  const StatusOr<double> retransmits = Number(*sent, "retransmits");
  if (retransmits.ok()) result.retransmits = ToBytes(*retransmits);
  result.deviation_bytes_per_s =
      std::max(IntervalDeviation(report), kRelativeDeviationMin * result.bandwidth_bytes_per_s);
  return result;
}

StatusOr<IperfReport> MeasureIperfBandwidth(const IperfOptions& options, const Clock& clock,
                                            std::stop_token stop) {
  const double seconds = ToSeconds(options.time_max);
  const nlohmann::json request = {
      {"role", "client"},
      {"host", options.host},
      {"port", options.port},
      {"bytes", options.bytes_max},
      // libiperf takes whole seconds; the rest is for setup and for exchanging results.
      {"seconds", std::clamp(static_cast<int>(seconds - 1.5), 1, 60)},
      {"reverse", options.reverse},
      {"streams", std::clamp(options.streams, 1, 16)},
      {"connect_timeout_ms", std::clamp(static_cast<int>(seconds * 500), 100, 5000)},
      {"seconds_max", seconds + 1},
  };
  const TimePoint deadline = clock.Now() + options.time_max;
  WEIR_ASSIGN_OR_RETURN(const auto helper,
                        HelperProcess::Spawn(MakeCommand(options.helper_program, request)));
  const auto output = helper->Wait(deadline, clock, stop);
  if (!output.ok()) {
    return Annotate(output.status(), StrCat("iperf3 to ", options.host, ":", options.port));
  }
  const auto report = ParseIperfReport(*output);
  if (!report.ok()) {
    return Annotate(report.status(), StrCat("iperf3 to ", options.host, ":", options.port));
  }
  return report;
}

IperfServer::IperfServer(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      thread_([this](const std::stop_token& stop) { Supervise(stop); }) {}

IperfServer::~IperfServer() {
  thread_.request_stop();
  thread_.join();
}

uint64_t IperfServer::tests_served() const {
  MutexLock lock(mutex_);
  return tests_served_;
}

std::string IperfServer::last_error() const {
  MutexLock lock(mutex_);
  return last_error_;
}

void IperfServer::Record(const Status& status) {
  const std::string error = status.ok() ? "" : Message(status);
  bool changed = false;
  {
    MutexLock lock(mutex_);
    ++tests_served_;
    changed = error != last_error_;
    last_error_ = error;
  }
  if (changed && !error.empty()) Log(LogLevel::kWarning, "agent", StrCat("iperf3 server: ", error));
}

void IperfServer::Supervise(const std::stop_token& stop) {
  NameThread("weir-iperf");
  const nlohmann::json request = {{"role", "server"},
                                  {"host", options_.host},
                                  {"port", options_.port},
                                  {"seconds_max", ToSeconds(options_.test_time_max)}};
  Duration pause = std::chrono::milliseconds(100);
  std::mutex mutex;
  std::condition_variable_any stopped;
  while (!stop.stop_requested()) {
    const TimePoint start = clock_.Now();
    Status status;
    const auto helper = HelperProcess::Spawn(MakeCommand(options_.helper_program, request));
    if (helper.ok()) {
      // A waiting server has no deadline: it ends with this process, and its tests have limits of
      // their own.
      const auto output = (*helper)->Wait(TimePoint::max(), clock_, stop);
      if (stop.stop_requested()) return;
      status = output.ok() ? ParseIperfReport(*output).status() : output.status();
      // The client uses the totals; here only a reported error matters.
      if (status.code() == StatusCode::kDataLoss) status = OkStatus();
    } else {
      status = helper.status();
    }
    Record(status);
    // A server that cannot start (the port is in use) is retried at growing intervals.
    const bool failed_at_once = !status.ok() && clock_.Now() - start < std::chrono::seconds(1);
    pause = failed_at_once ? std::min<Duration>(pause * 2, std::chrono::seconds(10))
                           : Duration(std::chrono::milliseconds(100));
    if (!failed_at_once) continue;
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, stop, pause, [] { return false; });
  }
}

}  // namespace weir::agent
