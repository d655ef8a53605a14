// Membership and observations of one job; decisions are in job_decide.cc.

#include "controller/service/job.h"

#include <algorithm>
#include <set>
#include <utility>

#include "controller/service/json.h"
#include "controller/service/mapping.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/json.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

// Of a parameter's name in an event. Ranks send no more, and events are kept.
constexpr size_t kEventParameterBytesMax = 256;

// Where a step's time went, besides what is exposed: these overlap with each other.
void AddBusyTimes(const StepObservation& step, v1::SeriesPoint* point) {
  double encode_s = 0, decode_s = 0, network_s = 0;
  for (const auto& bucket : step.buckets) {
    encode_s += bucket.encode_s;
    decode_s += bucket.decode_s;
    network_s += bucket.network_s;
  }
  point->set_encode_s(encode_s);
  point->set_decode_s(decode_s);
  point->set_codec_s(encode_s + decode_s);
  point->set_network_s(network_s);
  point->set_backward_s(step.backward_s);
}

}  // namespace

Job::Job(std::string name, JobHost& host, JobOptions options)
    : name_(std::move(name)), host_(host), options_(options) {
  for (const std::string& collective : LeasedCollectives()) {
    leases_.try_emplace(collective, name_, host_, host_.clock(), &lease_backoff_);
  }
  const auto highest = host_.store().HighestPlanVersion(name_);
  if (highest.ok()) highest_known_version_ = *highest;
}

Job::~Job() = default;

void Job::Warn(const std::string& message) const {
  Log(LogLevel::kWarning, "controller", StrCat("job ", name_, ": ", message));
}

void Job::Recover(const v1::Job& stored, std::optional<StoredPin> pin) {
  world_ = static_cast<int>(std::min<uint32_t>(stored.world(), kWorldMax));
  started_unix_s_ = stored.started_unix_s();
  bytes_sent_ = stored.bytes_sent();
  for (const auto& rank : stored.ranks()) {
    RankState state;
    state.node = rank.node();
    state.step = rank.step();
    state.plan_version = rank.plan_version();
    state.gone = stored.state() == "ended";
    ranks_[static_cast<int>(rank.rank())] = state;
  }
  if (stored.has_active_plan()) plans_[stored.active_plan().version()] = stored.active_plan();
  if (pin.has_value()) {
    v1::PinRequest request;
    if (FromJson(pin->payload, &request).ok()) pin_ = request;
  }
  const auto newest = host_.store().ListDecisions(name_, 0, 1);
  if (newest.ok() && !newest->empty()) {
    v1::Decision decision;
    if (FromJson(newest->front().payload, &decision).ok()) last_decision_ = decision;
  }
}

void Job::BeginIncarnation(const v1::RankHello& hello) {
  // Ranks that are further than the start belong to a run that this controller once knew.
  if (hello.step() == 0 || started_unix_s_ == 0) {
    started_unix_s_ = host_.clock().UnixSeconds();
    bytes_sent_ = 0;
    saved_s_ = compared_s_ = 0;
    non_finite_.reset();
    series_ = StepSeries();
  }
  ranks_.clear();
  buckets_.clear();
  plans_.clear();
  lease_plans_.clear();
  world_ = static_cast<int>(hello.world());
  epoch_ = hello.epoch();
  public_key_ = hello.proof().public_key();
  refusals_.clear();
  for (auto& [collective, lease] : leases_) lease.Begin(world_);
  finished_unix_s_ = 0;
  complete_since_.reset();
  was_complete_ = settle_known_ = false;
  rolling_decision_.reset();
  active_decision_.reset();
  requested_.reset();
  dense_only_until_.reset();
  retry_at_ = TimePoint{};
  model_ = std::make_unique<JobModel>(name_, world_, host_.clock());
  rollout_ = std::make_unique<Rollout>(world_, host_.clock(), options_.rollout);
  rollout_->ObserveVersion(highest_known_version_);
  monitor_ = PlanMonitor();
  dense_step_s_ = 0;
}

