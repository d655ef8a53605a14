// SPDX-License-Identifier: Apache-2.0
// See network_model.h. The hard cases and what handles them:
// - Hosts whose cores are taken make collectives slow, and small payloads end before a window has
//   opened: as long as arrivals say what hosts take in, collectives teach their own terms only.
//   What ranks waited for cores beyond what the job is used to is taken from what was measured.
// - A drop of bandwidth shows in the next collectives; the detector needs two or three of them,
// then the
//   filter is set back to before the first, opened, and taught again.
// - While a heavily compressed plan runs, few bytes say little about bandwidth: its variance grows,
// and
//   ProbeReason asks for a probe.
// - Round-trip times under load include the queue (a token bucket may hold 20 ms): only the least
// of a
//   short window counts, and a rise seen while the network is busy is trusted less.

#include "controller/model/network_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "controller/model/format.h"

namespace weir {
namespace {

constexpr double kQueueS = 0.02;       // what a loaded queue may add to a round trip
constexpr double kRttClockS = 5e-4;    // scheduling noise of a round trip on a busy host
constexpr double kLatencyFeedS = 0.5;  // links are asked no more often: their samples overlap
constexpr double kBandwidthFreshS = 20;
constexpr double kAlphaOpen = 1.0, kBetaOpen = 1.5;           // log deviations after a change
constexpr double kBandwidthMoved = 0.2, kLatencyMoved = 0.4;  // logarithms worth a name
constexpr double kStepNoiseMin = 0.05, kStepNoiseMax = 0.4;
constexpr double kRttFreshS = 4;
constexpr double kRttRaised = 1.5;
constexpr int kRaisedRtts = 3;
constexpr double kBusyMin = 0.2;            // a busier network may hold a probe in its queue
constexpr int kWarmSteps = 4;               // before changes are looked for
constexpr double kSurpriseMin = 1;          // deviations, of a step that belongs to a change
constexpr double kArrivalDeviation = 0.08;  // what a slope does not say of itself
constexpr double kBurstDeviation = 0.9;     // of frames that a shaper's burst may hold
constexpr double kAlone = 1.2;              // times a link's rate that its host takes in meanwhile
constexpr double kFlight = 1.1;             // times a window: bytes that were in flight at once
constexpr double kEvenDeviation = 0.08;     // of a payload that came in even intervals
constexpr double kStepS = 0.5;              // a step, where nothing is known of the one before
constexpr double kWindowOpen = 1.4;         // times what a path holds
constexpr double kProbeShares = 0.5;
constexpr double kUnconfirmed = 0.7;  // of a probe that may have met a busy host
constexpr double kUncertain = 0.3;    // log deviation of bandwidth that asks for a probe
// No waits hide a network that became slower by more than four times.
constexpr double kExplainedMax = 0.75;
constexpr double kStallS = 0.05;  // that a round trip may take longer where cores are taken

// A connection's rate is what it got beside the others of its host.
double MethodDeviation(const std::string& method) {
  return method == "iperf3" ? 0.25 : method == "tcp_info" ? 0.7 : 0.4;
}

std::optional<NetworkChange> ChangeOfBandwidth(const std::optional<Measured>& before,
                                               const std::optional<Measured>& after) {
  if (!before.has_value() || !after.has_value()) return std::nullopt;
  if (std::fabs(std::log(after->value / before->value)) <= kBandwidthMoved) return std::nullopt;
  NetworkChange change;
  change.bandwidth = true;
  change.bandwidth_before = before->value;
  change.bandwidth_after = after->value;
  return change;
}

}  // namespace

void NetworkModel::SetCollectives(const std::vector<CollectiveModel>& collectives) {
  std::vector<std::string> names;
  names.reserve(collectives.size());
  for (const CollectiveModel& collective : collectives) names.push_back(collective.name);
  if (names == collective_names_) return;
  collective_names_ = std::move(names);
  filter_.SetCollectives(collectives);
  rates_max_.assign(collectives.size(), 0.0);
  events_.clear();
  detector_.Reset();
}

void NetworkModel::SetRateMax(int index, double bytes_per_s) {
  if (index < 0 || index >= static_cast<int>(rates_max_.size())) return;
  rates_max_[index] = bytes_per_s;
  filter_.SetRateMax(index, bytes_per_s);
}

void NetworkModel::SetLowestRank(int rank, int lowest) {
  if (rank < 0 || rank >= world_ || lowest < 0 || lowest >= world_) return;
  if (memory_.lowest_ranks.empty()) {
    memory_.lowest_ranks.resize(static_cast<size_t>(world_));
    std::iota(memory_.lowest_ranks.begin(), memory_.lowest_ranks.end(), 0);
  }
  memory_.lowest_ranks[static_cast<size_t>(rank)] = lowest;
  filter_.SetLayout(LayoutOf(memory_));
}

void NetworkModel::AddDeviceLink(double bytes, double seconds) {
  if (!(bytes > 0) || !(seconds > 0) || !std::isfinite(bytes / seconds)) return;
  device_link_log_.Add(std::log(seconds / bytes));
  memory_.device_s_per_byte = std::exp(device_link_log_.value_or(0));
  filter_.SetLayout(LayoutOf(memory_));
}

void NetworkModel::MeasureWithin(double now_s) {
  memory_.latency_s = memory_.s_per_byte = 0;
  for (const auto& [pair, link] : links_) {
    if (pair.first != pair.second) continue;
    const auto rtt = link.Rtt(now_s), bandwidth = link.Bandwidth(now_s);
    if (rtt.has_value()) memory_.latency_s = std::max(memory_.latency_s, rtt->value / 2);
    if (bandwidth.has_value() && bandwidth->value > 0) {
      memory_.s_per_byte = std::max(memory_.s_per_byte, 1 / bandwidth->value);
    }
  }
  filter_.SetLayout(LayoutOf(memory_));
}

void NetworkModel::AgeTo(double now_s) {
  if (aged_to_s_ >= 0) filter_.Age(now_s - aged_to_s_);
  aged_to_s_ = std::max(aged_to_s_, now_s);
}

bool NetworkModel::Pin(const std::optional<Measured>& arriving) {
  if (!arriving.has_value()) return false;
  filter_.PinBandwidth(arriving->value, arriving->deviation / arriving->value);
  has_bandwidth_ = true;
  return true;
}

void NetworkModel::Apply(const Event& event) {
  AgeTo(event.at_s);
  switch (event.kind) {
    case Event::Kind::kStep:
      filter_.Update(event.samples, !Pin(event.arriving), event.callers_teach);
      break;
    case Event::Kind::kAlpha:
      filter_.ObserveAlpha(event.value, event.log_deviation);
      break;
    case Event::Kind::kBandwidth:
      filter_.ObserveBandwidth(event.value, event.log_deviation);
      break;
  }
}

void NetworkModel::Remember(Event event) {
  events_.push_back(std::move(event));
  if (events_.size() > kEventsMax) events_.pop_front();
}

double NetworkModel::WaitOf(const std::string& source, const std::string& target) const {
  double wait = 0;
  for (const std::string& node : {source, target}) {
    const auto found = waits_.find(node);
    if (found != waits_.end()) wait += found->second;
    if (source == target) break;
  }
  return std::min(wait, kExplainedMax);
}

bool NetworkModel::LeaveOutWaits(double busy, std::vector<CollectiveSample>* samples) const {
  double wait = 0;
  for (const auto& [node, one] : waits_) wait += one;
  if (wait == 0 || busy <= 0) return true;
  // The datapath's threads wait while there is something to send or to receive.
  const double explained = std::min(kExplainedMax, wait / busy);
  double predicted = 0, measured = 0;
  for (const CollectiveSample& sample : *samples) {
    predicted += filter_.Predict(sample);
    measured += sample.seconds;
  }
  if (measured <= predicted) return true;
  const double factor = std::max(1 - explained, predicted / measured);
  if (factor * measured <= predicted) return false;
  for (CollectiveSample& sample : *samples) sample.seconds *= factor;
  return true;
}

void NetworkModel::AddLink(double now_s, const LinkObservation& observation) {
  const double at_s = now_s - std::max(0.0, observation.age_s);
  LinkEstimator& link = links_[{observation.source_node, observation.target_node}];
  const double wait = WaitOf(observation.source_node, observation.target_node);
  if (observation.window_bytes > 0) {
    windows_[{observation.source_node, observation.target_node}] = observation.window_bytes;
  }
  const auto floor = link.Rtt(now_s);
  const bool stalled = wait > 0 && floor.has_value() && observation.rtt_s > floor->value &&
                       observation.rtt_s < floor->value + kStallS;
  if (observation.rtt_s > 0 && !stalled) {
    if (observation.method != "tcp_info") WatchRtt(at_s, link, observation.rtt_s, now_s);
    link.AddRtt(at_s, observation.rtt_s, observation.method);
    FeedLatency(now_s);
  }
  // An application-limited sample is what the application wanted, not what the link could do.
  if (observation.bandwidth_bytes_per_s > 0 && !observation.application_limited) {
    const double deviation = MethodDeviation(observation.method);
    if (wait > 0 || MayBeWindows(link, observation, now_s)) {
      link.AddLowerBound(at_s, observation.bandwidth_bytes_per_s);
    } else {
      link.AddBandwidth(at_s, observation.bandwidth_bytes_per_s, deviation, observation.method);
    }
    if (wait == 0 && observation.method != "tcp_info") {  // a probe shares its way with the job
      arrivals_.AddProbe(at_s, observation.bandwidth_bytes_per_s,
                         std::hypot(deviation, kProbeShares * busy_), observation.method);
    }
    if (at_s > changed_at_s_) FeedBandwidth(now_s, observation, deviation);
  }
  if (observation.source_node == observation.target_node) MeasureWithin(now_s);
}

// A delivery rate never exceeds what the window allows, whatever the link gives: only where the
// window holds more than the way does, so that the rest queues at the slowest link, it is that
// link's. Within a node there is nothing better.
bool NetworkModel::MayBeWindows(const LinkEstimator& link, const LinkObservation& observation,
                                double now_s) const {
  if (observation.method != "tcp_info") return false;
  if (observation.source_node == observation.target_node) return false;
  // The way may have become longer lately, and flows share their hosts: arrivals know better.
  if (arrivals_.Bandwidth(now_s).has_value()) return true;
  const auto rtt = link.Rtt(now_s);
  // Round trips of the job's own connections include that queue.
  double rtt_s = observation.rtt_min_s;
  if (rtt.has_value() && (rtt_s == 0 || !link.rtt_is_loaded(now_s))) rtt_s = rtt->value;
  if (!(observation.window_bytes > 0) || rtt_s == 0) return true;
  return observation.window_bytes < kWindowOpen * observation.bandwidth_bytes_per_s * rtt_s;
}

void NetworkModel::AddArrival(double now_s, const std::string& source, const std::string& target,
                              const ArrivalObservation& arrival) {
  if (source == target || !(arrival.s_per_byte > 0) || !(arrival.ingress_s_per_byte > 0)) return;
  LinkEstimator& link = links_[{source, target}];
  const double rate = 1 / arrival.s_per_byte;
  const double ingress = 1 / std::min(arrival.ingress_s_per_byte, arrival.s_per_byte);
  const auto window = windows_.find({source, target});
  const auto rtt = link.Rtt(now_s);
  // Bytes that are in flight at once arrive at the link's speed, whatever the window allows. More
  // bytes arrive evenly if the link limits them, and window by window if the window does.
  const bool known = window != windows_.end() && rtt.has_value();
  const bool at_once =
      window != windows_.end() && arrival.payload_bytes <= kFlight * window->second;
  const bool open = at_once || !known || window->second >= kWindowOpen * rate * rtt->value;
  if (!open) {
    link.AddLowerBound(now_s, rate);
    return;
  }
  const bool even = arrival.relative_deviation <= kEvenDeviation;
  const bool steady = !arrival.within_burst && even && (at_once || known);
  const double systematic = arrival.within_burst ? kBurstDeviation : kArrivalDeviation;
  const double deviation = std::hypot(systematic, arrival.relative_deviation);
  if (const double wait = WaitOf(source, target); wait > 0) {
    link.AddLowerBound(now_s, rate);
    // Only what waits do not explain speaks of a slower network.
    const auto known = arrivals_.Bandwidth(now_s);
    if (known.has_value() && ingress < known->value && ingress > (1 - wait) * known->value) return;
    const bool slower = known.has_value() && ingress < known->value;
    arrivals_.Add(now_s, target, slower ? ingress / (1 - wait) : ingress,
                  std::hypot(deviation, -std::log(1 - wait)), false);
    return;
  }
  if (steady && ingress <= kAlone * rate) {
    link.AddBandwidth(now_s, rate, deviation, "arrivals");
  } else {
    link.AddLowerBound(now_s, rate);
  }
  arrivals_.Add(now_s, target, ingress, deviation, steady);
}

void NetworkModel::WatchRtt(double at_s, const LinkEstimator& link, double rtt_s, double now_s) {
  const auto floor = link.Rtt(now_s);
  if (!floor.has_value()) return;
  // The least of a window follows a rise only when the window has passed. Several round trips in a
  // row that no queue explains say it sooner.
  const double queue = busy_ > kBusyMin ? kQueueS : 0;
  if (rtt_s < kRttRaised * floor->value + queue + kRttClockS) {
    raised_rtts_ = 0;
    return;
  }
  if (raised_rtts_++ == 0) raised_since_s_ = at_s;
  const int wanted = std::min<int>(kRaisedRtts, 1 + static_cast<int>(links_.size()));
  if (raised_rtts_ < wanted) return;
  raised_rtts_ = 0;
  rtt_changed_s_ = now_s;
  for (auto& [pair, other] : links_) {
    other.ForgetRttBefore(raised_since_s_);
    other.Unconfirm();
  }
  filter_.Inflate(kAlphaOpen, kBetaOpen / 2);
  latency_fed_s_ = -1e9;
}

void NetworkModel::FeedLatency(double now_s) {
  if (now_s - latency_fed_s_ < kLatencyFeedS) return;
  double worst = 0;
  bool loaded = false;
  for (const auto& [pair, link] : links_) {
    const auto rtt = link.Rtt(now_s);
    if (!rtt.has_value() || rtt->age_s > kRttFreshS || rtt->value <= worst) continue;
    worst = rtt->value;
    loaded = link.rtt_is_loaded(now_s);
  }
  if (worst <= 0) return;
  latency_fed_s_ = now_s;
  has_latency_ = true;
  double deviation = 0.15 + kRttClockS / worst;
  if (worst / 2 > filter_.alpha_s()) {
    const double queue = kQueueS * (loaded ? 1 : std::clamp(2 * busy_ - 1, 0.0, 1.0));
    // One window is asked many times: what may be queue must not add up to certainty.
    deviation += 3 * std::log((worst + queue) / worst);
  }
  Event event;
  event.kind = Event::Kind::kAlpha;
  event.at_s = now_s;
  event.value = worst / 2;
  event.log_deviation = deviation;
  Apply(event);
  Remember(std::move(event));
}

void NetworkModel::FeedBandwidth(double now_s, const LinkObservation& observation,
                                 double deviation) {
  // The bottleneck rules, so only the slowest link measured lately may speak, and the fewer links
  // were measured, the less it says about the others.
  double slowest = 1e300;
  size_t measured = 0;
  bool confirmed = false;  // the slowest
  for (const auto& [pair, link] : links_) {
    const auto bandwidth = link.Bandwidth(now_s);
    const bool fresh = bandwidth.has_value() && bandwidth->age_s <= kBandwidthFreshS &&
                       now_s - bandwidth->age_s > changed_at_s_;
    // Nothing that a probe says of a network that changed since the last one is strange.
    const bool changed = changed_at_s_ > now_s - kBandwidthFreshS;
    const double estimate = !fresh ? 0 : changed ? link.newest_bandwidth() : bandwidth->value;
    const double value = std::max(estimate, link.LowerBound(now_s));
    if (!(value > 0)) continue;
    ++measured;
    if (value >= slowest) continue;
    slowest = value;
    confirmed = fresh && link.bandwidth_windows() >= 1 && !link.in_doubt();
  }
  if (measured == 0) return;
  const double current = 1 / filter_.beta_s_per_byte();
  const bool rises = slowest > current;
  // A flow that shares its sender's interface with others, or an idle moment of the job's own
  // traffic, looks slow without being so: a flow's rate is a lower bound of the link's.
  if (!rises && observation.method == "tcp_info") return;
  const double coverage = static_cast<double>(measured) / static_cast<double>(links_.size());
  deviation /= std::sqrt(std::max(coverage, 0.1));
  if (!rises) deviation += 0.5 * busy_;
  if (!rises && !confirmed) {
    if (filter_.beta_log_deviation() <= kUncertain) return;
    deviation = std::hypot(deviation, kUnconfirmed);
  }
  has_bandwidth_ = true;
  Event event;
  event.kind = Event::Kind::kBandwidth;
  event.at_s = now_s;
  event.value = slowest;
  event.log_deviation = deviation;
  Apply(event);
  Remember(std::move(event));
}

std::optional<NetworkChange> NetworkModel::AddStep(double now_s,
                                                   const std::vector<CollectiveSample>& samples,
                                                   double busy) {
  if (samples.empty()) return std::nullopt;
  AgeTo(now_s);
  busy_ = std::clamp(busy, 0.0, 1.0);
  Event event;
  event.at_s = now_s;
  event.samples = samples;
  event.before = filter_;
  const std::optional<Measured> before = arrivals_.Bandwidth(now_s);
  const bool again = arrivals_.EndStep(now_s);
  const std::optional<Measured> arriving = arrivals_.Bandwidth(now_s);
  event.arriving = arriving;
  Pin(arriving);
  const std::optional<NetworkChange> arrived =
      again ? ChangeOfBandwidth(before, arriving) : std::nullopt;
  if (arrived.has_value()) {
    for (auto& [pair, link] : links_) link.Unconfirm();
  }
  const bool warm = own_steps_ > kWarmSteps;
  if (warm && !LeaveOutWaits(busy_, &event.samples)) return arrived;
  double predicted = 0, measured = 0, bytes = 0;
  std::vector<CollectiveSample> own;
  for (const CollectiveSample& sample : event.samples) {
    if (!filter_.by_caller(sample.collective)) own.push_back(sample);
  }
  // As long as nothing else says anything of the network, the sums of callers do.
  event.callers_teach = !has_bandwidth_ && own_steps_ == 0;
  ++steps_;
  if (own.empty()) {
    beta_share_ *= 0.8;
    Apply(event);
    Remember(std::move(event));
    return std::nullopt;
  }
  for (const CollectiveSample& sample : own) {
    const double one = filter_.Predict(sample);
    predicted += one;
    measured += sample.seconds;
    bytes += one * filter_.BetaShare(sample);
  }
  beta_share_ += 0.2 * (bytes / predicted - beta_share_);
  const double error = std::log(measured / predicted);
  const double expected = std::sqrt(step_noise_ * step_noise_ + filter_.LogVariance(own));
  event.surprise = error / expected;
  Apply(event);
  Remember(std::move(event));
  if (++own_steps_ <= kWarmSteps) return std::nullopt;
  if (std::fabs(error) < 3 * expected) {
    step_noise_ = std::clamp(0.95 * step_noise_ + 0.05 * 1.25 * std::fabs(error), kStepNoiseMin,
                             kStepNoiseMax);
  }
  const int direction = detector_.Add(error / expected);
  if (arrived.has_value()) {
    detector_.Reset();  // what collectives say of the same change
    return arrived;
  }
  if (direction == 0) return std::nullopt;
  NetworkChange change = Relearn(direction, std::min(detector_.run_length(), kReplayStepsMax));
  if (!change.bandwidth && !change.latency) return std::nullopt;
  return change;
}

NetworkChange NetworkModel::Relearn(int direction, int steps_max) {
  // Find the step at which the change began: the run of steps that all erred its way. A step from
  // before would close the filter again before the first that knows better.
  size_t first = events_.size();
  int found = 0;
  for (size_t i = events_.size(); i > 0 && found < steps_max; --i) {
    if (events_[i - 1].kind != Event::Kind::kStep) continue;
    if (found > 0 && direction * events_[i - 1].surprise < kSurpriseMin) break;
    first = i - 1;
    ++found;
  }
  NetworkChange change;
  if (first == events_.size()) return change;
  filter_ = events_[first].before;
  for (size_t i = 0; i < rates_max_.size(); ++i) {
    filter_.SetRateMax(static_cast<int>(i), rates_max_[i]);
  }
  filter_.SetLayout(LayoutOf(memory_));
  change.bandwidth_before = 1 / filter_.beta_s_per_byte();
  change.latency_before = filter_.alpha_s();
  changed_at_s_ = events_[first].at_s;
  // The payloads of the step at which it began arrived after the step before.
  double before_s = changed_at_s_ - kStepS;
  for (size_t i = 0; i < first; ++i) {
    if (events_[i].kind == Event::Kind::kStep) before_s = events_[i].at_s;
  }
  arrivals_.ForgetUpTo(before_s, rtt_changed_s_ > before_s - kRttFreshS);
  const std::optional<Measured> arriving = arrivals_.Bandwidth(events_.back().at_s);
  // Round-trip times stay: their floor is what tells a queue from a longer way, and a longer way
  // that no queue explains is found by WatchRtt.
  for (auto& [pair, link] : links_) {
    link.ForgetBoundsBefore(changed_at_s_);
    link.Unconfirm();
  }
  filter_.Inflate(kAlphaOpen, kBetaOpen);
  for (size_t i = first; i < events_.size(); ++i) {
    if (events_[i].kind == Event::Kind::kStep) events_[i].before = filter_;
    events_[i].arriving = arriving;
    Apply(events_[i]);
  }
  change.bandwidth_after = 1 / filter_.beta_s_per_byte();
  change.latency_after = filter_.alpha_s();
  change.bandwidth =
      std::fabs(std::log(change.bandwidth_after / change.bandwidth_before)) > kBandwidthMoved;
  change.latency =
      std::fabs(std::log(change.latency_after / change.latency_before)) > kLatencyMoved;
  return change;
}

Measured NetworkModel::Latency(double now_s) const {
  const double value = filter_.alpha_s();
  return {value, value * filter_.alpha_log_deviation(),
          aged_to_s_ < 0 ? 0 : std::max(0.0, now_s - aged_to_s_)};
}

Measured NetworkModel::Bandwidth(double now_s) const {
  const double value = 1 / filter_.beta_s_per_byte();
  return {value, value * filter_.beta_log_deviation(),
          aged_to_s_ < 0 ? 0 : std::max(0.0, now_s - aged_to_s_)};
}

std::vector<LinkEstimate> NetworkModel::Links(double now_s) const {
  std::vector<LinkEstimate> links;
  for (const auto& [pair, link] : links_) {
    LinkEstimate out;
    out.source_node = pair.first;
    out.target_node = pair.second;
    out.rtt_s = link.Rtt(now_s).value_or(Measured{});
    out.bandwidth_bytes_per_s = link.Bandwidth(now_s).value_or(Measured{});
    out.rtt_method = link.rtt_method();
    out.bandwidth_method = link.bandwidth_method();
    out.rtt_samples = link.rtt_samples();
    out.bandwidth_samples = link.bandwidth_samples();
    out.bandwidth_windows = link.in_doubt() ? 0 : link.bandwidth_windows();
    links.push_back(std::move(out));
  }
  return links;
}

bool NetworkModel::KnowsBandwidth(const std::string& source, const std::string& target,
                                  double now_s, double age_max_s) const {
  const auto link = links_.find({source, target});
  if (link == links_.end()) return false;
  const auto bandwidth = link->second.Bandwidth(now_s);
  const bool certain = link->second.bandwidth_windows() >= 2 && !link->second.in_doubt();
  return bandwidth.has_value() && certain && bandwidth->age_s < age_max_s;
}

std::string NetworkModel::ProbeReason() const {
  const double deviation = filter_.beta_log_deviation();
  if (deviation <= kUncertain) return "";
  return StrCat("bandwidth is uncertain by ", NumberText(100 * deviation), " %: bytes make up ",
                NumberText(100 * beta_share_), " % of the time of collectives");
}

}  // namespace weir
