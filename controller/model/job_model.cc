// SPDX-License-Identifier: Apache-2.0
// See job_model.h. One observation's way: StepAssembler joins the ranks; the network's part of each
// bucket goes to NetworkModel, the codec's to CodecCalibrator, gains and ready times to the bucket;
// what shifted becomes a trigger (job_model_triggers.cc); MakeSnapshot writes it all down as plain
// data.

#include "controller/model/job_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "controller/model/cost_model.h"
#include "controller/model/job_model_state.h"

namespace weir {
namespace {

constexpr size_t kPredictionsMax = 4096;
constexpr std::string_view kLocalSteps = " local ";  // before what was learnt of these
constexpr double kFlapWindowS = 300;
constexpr uint64_t kGainSteps = 5;
constexpr double kGainLossNoticeable = 1e-3;
constexpr uint64_t kCurveWaitSteps = 10;  // longer than ranks take to sample new buckets

/// The slowest rank holds up the others.
CodecModel::Time Slower(const CodecModel::Time& a, const CodecModel::Time& b) {
  return {std::max(a.base_s, b.base_s), std::max(a.per_element_s, b.per_element_s),
          std::max(a.per_kept_s, b.per_kept_s),
          std::max(a.deviation_s_per_element, b.deviation_s_per_element)};
}

}  // namespace

CodecEstimate* JobModel::State::FindEstimate(const std::string& name, int bits) {
  for (CodecEstimate& codec : codecs) {
    if (codec.model.name == name && (bits == 0 || codec.model.bits == bits)) return &codec;
  }
  return nullptr;
}

int JobModel::State::FindCollective(const std::string& name) const {
  for (size_t i = 0; i < collectives.size(); ++i) {
    if (collectives[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

void JobModel::State::Intersect() {
  const auto named = [](const auto& list, const std::string& name) {
    return std::any_of(list.begin(), list.end(), [&](const auto& one) { return one.name == name; });
  };
  std::vector<CodecEstimate> kept;
  collectives.clear();
  const auto& [first_codecs, first_collectives] = offers.begin()->second;
  for (CodecModel codec : first_codecs) {
    const auto in = [&](const std::vector<CodecModel>& offered) {
      return std::find_if(offered.begin(), offered.end(), [&](const auto& other) {
        return other.name == codec.name && other.bits == codec.bits;
      });
    };
    const bool everywhere = std::all_of(offers.begin(), offers.end(), [&](const auto& offer) {
      return in(offer.second.first) != offer.second.first.end();
    });
    if (!everywhere) continue;
    for (const auto& [rank, offer] : offers) {
      const auto one = in(offer.first);
      codec.encode = Slower(codec.encode, one->encode);
      codec.decode = Slower(codec.decode, one->decode);
      codec.on_device = codec.on_device && one->on_device;
      codec.device_encode = Slower(codec.device_encode, one->device_encode);
      codec.device_decode = Slower(codec.device_decode, one->device_decode);
    }
    ApplyPriorTimes(&codec);
    CodecEstimate* known = FindEstimate(codec.name, codec.bits);
    const bool ran = known != nullptr &&
                     known->encode.samples() + known->device_encode.samples() > 0 &&
                     known->model.on_device == codec.on_device;
    kept.push_back(ran ? std::move(*known) : CodecEstimate(codec));
  }
  for (const CollectiveModel& collective : first_collectives) {
    const bool everywhere = std::all_of(offers.begin(), offers.end(), [&](const auto& offer) {
      return named(offer.second.second, collective.name);
    });
    if (everywhere) collectives.push_back(collective);
  }
  codecs = std::move(kept);
  network.SetCollectives(collectives);
}

void JobModel::State::LearnBucket(const AssembledBucket& bucket, const LayoutSpeedup& speedup,
                                  bool in_backward, std::vector<CollectiveSample>* samples) {
  const auto definition = std::find_if(buckets.begin(), buckets.end(),
                                       [&](const auto& one) { return one.key == bucket.key; });
  CodecEstimate* codec = FindEstimate(bucket.codec, bucket.bits);
  const int collective = FindCollective(bucket.collective);
  if (definition == buckets.end() || codec == nullptr || definition->elements == 0) return;
  const double elements = static_cast<double>(definition->elements);
  BucketEstimate& estimate = estimates[bucket.key];
  if (in_backward) estimate.ready_s.Add(bucket.ready_s);
  estimate.residual_ratio = std::isfinite(bucket.residual_ratio) ? bucket.residual_ratio : 0;
  const double kept =
      codec->model.uses_ratio ? KeptElements(codec->model, elements, bucket.ratio) : 0;
  const CollectiveModel ran = collective < 0 ? CollectiveModel{} : collectives[collective];
  if (collective >= 0 && codec->model.lossy) LearnGain(bucket, *codec, ran, &estimate);
  if (!ran.by_caller) LearnCodec(bucket, ran, elements, kept, codec);
  if (world == 1 || collective < 0 || !(bucket.network_s > 0)) return;
  if (codec->model.shared_metadata) metadata_s.Add(bucket.metadata_s);

  CodecModel priced = codec->model;
  priced.payload_scale = std::exp(codec->payload_log.value_or(0));
  const WireBytes bytes = PredictWireBytes(priced, elements, bucket.ratio);
  const CallerScale caller = CallerScaleOf(ran, definition->element_bytes, definition->sharded);
  const double rounds = caller.rounds * std::max(1, codec->model.rounds);
  const double floats = elements * sizeof(float);
  CollectiveSample sample{collective,  rounds,           bytes.payload,
                          bytes.index, bucket.network_s, SpeedupOf(speedup, ran),
                          floats};
  sample.payload_share = PredictBlockSaving(codec->model, collectives[collective],
                                            DensitiesOf(estimate.densities, world, Now()))
                             .share *
                         caller.payload;
  const bool there = bucket.encoded_on == CodecPlace::kDevice;
  sample.by_devices = there && ran.exchange.encodes_nodes && DevicesOfAll().linked;
  predictions.push_back({step, bucket.key, bucket.collective, bucket.codec,
                         network.filter().Predict(sample), bucket.network_s});
  if (predictions.size() > kPredictionsMax) predictions.pop_front();
  const bool varies = !codec->model.sums_without_decoding && !codec->model.indices_apart;
  if (varies && bucket.payload_bytes > 0 && elements >= 1000) {
    const CodecWork work = WorkOf(codec->model, ran, world, LayoutOf(network.memory()));
    sample.payload_bytes = bucket.payload_bytes / work.payload_share;
    const double relative = sample.payload_bytes * priced.payload_scale / bytes.payload;
    codec->payload_log.Add(std::clamp(std::log(relative), -1.5, 1.5));
  }
  samples->push_back(sample);
  if (codec->model.indices_apart && !estimate.gains.empty() && bucket.gain > 0) {
    BucketModel curve;
    curve.gain_ratios = estimate.gain_ratios;
    curve.gains = estimate.gains;
    const double ideal = PredictGain(codec->model, CollectiveModel{}, curve, bucket.ratio, world);
    if (ideal > 0) {
      gain_scale_log.try_emplace(bucket.collective, 0.1)
          .first->second.Add(std::clamp(std::log(bucket.gain / ideal), -2.0, 0.0));
    }
  }
}

// A time that is longer because the cores were taken is no property of the codec.
void JobModel::State::LearnCodec(const AssembledBucket& bucket, const CollectiveModel& ran,
                                 double elements, double kept, CodecEstimate* codec) {
  const CodecWork work = WorkOf(codec->model, ran, world, LayoutOf(network.memory()));
  const bool there = bucket.encoded_on == CodecPlace::kDevice;
  const bool starved = !cores.Excesses(Now()).empty();
  const auto learn = [&](double seconds, CodecCalibrator* calibrator) {
    if (starved && seconds > calibrator->Predict(elements, kept)) return;
    calibrator->Add(elements, kept, seconds);
  };
  learn(bucket.encode_s / work.MeanEncodes(), there ? &codec->device_encode : &codec->encode);
  learn(bucket.decode_s / work.MeanDecodes(), there ? &codec->device_decode : &codec->decode);
}

std::map<std::string, double> JobModel::State::WaitsOfNodes() const {
  std::map<std::string, double> waits;
  for (const auto& [rank, excess] : cores.Excesses(Now())) {
    const auto node = nodes.find(rank);
    if (node != nodes.end()) waits[node->second] += excess;
  }
  return waits;
}

// Codecs that do not say what they lost report exactly 1.
void JobModel::State::LearnGain(const AssembledBucket& bucket, const CodecEstimate& codec,
                                const CollectiveModel& ran, BucketEstimate* estimate) {
  BucketModel gradient;
  estimate->DescribeGradient(&gradient);
  CollectiveModel collective = ran;
  collective.gain_scale = GainScaleOf(ran);
  const double predicted =
      PredictGain(codec.Calibrated(), collective, gradient, bucket.ratio, world);
  if (bucket.gain == 1 && predicted < 1 - kGainLossNoticeable) return;
  estimate->measured_gains.Add({.codec = bucket.codec,
                                .collective = bucket.collective,
                                .bits = codec.model.bits,
                                .ratio = bucket.ratio,
                                .gain = bucket.gain,
                                .predicted = predicted},
                               Now());
}

void JobModel::State::Learn(const AssembledStep& assembled) {
  step = assembled.step;
  ++steps;
  if (assembled.loss.has_value()) loss = assembled.loss;
  if (assembled.skipped) return;  // what a rank with NaN measured says nothing
  // The first step of all warms connections and caches.
  if (steps > 1) {
    compute_s.Add(assembled.compute_s / assembled.period.steps);
    step_s.Add(assembled.step_s / assembled.period.steps);
    if (!assembled.period.local()) backward_s.Add(assembled.backward_s);
  }
  std::vector<CollectiveSample> samples;
  double busy_s = 0, kept = 0, elements = 0;
  const LayoutSpeedup& speedup = in_use.SpeedupOf(assembled.plan_version == plan_version);
  for (const AssembledBucket& bucket : assembled.buckets) {
    LearnBucket(bucket, speedup, !assembled.period.local(), &samples);
    busy_s += bucket.network_s;
    for (const BucketDefinition& definition : buckets) {
      if (definition.key != bucket.key || !std::isfinite(bucket.gain)) continue;
      kept += bucket.gain * static_cast<double>(definition.elements);
      elements += static_cast<double>(definition.elements);
    }
  }
  if (elements > 0) {
    gain.Add(kept / elements);
    LearnProgress(assembled, kept / elements);
  }
  const double busy = assembled.step_s > 0 ? busy_s / assembled.step_s : 0;
  const auto change = network.AddStep(Now(), samples, busy);
  if (change.has_value()) RaiseNetworkChange(*change);
  RaiseFollowUps();
  WatchDrift();
  if (assembled.plan_version == plan_version) WatchPlanGain();
}

Status JobModel::State::Missing() const {
  if (buckets.empty()) return FailedPrecondition("no bucket is known yet");
  if (static_cast<int>(offers.size()) < world) {
    return FailedPrecondition(
        StrCat("capabilities are known of ", offers.size(), " of ", world, " ranks"));
  }
  if (codecs.empty()) return FailedPrecondition("no codec is offered by every rank");
  if (collectives.empty()) return FailedPrecondition("no collective is offered by every rank");
  if (compute_s.count() == 0) {
    return FailedPrecondition(
        StrCat("no complete step was seen yet after the first, found ", steps));
  }
  for (const BucketDefinition& bucket : buckets) {
    if (steps >= steps_before_buckets + kCurveWaitSteps) break;
    const auto found = estimates.find(bucket.key);
    if (found != estimates.end() && !found->second.gains.empty()) continue;
    return FailedPrecondition(
        StrCat("the gradient of bucket ", bucket.key, " was not sampled yet"));
  }
  if (world == 1) return OkStatus();
  if (!network.has_latency()) return FailedPrecondition("latency was not measured yet");
  if (!network.has_bandwidth()) return FailedPrecondition("bandwidth was not measured yet");
  return OkStatus();
}

CodecModel CodecEstimate::Calibrated() const {
  CodecModel calibrated = model;
  if (encode.samples() > 0) calibrated.encode = encode.Time();
  if (decode.samples() > 0) calibrated.decode = decode.Time();
  if (device_encode.samples() > 0) calibrated.device_encode = device_encode.Time();
  if (device_decode.samples() > 0) calibrated.device_decode = device_decode.Time();
  calibrated.payload_scale = std::exp(payload_log.value_or(0));
  // A codec that loses more than it sends of normal input lets residuals grow as soon as they
  // look like it, even if the measured slices suited it well (sparse ones are exact at one bit).
  const bool contracts = model.relative_error_squared < 1;
  if (contracts && (model.error_model == "relative" || model.error_model == "selection")) {
    calibrated.relative_error_squared = relative_loss.value_or(model.relative_error_squared);
  } else if (model.error_model == "uniform_selection") {
    calibrated.uniform_loss = relative_loss.value_or(model.uniform_loss);
  }
  return calibrated;
}

double JobModel::State::GainScaleOf(const CollectiveModel& collective) const {
  const double prior = collective.exchange.gain_prior;
  if (prior == 1) return collective.gain_scale;
  const auto scale = gain_scale_log.find(collective.name);
  return scale == gain_scale_log.end() || !scale->second.seen()
             ? prior
             : std::exp(scale->second.value_or(0));
}

void JobModel::State::FillCollectives(Snapshot* snapshot) const {
  for (size_t i = 0; i < collectives.size(); ++i) {
    CollectiveModel model = collectives[i];
    network.filter().Calibrate(static_cast<int>(i), &model);
    model.gain_scale = GainScaleOf(model);
    snapshot->collectives.push_back(std::move(model));
  }
}

void JobModel::State::FillBuckets(Snapshot* snapshot) const {
  for (const BucketDefinition& definition : buckets) {
    BucketModel bucket;
    bucket.key = definition.key;
    bucket.elements = definition.elements;
    bucket.order = definition.order;
    bucket.element_bytes = definition.element_bytes;
    bucket.sharded = definition.sharded;
    const auto found = estimates.find(definition.key);
    if (found != estimates.end()) {
      bucket.ready_s = std::max(0.0, found->second.ready_s.value_or(0));
      found->second.DescribeGradient(&bucket);
      bucket.measured_gains = found->second.measured_gains.Get(Now());
      bucket.residual_ratio = std::max(0.0, found->second.residual_ratio);
      bucket.block_densities = DensitiesOf(found->second.densities, world, Now());
    }
    snapshot->buckets.push_back(std::move(bucket));
  }
}

JobModel::JobModel(std::string job, int world, const Clock& clock)
    : state_(std::make_unique<State>(std::move(job), world, clock)) {}
JobModel::~JobModel() = default;

void JobModel::SetCapabilities(int rank, std::vector<CodecModel> codecs,
                               std::vector<CollectiveModel> collectives) {
  if (rank < 0 || rank >= state_->world) return;
  state_->offers[rank] = {std::move(codecs), std::move(collectives)};
  state_->Intersect();
}

void JobModel::SetRateMax(const std::string& collective, double bytes_per_s) {
  state_->network.SetRateMax(state_->FindCollective(collective), bytes_per_s);
}

void JobModel::SetBuckets(std::vector<BucketDefinition> buckets) {
  State& s = *state_;
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const auto& a, const auto& b) { return a.order < b.order; });
  std::map<std::string, BucketEstimate> kept;
  for (const BucketDefinition& bucket : buckets) {
    const auto known = s.estimates.find(bucket.key);
    if (known != s.estimates.end()) kept.insert(*known);
  }
  s.estimates = std::move(kept);
  s.buckets = std::move(buckets);
  s.steps_before_buckets = s.steps;
  // Choices belong to positions: without a plan for these buckets nothing is known to run.
  if (s.plan.size() != s.buckets.size()) s.plan.clear();
}

void JobModel::SetRankNode(int rank, std::string node) { state_->nodes[rank] = std::move(node); }

void JobModel::SetLowestRank(int rank, int lowest) { state_->network.SetLowestRank(rank, lowest); }

void JobModel::SetGradientDevice(int rank, const GradientDevices& device) {
  if (rank >= 0 && rank < state_->world) state_->gradient_devices[rank] = device;
}

GradientDevices JobModel::State::DevicesOfAll() const {
  GradientDevices all;
  if (gradient_devices.size() != static_cast<size_t>(world)) return all;
  all.known = all.linked = true;
  for (const auto& [rank, device] : gradient_devices) {
    all.known = all.known && device.known;
    all.linked = all.linked && device.linked;
    all.copy_out_s_per_byte = std::max(all.copy_out_s_per_byte, device.copy_out_s_per_byte);
    all.copy_in_s_per_byte = std::max(all.copy_in_s_per_byte, device.copy_in_s_per_byte);
  }
  return all.known ? all : GradientDevices{};
}

void JobModel::SetActivePlan(uint64_t version, uint64_t step, PlanModel plan, PlanLayout layout,
                             bool excursion, const SyncModel& sync) {
  State& s = *state_;
  if (plan.size() != s.buckets.size()) return;
  const bool switched = version != s.plan_version || s.plan.empty();
  s.plan_version = version;
  s.plan = std::move(plan);
  s.sync = sync;
  if (!switched) return;

  s.in_use.Turn(std::move(layout), s.world, s.LinksOfNodes(),
                UnpipelinedShare(s.buckets, s.collectives, s.world));
  s.planned_bandwidth = s.decided_bandwidth;
  s.plan_since_s = s.Now();
  s.plan_steps = 0;
  s.plan_gain_told = false;
  s.step_s.Clear();
  if (excursion) return;
  s.progress.BeginPlan();
  s.sync_progress.BeginPlan();
  s.switches_s.push_back(s.plan_since_s);
  if (s.switches_s.size() > 1000) s.switches_s.pop_front();
}

void JobModel::SetLocalSteps(int rank, bool possible) {
  if (rank >= 0 && rank < state_->world) state_->local_steps[rank] = possible;
}

StepObservation StepObservation::OfOneStep() const {
  StepObservation one;
  one.rank = rank;
  one.step = step;
  one.plan_version = plan_version;
  one.skipped = skipped;
  one.loss = loss;
  one.buckets = buckets;
  one.step_s = step_s / period.steps;
  one.exposed_s = exposed_s / period.steps;
  one.compute_s = std::max(0.0, one.step_s - one.exposed_s);
  return one;
}

void JobModel::OnStep(const StepObservation& observation) {
  State& s = *state_;
  for (const GainObservation& curve : observation.gains) {
    const bool known = std::any_of(s.buckets.begin(), s.buckets.end(),
                                   [&](const auto& bucket) { return bucket.key == curve.bucket; });
    if (known) s.estimates[curve.bucket].AddCurve(curve);
  }
  for (const CodecLossObservation& seen : observation.codec_losses) {
    CodecEstimate* codec = s.FindEstimate(seen.codec, seen.bits);
    if (codec != nullptr) codec->relative_loss.Add(seen.relative_loss);
  }
  AddDensities(observation, s.Now(), &s.estimates);
  s.network.AddDeviceLink(observation.device_link_bytes, observation.device_link_s);
  const PeriodObservation& period = observation.period;
  const uint32_t before_submit = period.steps > period.overlap ? period.steps - period.overlap : 1;
  const double computed_s = period.local() ? observation.compute_s / before_submit
                                           : observation.compute_s + observation.backward_s;
  if (observation.rank >= 0 && observation.rank < s.world && computed_s >= 0 &&
      observation.step > 1) {
    s.paces.try_emplace(observation.rank, 15).first->second.Add(computed_s);
  }
  if (observation.cores.has_value() && observation.rank >= 0 && observation.rank < s.world) {
    s.cores.Add(s.Now(), observation.rank, *observation.cores);
  }
  s.network.SetWaits(s.WaitsOfNodes());
  const auto target = s.nodes.find(observation.rank);
  for (const ArrivalObservation& arrival : observation.arrivals) {
    const auto source = s.nodes.find(arrival.source_rank);
    if (source == s.nodes.end() || target == s.nodes.end()) continue;
    s.network.AddArrival(s.Now(), source->second, target->second, arrival);
  }
  const auto assembled = s.assembler.Add(observation);
  if (!assembled.has_value()) return;
  s.Learn(*assembled);
  if (s.steps % kGainSteps == 0) s.WatchGain();
}

void JobModel::OnLink(const LinkObservation& observation) {
  state_->network.SetWaits(state_->WaitsOfNodes());
  state_->network.AddLink(state_->Now(), observation);
}

void JobModel::OnNccl(const std::string& node, const NcclObservation& sums) {
  state_->nccl.Add(state_->Now(), node, sums);
}

std::string JobModel::BandwidthProbeReason() const {
  return state_->world > 1 && !state_->collectives.empty() ? state_->network.ProbeReason() : "";
}

bool JobModel::WantsLinkProbe(const std::string& source, const std::string& target) const {
  const State& s = *state_;
  const bool lays = std::any_of(s.collectives.begin(), s.collectives.end(), GoesByLayout);
  std::set<std::string> nodes;
  for (const auto& [rank, node] : s.nodes) nodes.insert(node);
  // Two nodes have one ring, and shards of any size move alike.
  if (!lays || nodes.size() < 3 || nodes.size() > static_cast<size_t>(kRingNodesMax)) return false;
  return !s.network.KnowsBandwidth(source, target, s.Now(), kLinkProbeS);
}

StatusOr<Snapshot> JobModel::MakeSnapshot(const std::string& trigger) const {
  const State& s = *state_;
  WEIR_RETURN_IF_ERROR(s.Missing());
  const double now_s = s.Now();
  Snapshot snapshot;
  snapshot.job = s.job;
  snapshot.world = s.world;
  snapshot.step = s.step;
  snapshot.trigger = trigger;
  s.FillBuckets(&snapshot);
  for (const CodecEstimate& codec : s.codecs) snapshot.codecs.push_back(codec.Calibrated());
  s.FillCollectives(&snapshot);
  snapshot.compute_s = s.compute_s.Get();
  snapshot.backward_s.value = std::max(0.0, s.backward_s.value_or(0));
  if (s.world > 1) {
    snapshot.latency_s = s.network.Latency(now_s);
    snapshot.bandwidth_bytes_per_s = s.network.Bandwidth(now_s);
    snapshot.reduce_s_per_byte = s.network.filter().gamma_s_per_byte();
    WorldFunctionModel levels;
    levels.log2_n = 2;
    snapshot.metadata_overhead_s =
        std::max(0.0, s.metadata_s.Get().value - levels.At(s.world) * snapshot.latency_s.value);
  }
  snapshot.progress = s.progress.LogLikelihood();
  snapshot.progress_gain_seen = std::round(s.progress.gain_seen() * 1e4) / 1e4;
  snapshot.incumbent = s.plan;
  if (s.world > 1) snapshot.node_links = s.LinksOfNodes();
  snapshot.memory = s.network.memory();
  snapshot.devices = s.DevicesOfAll();
  snapshot.layout = s.in_use.layout;
  snapshot.speedup = s.in_use.speedup;
  snapshot.local = s.Local();
  if (!s.plan.empty()) {
    const double since_s = std::max(0.0, now_s - s.plan_since_s);
    snapshot.seconds_since_switch = std::round(since_s * 1e3) / 1e3;  // records stay small
    snapshot.measured_step_s = std::round(s.step_s.Get().value * 1e7) / 1e7;
  }
  snapshot.recent_switches =
      static_cast<int>(std::count_if(s.switches_s.begin(), s.switches_s.end(),
                                     [&](double at_s) { return now_s - at_s <= kFlapWindowS; }));
  return snapshot;
}

std::vector<LinkEstimate> JobModel::Links() const { return state_->network.Links(state_->Now()); }
std::vector<RankPace> JobModel::Paces() const {
  std::vector<RankPace> paces;
  std::vector<double> sorted;
  for (const auto& [rank, pace] : state_->paces) {
    if (pace.count() < kPaceSteps) continue;
    paces.push_back({rank, pace.Get(), 1});
    sorted.push_back(paces.back().compute_s.value);
  }
  if (paces.size() < 2) return paces;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  double deviation_s = 0;  // of the middle rank
  for (const RankPace& pace : paces) {
    if (pace.compute_s.value == *middle) deviation_s = pace.compute_s.deviation;
  }
  for (RankPace& pace : paces) {
    const double behind_s = pace.compute_s.value - *middle;
    const double joint_s = std::hypot(pace.compute_s.deviation, deviation_s);
    if (!(*middle > 0) || pace.compute_s.value < kPaceMin * *middle) continue;
    if (behind_s > kPaceDeviations * joint_s) pace.slower = pace.compute_s.value / *middle;
  }
  return paces;
}

std::vector<RankCores> JobModel::Cores() const {
  std::vector<RankCores> cores;
  const double now_s = state_->Now();
  for (int rank = 0; rank < state_->world; ++rank) {
    const auto recent = state_->cores.Recent(rank, now_s);
    if (!recent.has_value()) continue;
    cores.push_back({rank, *recent, state_->cores.Excess(rank, now_s) > 0});
  }
  return cores;
}

std::optional<NcclConclusion> JobModel::NcclOn(const std::string& node) const {
  return state_->nccl.Of(node, state_->Now());
}

bool JobModel::starved() const { return !state_->cores.Excesses(state_->Now()).empty(); }

Measured JobModel::latency_s() const { return state_->network.Latency(state_->Now()); }
Measured JobModel::bandwidth_bytes_per_s() const {
  return state_->network.Bandwidth(state_->Now());
}
Measured JobModel::step_s() const { return state_->step_s.Get(); }
uint64_t JobModel::step() const { return state_->step; }
double JobModel::gain() const { return state_->gain.value_or(1); }
std::optional<double> JobModel::loss() const { return state_->loss; }
const ProgressModel& JobModel::progress() const { return state_->progress; }

std::string JobModel::SaveProgress() const {
  const std::string learnt = state_->progress.Save();
  if (learnt.empty()) return "";
  std::string saved = StrCat(state_->step, " ", learnt);
  if (!state_->made_local_steps) return saved;
  const std::string local = state_->sync_progress.Save();
  return local.empty() ? saved : StrCat(saved, kLocalSteps, local);
}

Status JobModel::RestoreProgress(std::string_view saved, uint64_t step) {
  uint64_t at = 0;
  const auto [end, error] = std::from_chars(saved.data(), saved.data() + saved.size(), at);
  if (error != std::errc() || end == saved.data() + saved.size() || *end != ' ') {
    return InvalidArgument("expected a step and a state of the progress model");
  }
  if (at > step) {
    return InvalidArgument(StrCat("progress was saved at step ", at, ", the run is at ", step));
  }
  saved.remove_prefix(static_cast<size_t>(end - saved.data()) + 1);
  const size_t local = saved.find(kLocalSteps);
  ProgressModel sync_progress = state_->sync_progress;
  if (local != std::string_view::npos) {
    WEIR_RETURN_IF_ERROR(
        sync_progress.Restore(saved.substr(local + kLocalSteps.size()), step - at));
  }
  WEIR_RETURN_IF_ERROR(state_->progress.Restore(saved.substr(0, local), step - at));
  if (local == std::string_view::npos) return OkStatus();
  state_->sync_progress = std::move(sync_progress);
  state_->made_local_steps = true;
  return OkStatus();
}

std::vector<PredictionRecord> JobModel::TakePredictions() {
  std::vector<PredictionRecord> taken(state_->predictions.begin(), state_->predictions.end());
  state_->predictions.clear();
  return taken;
}

}  // namespace weir