// "rank 0 on node a (process 71), rank 1 on node b (process 5) and 6 more".
std::string Job::DescribeMembers() const {
  constexpr int kNamedMax = 4;
  std::string text;
  int count = 0;
  for (const auto& [rank, state] : ranks_) {
    if (!state.connected || ++count > kNamedMax) continue;
    text += StrCat(text.empty() ? "" : ", ", "rank ", rank, " on node ", state.node, " (process ",
                   state.pid, ")");
  }
  return count <= kNamedMax ? text : StrCat(text, " and ", count - kNamedMax, " more");
}

Status Job::CheckIdentity(const std::string& node, const v1::RankHello& hello) const {
  const v1::RankProof& said = hello.proof();
  const std::string who = StrCat("rank ", hello.rank(), " on node ", node, " (process ",
                                 hello.pid(), ") of job '", name_, "'");
  if (hello.has_proof()) {
    const Status proven =
        CheckRankProof({name_, node, hello.rank(), hello.world(), hello.epoch(), said.challenge()},
                       {said.public_key(), said.node(), said.challenge(), said.signature()});
    if (!proven.ok()) {
      return InvalidArgument(StrCat(who, " did not prove the job's key: ", Message(proven)));
    }
  }
  if (model_ == nullptr || !attached()) return OkStatus();
  if (said.public_key() != public_key_) {
    const std::string_view difference = public_key_.empty() ? "has a job key and this job has none"
                                        : hello.has_proof() ? "proves another job key"
                                                            : "does not prove the job's key";
    return FailedPrecondition(StrCat(who, " ", difference, ": it is of another run than ",
                                     DescribeMembers(),
                                     ". Give one of the two a job name of its own"));
  }
  if (!public_key_.empty() || hello.epoch() <= epoch_ || UsesNode(node)) return OkStatus();
  return Unavailable(StrCat(who, " says epoch ", hello.epoch(), ", and ", DescribeMembers(),
                            " are in epoch ", epoch_,
                            ": without a job key only nodes that carry the job are believed"));
}

void Job::PublishRefusal(int rank, const std::string& reason) {
  if (refusals_.size() >= kRefusalsMax) refusals_.clear();
  if (!refusals_.insert(reason).second) return;  // it comes again with every attempt
  v1::Event event;
  event.set_kind("rank");
  event.set_job(name_);
  event.set_text(StrCat("refused: ", reason));
  event.mutable_rank_event()->set_kind("refused");
  event.mutable_rank_event()->set_detail(reason);
  event.mutable_rank_event()->set_guilty_rank(rank);
  host_.Publish(std::move(event));
}

