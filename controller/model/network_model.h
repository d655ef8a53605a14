// SPDX-License-Identifier: Apache-2.0
#pragma once
// The network as one job sees it: links, the calibrated filter, and the watch for changes.

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/model/arrival_pool.h"
#include "controller/model/change_detector.h"
#include "controller/model/job_estimates.h"
#include "controller/model/job_model.h"
#include "controller/model/link_estimator.h"
#include "controller/model/network_filter.h"
#include "controller/model/node_layout.h"

namespace weir {

/// A lasting shift of an estimate.
struct NetworkChange {
  bool bandwidth = false, latency = false;  // what moved
  double bandwidth_before = 0, bandwidth_after = 0;
  double latency_before = 0, latency_after = 0;
};

/// Evidence of bandwidth in order of trust: how fast payloads arrived, which alone says it as long
/// as any of that is known; completed collectives; probes; tcp_info that is not
/// application-limited, as a lower bound. Times are seconds on one monotonic clock. Not
/// thread-safe.
class NetworkModel {
 public:
  explicit NetworkModel(int world) : world_(world), filter_(world) {}

  /// The collectives that samples refer to by index. Calibrations of known names stay; a different
  /// list forgets the history that a change would be learned again from.
  void SetCollectives(const std::vector<CollectiveModel>& collectives);
  /// As NetworkFilter::SetRateMax. A rate is forgotten with a different list of collectives.
  void SetRateMax(int index, double bytes_per_s);
  /// As JobModel::SetLowestRank.
  void SetLowestRank(int rank, int lowest);
  /// A rank's device has exchanged so many bytes with those of its node, in so many seconds.
  void AddDeviceLink(double bytes, double seconds);
  /// Latency and bandwidth are the slowest that links of nodes to themselves showed.
  const SharedMemory& memory() const { return memory_; }
  const NetworkFilter& filter() const { return filter_; }
  /// Ranks of these nodes wait for cores, for such a share of the time that passes beyond what they
  /// are used to. What waits can explain says nothing against the network, until the next call.
  void SetWaits(std::map<std::string, double> waits) { waits_ = std::move(waits); }

  void AddLink(double now_s, const LinkObservation& observation);
  /// How fast payloads came from `source` to `target`. Where a window may have been what limits
  /// them it is a lower bound of the link; and where others came at the same time, too, but all of
  /// them together say what the target's host takes in.
  void AddArrival(double now_s, const std::string& source, const std::string& target,
                  const ArrivalObservation& arrival);
  /// The collectives of one step. `busy`: share of the step that the network was in use. A change
  /// is reported once, with the estimates that follow from the samples since it began.
  std::optional<NetworkChange> AddStep(double now_s, const std::vector<CollectiveSample>& samples,
                                       double busy);

  std::vector<LinkEstimate> Links(double now_s) const;
  /// Whether that link's bandwidth was seen in two windows, the last of them younger than
  /// `age_max_s`, and no newer sample disagrees. O(log links).
  bool KnowsBandwidth(const std::string& source, const std::string& target, double now_s,
                      double age_max_s) const;
  bool has_latency() const { return has_latency_ || steps_ >= 3; }
  bool has_bandwidth() const { return has_bandwidth_ || steps_ >= 1; }
  Measured Latency(double now_s) const;
  Measured Bandwidth(double now_s) const;
  /// Completed steps learned from.
  int steps() const { return steps_; }
  /// See JobModel::BandwidthProbeReason.
  std::string ProbeReason() const;

 private:
  /// One thing that the filter learned, kept so that a change can be learned again from its
  /// beginning.
  struct Event {
    enum class Kind { kStep, kAlpha, kBandwidth } kind = Kind::kStep;
    double at_s = 0, value = 0, log_deviation = 0;
    double surprise = 0;  // kStep only: standardised error of the prediction
    std::vector<CollectiveSample> samples;
    std::optional<Measured> arriving;  // kStep only: the bandwidth that arrivals say
    bool callers_teach = false;        // kStep only: as NetworkFilter::Update
    NetworkFilter before{1};           // kStep only: the filter before this step
  };
  static constexpr size_t kEventsMax = 64;
  static constexpr int kReplayStepsMax = 8;

  double WaitOf(const std::string& source, const std::string& target) const;
  /// Takes from the samples of a step what waits explain. False: they explain all of the slowness.
  bool LeaveOutWaits(double busy, std::vector<CollectiveSample>* samples) const;
  void AgeTo(double now_s);
  void MeasureWithin(double now_s);
  void Apply(const Event& event);
  void Remember(Event event);
  void WatchRtt(double at_s, const LinkEstimator& link, double rtt_s, double now_s);
  void FeedLatency(double now_s);
  /// Whether a rate is what a window allowed, so that the link may give more.
  bool MayBeWindows(const LinkEstimator& link, const LinkObservation& observation,
                    double now_s) const;
  /// Fixes the filter's bandwidth to what arrivals say. False: they say nothing.
  bool Pin(const std::optional<Measured>& arriving);
  void FeedBandwidth(double now_s, const LinkObservation& observation, double log_deviation);
  NetworkChange Relearn(int direction, int steps_max);

  int world_;
  NetworkFilter filter_;
  std::vector<std::string> collective_names_;
  std::vector<double> rates_max_;  // by collective; what a restored filter is told again
  SharedMemory memory_;            // what a restored filter is told again
  Smoothed device_link_log_{0.1};  // seconds per byte
  std::map<std::pair<std::string, std::string>, LinkEstimator> links_;
  std::map<std::pair<std::string, std::string>, double> windows_;  // of senders, in bytes
  std::map<std::string, double> waits_;                            // of nodes
  ArrivalPool arrivals_;
  std::deque<Event> events_;
  ChangeDetector detector_;
  double aged_to_s_ = -1;
  double latency_fed_s_ = -1e9;
  int raised_rtts_ = 0;  // round trips in a row, of any link, far above their link's floor
  double raised_since_s_ = 0;
  double rtt_changed_s_ = -1e9;  // round trips rose for good
  double changed_at_s_ = -1e9;   // bandwidth samples from before say nothing
  double busy_ = 0;
  double beta_share_ = 0;     // smoothed share of collective time that bytes cause
  double step_noise_ = 0.15;  // deviation of log(measured / predicted) per step
  bool has_latency_ = false, has_bandwidth_ = false;
  int steps_ = 0, own_steps_ = 0;  // the latter: with sums that are not all by callers
};

}  // namespace weir
