// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chooses the next bandwidth or route probe. Pure: time is passed in as a number. No two probes
// share a node, and their bytes come from a budget that fills with a share of the training traffic.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weir {

struct ScheduledProbe {
  std::string id, source, target;
  std::string method;  // "iperf3" or "traceroute"
  uint64_t bytes_max = 0;
  double deadline_s = 0;
};

/// Bytes and time of the probes of some links since these were first offered.
struct ProbeUse {
  uint64_t bytes = 0;
  double seconds = 0;
};

/// Not thread-safe.
class ProbeScheduler {
 public:
  static constexpr uint64_t kProbeBytesMax = 2u << 20;
  static constexpr uint64_t kProbeBytesMin = 128u << 10;
  /// Granted to every new link once, so that a job can start from a measurement.
  static constexpr uint64_t kInitialBytes = 1u << 20;
  static constexpr double kDeadlineS = 3;
  static constexpr double kRouteIntervalS = 600;

  /// Training sent `bytes`, of which `share` may be spent on probes.
  void OnTrainingBytes(uint64_t bytes, double share);
  /// A link between two nodes of a running job; unknown links are added. `bytes_wanted` is what a
  /// probe of it should move, within the two bounds above. Links not named since the last
  /// ForgetOtherLinks are dropped there.
  struct LinkOffer {
    bool iperf = false;      // false: routes only
    double interval_s = 30;  // how old a bandwidth estimate may become
    uint64_t bytes_wanted = kInitialBytes;
    double duty_max = 0.01;  // share of the time in which probes may run on it
  };
  void OfferLink(const std::string& source, const std::string& target, const LinkOffer& offer);
  void ForgetOtherLinks();
  /// Records a bandwidth sample by any method, so that no probe is needed for a while.
  void OnBandwidthSample(const std::string& source, const std::string& target, double now_s);
  void OnResult(const std::string& id, uint64_t bytes_used, double now_s);
  void OnNodeLost(const std::string& node);

  /// Returns the probes to start now, at most 256. Each occupies both nodes until its result, or
  /// until 2 s after its deadline. Links come in the order in which they became due. O(probes that
  /// run + links that are due, of which at most 4,096 are considered).
  std::vector<ScheduledProbe> Next(double now_s);

  double credit_bytes() const { return credit_bytes_; }
  uint64_t spent_bytes() const { return spent_bytes_; }
  double spent_s() const { return spent_s_; }
  /// The use of the links between these nodes. O(nodes squared, with a logarithm).
  ProbeUse UseBetween(const std::vector<std::string>& nodes) const;
  size_t running() const { return running_.size(); }

 private:
  struct Link {
    LinkOffer offer;
    bool offered = true;
    bool first_granted = false;
    double bandwidth_at_s = -1;  // -1: never
    double tried_at_s = -1e9;
    double routed_at_s = -1e9;
    double route_due_s = 0, bandwidth_due_s = 0;  // their places in the queues below
    double rests_until_s = -1e9;                  // after a probe, by the duty
    ProbeUse used;
  };
  struct Running {
    std::string source, target, method;
    uint64_t bytes_max = 0;
    double began_s = 0, expires_s = 0;
  };
  using Key = std::pair<std::string, std::string>;

  using Queue = std::set<std::pair<double, Key>>;  // by the time at which links are due

  void Expire(double now_s);
  void Enqueue(const Key& key, Link* link);
  void Dequeue(const Key& key, const Link& link);
  void Ended(const Running& probe, uint64_t bytes, double seconds, double now_s);
  ScheduledProbe BeginBandwidth(const Key& key, Link* link, double now_s);
  ScheduledProbe Begin(const Key& key, std::string method, uint64_t bytes, double now_s);

  std::map<Key, Link> links_;
  Queue routes_, bandwidths_;
  std::map<std::string, Running> running_;
  double credit_bytes_ = 0;
  uint64_t spent_bytes_ = 0;
  double spent_s_ = 0;
  uint64_t next_id_ = 1;
};

}  // namespace weir