Status Job::OnRankHello(const std::string& node, const v1::RankHello& hello) {
  WEIR_RETURN_IF_ERROR(CheckHello(hello));
  if (const Status known = CheckIdentity(node, hello); !known.ok()) {
    PublishRefusal(static_cast<int>(hello.rank()), Message(known));
    return known;
  }
  const int rank = static_cast<int>(hello.rank());
  const auto known = ranks_.find(rank);
  // A process id may repeat in containers; a step that runs backwards cannot.
  const bool restarted =
      model_ != nullptr && known != ranks_.end() && known->second.pid != 0 &&
      (known->second.pid != hello.pid() || hello.step() + 2 < known->second.step);
  // Survivors and replacements, renumbered: what is known of rank numbers is of other ranks.
  const bool formed_anew = model_ != nullptr && hello.epoch() > epoch_;
  if (model_ != nullptr && !restarted && hello.epoch() < epoch_ && attached()) {
    return FailedPrecondition(StrCat("job '", name_, "' runs in epoch ", epoch_, ", rank ", rank,
                                     " of node ", node, " says ", hello.epoch()));
  }
  if (model_ != nullptr && !restarted && !formed_anew &&
      static_cast<int>(hello.world()) != world_ && attached()) {
    return FailedPrecondition(StrCat("job '", name_, "' runs with world size ", world_, ", rank ",
                                     rank, " of node ", node, " says ", hello.world()));
  }
  if (model_ != nullptr && !formed_anew && known != ranks_.end() && known->second.connected &&
      known->second.node != node) {
    return FailedPrecondition(
        StrCat("rank ", rank, " of job '", name_, "' is attached on node ", known->second.node,
               " by process ", known->second.pid, "; process ", hello.pid(), " on node ", node,
               " must wait until that one has left, or use another job name"));
  }
  const bool another_run = model_ != nullptr && hello.proof().public_key() != public_key_;
  if (model_ == nullptr || restarted || formed_anew || another_run ||
      static_cast<int>(hello.world()) != world_) {
    BeginIncarnation(hello);
  }
  RankState& state = ranks_[rank];
  state.node = node;
  state.pid = hello.pid();
  state.connected = true;
  state.gone = false;
  state.step = std::max(state.step, hello.step());
  state.plan_version = hello.active_plan_version();
  state.frame_protection = hello.frame_protection();
  state.unauthenticated_peers = hello.unauthenticated_peers();
  if (hello.has_active_plan() && hello.active_plan().version() == hello.active_plan_version()) {
    plans_[hello.active_plan_version()] = hello.active_plan();
  }
  for (auto& [collective, lease] : leases_) lease.SetAddress(rank, hello.aggregation_address());
  if (hello.has_active_plan()) AdoptLeases(hello.active_plan());
  if (rank == 0) lease_told_s_ = -1;
  model_->SetRankNode(rank, node);
  if (hello.memory_group() > 0) {
    model_->SetLowestRank(
        rank, static_cast<int>(std::min<uint32_t>(hello.memory_group(), kWorldMax)) - 1);
  }
  model_->SetCapabilities(rank, CodecsOf(hello.capabilities(), world_),
                          CollectivesOf(hello.capabilities()));
  if (hello.capabilities().codecs_size() > 0) capabilities_ = hello.capabilities();
  highest_known_version_ = std::max(highest_known_version_, hello.active_plan_version());
  rollout_->OnRankConnected(rank, hello.active_plan_version());
  if (Complete()) {
    complete_since_ = host_.clock().Now();
    was_complete_ = true;
    settle_known_ = false;
    const v1::Job job = ToProto();
    Log(LogLevel::kInfo, "controller",
        StrCat("job ", name_, ": all ", world_, " ranks present, plan ", rollout_->active_version(),
               ", frames ",
               ProtectionText(job).empty() ? "of unknown protection" : ProtectionText(job),
               job.key_id().empty() ? "" : " by key ", job.key_id()));
  }
  PumpRollout();
  PublishState();
  return OkStatus();
}

void Job::OnRankMessage(int rank, const v1::RankMessage& message) {
  const auto found = ranks_.find(rank);
  if (model_ == nullptr || found == ranks_.end() || !found->second.connected) return;
  switch (message.body_case()) {
    case v1::RankMessage::kBuckets:
      if (rank == 0) OnBuckets(message.buckets());
      break;
    case v1::RankMessage::kStep:
      OnStep(rank, message.step());
      break;
    case v1::RankMessage::kPaths:
      OnPaths(rank, message.paths());
      break;
    case v1::RankMessage::kAck:
      rollout_->OnAck(rank, message.ack().version(), message.ack().nonce());
      break;
    case v1::RankMessage::kNack:
      rollout_->OnNack(rank, message.nack().version(), message.nack().nonce(),
                       message.nack().reason());
      break;
    case v1::RankMessage::kActive:
      found->second.plan_version = message.active().version();
      rollout_->OnActive(rank, message.active().version(), message.active().step());
      break;
    case v1::RankMessage::kEvent:
      OnRankEvent(rank, message.event());
      break;
    case v1::RankMessage::kHello:  // comes through OnRankHello
    case v1::RankMessage::BODY_NOT_SET:
      break;
  }
  PumpRollout();
}

