#pragma once
// Bandwidth by iperf3, the least trusted and most expensive method: bounded in bytes and time, one
// process per test (see iperf_helper.h).

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "agent/measure/helper_process.h"
#include "agent/measure/socket.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

namespace weir::agent {

struct IperfOptions {
  std::string helper_program;  // this agent's own executable
  std::string host;            // IP literal of the server
  uint16_t port = 5201;
  uint64_t bytes_max = 4u << 20;  // sent at most, give or take one 128 KiB block
  Duration time_max = std::chrono::seconds(10);
  bool reverse = false;  // true: measures server to client
  int streams = 1;
};

struct IperfReport {
  /// What the receiver saw: the sender's figure counts bytes that only reached socket buffers.
  double bandwidth_bytes_per_s = 0;
  double deviation_bytes_per_s = 0;
  uint64_t bytes_received = 0;
  uint64_t bytes_sent = 0;
  double seconds = 0;
  uint64_t retransmits = 0;
};

/// Runs one test against an iperf3 server and waits for it, at most time_max; the helper is killed
/// then. kUnavailable with iperf's own text (refused, server busy), kDeadlineExceeded, kAborted
/// (stop), kInternal (the helper failed), kDataLoss (a report that makes no sense).
StatusOr<IperfReport> MeasureIperfBandwidth(const IperfOptions& options, const Clock& clock,
                                            std::stop_token stop);

/// Reads libiperf's JSON report; trusts nothing. kUnavailable with the report's own error text,
/// kDataLoss when it is malformed, too deep, or lacks the receiver's totals.
StatusOr<IperfReport> ParseIperfReport(std::string_view json);

/// Keeps one iperf3 server process waiting at an address: each serves one test and is then
/// replaced; one whose client stalls is ended after `test_time_max`. Thread "weir-iperf".
class IperfServer {
 public:
  struct Options {
    std::string helper_program;
    std::string host;  // address to bind; empty: all
    uint16_t port = 5201;
    Duration test_time_max = std::chrono::seconds(30);
  };
  IperfServer(Options options, const Clock& clock);
  /// Ends the server process and joins.
  ~IperfServer();
  IperfServer(const IperfServer&) = delete;
  IperfServer& operator=(const IperfServer&) = delete;

  /// Tests served, failed ones included. Thread-safe.
  uint64_t tests_served() const;
  /// Why the last server process ended badly; empty when it did not. Thread-safe.
  std::string last_error() const;

 private:
  void Supervise(const std::stop_token& stop);
  void Record(const Status& status);

  const Options options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  uint64_t tests_served_ WEIR_GUARDED_BY(mutex_) = 0;
  std::string last_error_ WEIR_GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace weir::agent
