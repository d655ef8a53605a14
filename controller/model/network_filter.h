// SPDX-License-Identifier: Apache-2.0
#pragma once
// The calibrated network: latency, inverse bandwidth and reduction cost of the job, and what each
// implemented collective adds to its formula, estimated together from completed collectives.

#include <string>
#include <vector>

#include "controller/model/node_layout.h"
#include "controller/model/snapshot.h"

namespace weir {

/// One completed collective, skew removed.
struct CollectiveSample {
  int collective = 0;  // index into the filter's collectives
  double rounds = 1;
  double payload_bytes = 0, index_bytes = 0;
  double seconds = 0;
  double speedup = 1;        // of payloads under the plan's layout, see SpeedupOf
  double dense_bytes = 0;    // of the bucket as float32, which nodes add before they encode
  double payload_share = 1;  // of the payload term, see BlockSaving
  bool by_devices = false;   // what is within nodes moved between linked devices
};

/// Extended Kalman filter (recursive least squares whose forgetting is a process noise) over the
/// logarithms of
///   alpha, beta, gamma, and for every collective its overhead, alpha_scale and beta_scale,
/// so that every estimate stays positive. One observation is
///   seconds = rounds (overhead + alpha_scale (L alpha + W) + R gamma bytes)
///             + beta_scale ((P share bytes / speedup + I index_bytes) max(beta, 1 / rate)
///             + V bytes)
/// with L, P, I, R the collective's features in the job's world, W and V what it does within nodes
/// (FeaturesOf; their latency and bandwidth are given, not estimated), and rate what an aggregator
/// that it runs on takes in from a rank, infinite for all others. It is observed as a
/// logarithm, with Huber weights against outliers and an iterated update because a logarithm of a
/// sum bends. What keeps the parts apart: round-trip times pin alpha, narrow priors hold the scales
/// near 1, bytes differ between buckets and plans, and a sample says about each part only what its
/// share of the time allows: a heavily compressed plan hardly moves beta, nor does an aggregator
/// that takes in less than the network carries, and beta's variance then grows with time. Sums that
/// callers make over groups of their own (by_caller) may take other ways than the job's own
/// messages, such as NVLink: they teach only their own terms, whose priors are wide. Not
/// thread-safe. Deterministic.
class NetworkFilter {
 public:
  explicit NetworkFilter(int world) : world_(world) {}

  /// Declares the collectives. Known names keep their calibration. The order is the index order.
  void SetCollectives(const std::vector<CollectiveModel>& collectives);

  /// Where the job's ranks are. Nothing learnt is forgotten.
  void SetLayout(const NodeLayout& layout);

  /// Sets the rate at which the aggregator under collective `index` can receive from one rank; 0:
  /// no limit.
  void SetRateMax(int index, double bytes_per_s);

  /// Variances grow by the drift of `seconds`.
  void Age(double seconds);
  /// Predicted time of one sample (its `seconds` is ignored).
  double Predict(const CollectiveSample& sample) const;
  /// Variance of log(sum of predictions) from the parameters' uncertainty.
  double LogVariance(const std::vector<CollectiveSample>& samples) const;
  /// Learns from the collectives of one step. learns_beta: whether they say something of beta, too;
  /// else its uncertainty counts, but stays (a Schmidt-Kalman filter's consider state).
  /// callers_teach: sums of callers say something of the network, as nothing else does.
  void Update(const std::vector<CollectiveSample>& samples, bool learns_beta = true,
              bool callers_teach = false);
  bool by_caller(int index) const { return collectives_[static_cast<size_t>(index)].by_caller; }
  /// Bandwidth is what a better source says, with its log deviation, whatever was learnt before.
  void PinBandwidth(double bytes_per_s, double log_deviation);
  /// A direct measurement with its relative (log) deviation. Callers pass what is already robust
  /// against outliers, so a value far from the estimate opens it instead of being played down.
  void ObserveAlpha(double seconds, double log_deviation);
  void ObserveBandwidth(double bytes_per_s, double log_deviation);
  /// The network may have changed: alpha and beta are open again, the collectives' own terms are
  /// not.
  void Inflate(double alpha_log_deviation, double beta_log_deviation);

  double alpha_s() const;
  double beta_s_per_byte() const;
  double gamma_s_per_byte() const;
  double alpha_log_deviation() const;
  double beta_log_deviation() const;
  /// Typical error of one prediction, as a logarithm: what no parameter explains.
  double noise() const { return noise_; }
  /// Share of a sample's predicted time that bytes cause.
  double BetaShare(const CollectiveSample& sample) const;

  /// Writes scales, overhead and relative deviation of collective `index`.
  void Calibrate(int index, CollectiveModel* model) const;

 private:
  struct Terms {
    double overhead = 0, latency = 0, reduce = 0, bytes = 0;
    double beta_weight = 1;  // share of `bytes` that beta decides
    double within_latency = 0, within_bytes = 0;
    double Sum() const {
      return overhead + latency + reduce + bytes + within_latency + within_bytes;
    }
  };
  Terms TermsOf(const CollectiveSample& sample, const std::vector<double>& x) const;
  void Gradient(const CollectiveSample& sample, const std::vector<double>& x,
                std::vector<double>* gradient) const;
  /// Whether `sample` says something of the network and of other collectives; see Update.
  void UpdateOne(const CollectiveSample& sample, double correlation, bool learns_beta,
                 bool learns_others);
  void ObserveState(size_t index, double value, double log_deviation);
  void Clamp();
  double& P(size_t i, size_t j) { return covariance_[i * size_ + j]; }
  double P(size_t i, size_t j) const { return covariance_[i * size_ + j]; }

  int world_;
  std::vector<CollectiveModel> collectives_;
  NodeLayout layout_;
  struct Features {
    CollectiveFeatures cost, by_devices;
    double byte_s_min = 0;  // of an aggregator
  };
  std::vector<Features> features_;
  size_t size_ = 0;
  std::vector<double> mean_;        // logarithms
  std::vector<double> covariance_;  // row-major size_ x size_
  double noise_ = 0.2;
};

}  // namespace weir