void Job::OnBuckets(const v1::BucketTable& table) {
  auto buckets = ToModel(table);
  if (!buckets.ok()) {
    Warn(StrCat("bucket table of rank 0 ignored: ", Message(buckets.status())));
    return;
  }
  const bool changed =
      buckets->size() != buckets_.size() ||
      !std::equal(buckets->begin(), buckets->end(), buckets_.begin(),
                  [](const auto& a, const auto& b) {
                    return a.key == b.key && a.elements == b.elements && a.order == b.order;
                  });
  if (!changed) return;
  const bool rebuilt = !buckets_.empty();
  buckets_ = std::move(*buckets);
  bucket_table_ = table;
  model_->SetBuckets(buckets_);
  ApplyActivePlan(ranks_[0].step);
  if (rebuilt) RequestDecision("start", StrCat("the job now has ", buckets_.size(), " buckets"));
  PublishState();
}

void Job::OnStep(int rank, const v1::StepReport& report) {
  RankState& state = ranks_[rank];
  state.step = std::max(state.step, report.step());
  if (report.plan_version() > state.plan_version) {
    state.plan_version = report.plan_version();
    rollout_->OnActive(rank, report.plan_version(), report.step());
  }
  const StepObservation step = ToModel(rank, report);
  model_->OnStep(step);
  uint64_t bytes = 0;
  for (const auto& bucket : step.buckets) bytes += bucket.bytes_sent;
  bytes_sent_ += bytes;
  host_.OnTrainingBytes(bytes, policy());
  if (rank == 0) {
    if (step.skipped) ++counters_.skipped_steps;
    if (dense_step_s_ > 0 && !step.skipped) {
      saved_s_ += dense_step_s_ - step.step_s;
      compared_s_ += step.step_s;
    }
    host_.Publish([&] {
      v1::Event event;
      event.set_kind("step");
      event.set_job(name_);
      v1::SeriesPoint& point = *event.mutable_point();
      point.set_step(step.step);
      point.set_unix_s(host_.clock().UnixSeconds());
      point.set_step_s(step.step_s);
      point.set_compute_s(step.compute_s);
      point.set_exposed_s(step.exposed_s);
      point.set_plan_version(step.plan_version);
      point.set_gain(model_->gain());
      point.set_loss(step.loss.value_or(model_->loss().value_or(0)));
      point.set_bandwidth_bytes_per_s(Finite(model_->bandwidth_bytes_per_s().value));
      point.set_latency_s(Finite(model_->latency_s().value));
      AddBusyTimes(step, &point);
      point.set_skipped(step.skipped);
      point.set_dense_step_s(dense_step_s_);
      const size_t largest = LargestBucket();
      for (const auto& bucket : step.buckets) {
        if (largest >= buckets_.size() || bucket.bucket != buckets_[largest].key) continue;
        point.set_ratio(bucket.ratio);
        point.set_bits(static_cast<uint32_t>(bucket.bits));
        point.set_codec(bucket.codec);
        point.set_collective(bucket.collective);
      }
      series_.Add(point);
      return event;
    }());
    if (const auto found = ObserveActual(step); found.has_value()) {
      ++counters_.rollbacks;
      if (found->unsafe) {
        dense_only_until_ = host_.clock().Now() + dense_only_hold_;
        dense_only_hold_ = std::min<Duration>(dense_only_hold_ * 2, std::chrono::minutes(10));
      }
      RequestDecision("rollback", found->reason);
    }
  }
  series_.AddPredictions(model_->TakePredictions());
  if (rank == 0) MaybeDecide();
}

void Job::OnPaths(int rank, const v1::PathReport& report) {
  for (const auto& path : report.paths()) {
    const auto peer = ranks_.find(static_cast<int>(path.peer_rank()));
    if (peer == ranks_.end() || static_cast<int>(path.peer_rank()) == rank) continue;
    LinkObservation link;
    link.source_node = ranks_[rank].node;
    link.target_node = peer->second.node;
    link.method = "tcp_info";
    link.rtt_s = std::max(Finite(path.rtt_s()), 0.0);
    link.bandwidth_bytes_per_s = std::max(Finite(path.delivery_rate_bytes_per_s()), 0.0);
    link.application_limited = path.application_limited();
    model_->OnLink(link);
  }
}

void Job::OnLink(const LinkObservation& observation) {
  if (model_ != nullptr && UsesNode(observation.source_node) && UsesNode(observation.target_node)) {
    model_->OnLink(observation);
  }
}

// Several ranks may tell of one step, and one rank twice, as it learns more. False for what adds
// nothing to what is known of the step.
bool Job::LearnsNonFinite(const v1::RankEvent& event) {
  if (non_finite_.has_value() && event.step() < non_finite_->step()) return true;  // a late one
  const auto known = [](const v1::RankEvent& e) {
    return (e.guilty_rank() >= 0 ? 1 : 0) + (e.parameter().empty() ? 0 : 1);
  };
  if (non_finite_.has_value() && event.step() == non_finite_->step() &&
      known(event) <= known(*non_finite_)) {
    return false;
  }
  non_finite_ = event;
  return true;
}

void Job::OnRankEvent(int rank, const v1::RankEvent& told) {
  v1::RankEvent rank_event = told;
  rank_event.set_parameter(std::string(Utf8Prefix(told.parameter(), kEventParameterBytesMax)));
  if (rank_event.kind() == "non_finite") {
    if (rank_event.guilty_rank() >= 0) rank_event.set_guilty_rank(rank);  // it speaks for itself
    if (!LearnsNonFinite(rank_event)) return;
  }
  v1::Event event;
  event.set_kind("rank");
  event.set_job(name_);
  event.set_text(StrCat("rank ", rank, ": ", rank_event.kind(),
                        rank_event.detail().empty() ? "" : ": ", rank_event.detail()));
  *event.mutable_rank_event() = rank_event;
  if (rank_event.kind() == "peer_failed") Warn(event.text());
  host_.Publish(std::move(event));
  if (rank_event.kind() == "offload_failed") OnOffloadFailed(rank, rank_event.detail());
}

void Job::OnRankGone(int rank, const std::string& reason) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  found->second.connected = false;
  found->second.gone = true;
  complete_since_.reset();
  for (auto& [collective, lease] : leases_) {
    if (lease.held().has_value()) (void)lease.Fail(StrCat("rank ", rank, " left"));
  }
  if (rollout_ != nullptr) {
    rollout_->OnRankLost(rank, reason);
    PumpRollout();
  }
  if (state() == "ended") finished_unix_s_ = host_.clock().UnixSeconds();
  PublishState();
}

void Job::OnNodeLost(const std::string& node) {
  bool any = false;
  for (auto& [rank, state] : ranks_) {
    if (state.node != node || !state.connected) continue;
    state.connected = false;
    any = true;
    complete_since_.reset();
    if (rollout_ != nullptr)
      rollout_->OnRankLost(rank, StrCat("agent of node ", node, " disconnected"));
  }
  if (!any) return;
  PumpRollout();
  PublishState();
}

void Job::OnTick() {
  if (rollout_ == nullptr) return;
  rollout_->OnTick();
  PumpRollout();
  RenewLease();
  WatchLeases();
  const TimePoint now = host_.clock().Now();
  if (now < next_check_) return;
  next_check_ = now + FromSeconds(options_.check_interval_s);
  MaybeDecide();
}

bool Job::Complete() const {
  if (world_ == 0 || static_cast<int>(ranks_.size()) != world_) return false;
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank.second.connected; });
}

bool Job::attached() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank.second.connected; });
}

std::string Job::state() const {
  if (Complete()) return "running";
  if (ranks_.empty() || attached()) return "waiting";
  const bool ended =
      std::all_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.second.gone; });
  return ended ? "ended" : "lost";
}

double Job::complete_for_s() const {
  return complete_since_.has_value() ? ToSeconds(host_.clock().Now() - *complete_since_) : 0;
}

std::vector<std::string> Job::nodes() const {
  std::set<std::string> names;
  for (const auto& [rank, state] : ranks_) names.insert(state.node);
  return {names.begin(), names.end()};
}

bool Job::UsesNode(const std::string& node) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& rank) { return rank.second.node == node; });
}

bool Job::HasRankOn(int rank, const std::string& node) const {
  const auto found = ranks_.find(rank);
  return found != ranks_.end() && found->second.node == node;
}

size_t Job::LargestBucket() const {
  size_t largest = 0;
  for (size_t i = 1; i < buckets_.size(); ++i) {
    if (buckets_[i].elements > buckets_[largest].elements) largest = i;
  }
  return largest;
}

// A job is protected as its least protected rank is.
void Job::FillProtection(v1::Job* out) const {
  out->set_key_id(KeyId(public_key_));
  std::optional<v1::FrameProtection> least;
  uint32_t peers = 0;
  for (const auto& [rank, state] : ranks_) {
    least = std::min(least.value_or(state.frame_protection), state.frame_protection);
    peers = std::max(peers, state.unauthenticated_peers);
  }
  out->set_frame_protection(least.value_or(v1::FRAME_PROTECTION_UNSPECIFIED));
  out->set_unauthenticated_peers(std::min<uint32_t>(peers, kWorldMax));
}

v1::Job Job::ToProto() const {
  v1::Job out;
  out.set_name(name_);
  out.set_world(static_cast<uint32_t>(world_));
  uint64_t step = 0;
  for (const auto& [rank, state] : ranks_) {
    auto* entry = out.add_ranks();
    entry->set_rank(static_cast<uint32_t>(rank));
    entry->set_node(state.node);
    entry->set_connected(state.connected);
    entry->set_step(state.step);
    entry->set_plan_version(state.plan_version);
    step = std::max(step, state.step);
  }
  *out.mutable_buckets() = bucket_table_.buckets();
  out.set_step(step);
  out.set_bytes_sent(bytes_sent_);
  out.set_state(state());
  out.set_started_unix_s(started_unix_s_);
  out.set_saved_s(saved_s_);
  out.set_compared_s(compared_s_);
  if (non_finite_.has_value()) *out.mutable_non_finite() = *non_finite_;
  out.set_policy(PolicyName());
  FillProtection(&out);
  out.set_rollout_state("stable");
  if (pin_.has_value()) {
    out.set_pinned(StrCat(pin_->actor().empty() ? "unknown" : pin_->actor(), ": ",
                          ChoiceLabel(ToModel(pin_->choice())), pin_->reason().empty() ? "" : " (",
                          pin_->reason(), pin_->reason().empty() ? "" : ")"));
  }
  if (model_ == nullptr) {
    // Known from the store only: the newest plan that it names.
    if (!plans_.empty()) *out.mutable_active_plan() = Redacted(plans_.rbegin()->second);
    return out;
  }
  out.set_step_s(Finite(model_->step_s().value));
  out.set_loss(Finite(model_->loss().value_or(0)));
  out.set_gain(Finite(model_->gain()));
  out.set_rollout_state(std::string(RolloutStateName(rollout_->state())));
  if (const auto plan = plans_.find(rollout_->active_version()); plan != plans_.end()) {
    *out.mutable_active_plan() = Redacted(plan->second);
  }
  if (rollout_->pending_version() != 0) {
    const auto plan = plans_.find(rollout_->pending_version());
    if (plan != plans_.end()) *out.mutable_offered_plan() = Redacted(plan->second);
  }
  return out;
}

void Job::PublishState() {
  v1::Event event;
  event.set_kind("job");
  event.set_job(name_);
  *event.mutable_job_state() = ToProto();
  event.set_text(StrCat("job ", name_, " is ", event.job_state().state(), ", plan ",
                        rollout_ == nullptr ? 0 : rollout_->active_version()));
  host_.Publish(std::move(event));
  Save();
}

void Job::Save() {
  const Status saved =
      host_.store().PutJob({name_, ToJson(ToProto()), host_.clock().UnixSeconds()});
  if (saved.ok()) return;
  ++counters_.store_errors;
  Warn(StrCat("not stored: ", Message(saved)));
}

}  // namespace weir
