// SPDX-License-Identifier: Apache-2.0
#include "controller/server/event_hub.h"

#include "controller/messages/mapping.h"
#include "controller/server/fleet_mapping.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

// The part of an event that is kept for later subscribers; bodies may hold thousands of buckets.
std::shared_ptr<const v1::Event> ForHistory(const v1::Event& event) {
  if (event.kind() == "step" || event.kind() == "link") return nullptr;
  v1::Event kept;
  kept.set_kind(event.kind());
  kept.set_unix_s(event.unix_s());
  kept.set_job(event.job());
  kept.set_text(event.text());
  kept.set_id(event.id());
  if (event.has_rank_event()) *kept.mutable_rank_event() = event.rank_event();
  if (event.has_decision()) {
    *kept.mutable_decision() = event.decision();
    kept.mutable_decision()->clear_plan();
    kept.mutable_decision()->clear_candidates();
  }
  return std::make_shared<const v1::Event>(std::move(kept));
}

}  // namespace

Subscription::Subscription(const v1::WatchRequest& request, std::function<void()> wake)
    : kinds_(request.kinds().begin(), request.kinds().end()),
      job_(request.job()),
      wake_(std::move(wake)) {}

bool Subscription::Wants(const v1::Event& event) const {
  if (!kinds_.empty() && !kinds_.contains(event.kind())) return false;
  return job_.empty() || event.job().empty() || event.job() == job_;
}

void Subscription::Push(std::shared_ptr<const v1::Event> event) {
  if (!queue_.PushDroppingOldest(std::move(event))) ++dropped_;
  Wake();
}

void Subscription::Prefill(std::shared_ptr<const v1::Event> event) {
  if (!queue_.PushDroppingOldest(std::move(event))) ++dropped_;
}

void Subscription::Wake() {
  MutexLock lock(wake_mutex_);
  if (wake_) wake_();
}

void Subscription::Detach() {
  MutexLock lock(wake_mutex_);
  wake_ = nullptr;
}

std::shared_ptr<const v1::Event> Subscription::Next(Duration timeout) {
  auto event = queue_.Pop(RealClock().Now() + timeout);
  return event.has_value() ? std::move(*event) : nullptr;
}

std::shared_ptr<const v1::Event> Subscription::TryNext() {
  auto event = queue_.TryPop();
  return event.has_value() ? std::move(*event) : nullptr;
}

void Subscription::Close() {
  closed_ = true;
  queue_.Close();
  Wake();
}

StatusOr<std::shared_ptr<Subscription>> EventHub::Subscribe(const v1::WatchRequest& request,
                                                            std::function<void()> wake) {
  static const std::set<std::string> kKinds = {"node",   "link", "job", "decision",
                                               "policy", "step", "rank"};
  for (const std::string& kind : request.kinds()) {
    if (!kKinds.contains(kind)) {
      return InvalidArgument(StrCat("unknown event kind '", kind,
                                    "'; valid: decision, job, link, node, policy, rank, step"));
    }
  }
  MutexLock lock(mutex_);
  if (closed_) return Unavailable("the controller is shutting down");
  if (subscriptions_.size() >= kWatchersMax) {
    return ResourceExhausted(StrCat("at most ", kWatchersMax, " watchers at a time"));
  }
  subscriptions_.push_back(std::make_shared<Subscription>(request, std::move(wake)));
  if (request.replay()) {
    const uint64_t after = request.after_id() > last_id_ ? 0 : request.after_id();
    for (const auto& event : history_) {
      if (event->id() > after && subscriptions_.back()->Wants(*event)) {
        subscriptions_.back()->Prefill(event);
      }
    }
  }
  return subscriptions_.back();
}

void EventHub::Unsubscribe(const std::shared_ptr<Subscription>& subscription) {
  MutexLock lock(mutex_);
  subscriptions_.remove(subscription);
}

void EventHub::Publish(v1::Event event) {
  std::vector<std::shared_ptr<Subscription>> wanting;
  {
    MutexLock lock(mutex_);
    event.set_id(++last_id_);
    if (auto kept = ForHistory(event); kept != nullptr) {
      history_.push_back(std::move(kept));
      if (history_.size() > kHistoryMax) history_.pop_front();
    }
    for (const auto& subscription : subscriptions_) {
      if (subscription->Wants(event)) wanting.push_back(subscription);
    }
  }
  if (wanting.empty()) return;
  const auto shared = std::make_shared<const v1::Event>(std::move(event));
  for (const auto& subscription : wanting) subscription->Push(shared);
}

void EventHub::OnEvent(const FleetEvent& event, double unix_s) {
  // These come at every sample, and are not kept for later watchers.
  if (event.kind == FleetEvent::Kind::kLink && watchers() == 0) return;
  v1::Event out = ToProto(event);
  out.set_unix_s(unix_s);
  Publish(std::move(out));
}

void EventHub::OnEvent(const JobEvent& event, double unix_s) {
  if (std::holds_alternative<StepPoint>(event.body) && watchers() == 0) return;
  v1::Event out = ToProto(event);
  const v1::Decision& decision = out.decision();
  if (decision.switched() && decision.outcome() == "offered") {
    Log(LogLevel::kInfo, "controller",
        StrCat("job ", event.job, " step ", decision.step(), ": ", decision.from(), " -> ",
               decision.to(), " (plan ", decision.plan_version(), "): ", decision.reason()));
  }
  out.set_unix_s(unix_s);
  Publish(std::move(out));
}

void EventHub::Close() {
  std::list<std::shared_ptr<Subscription>> ended;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    ended.swap(subscriptions_);
  }
  for (const auto& subscription : ended) subscription->Close();
}

size_t EventHub::watchers() const {
  MutexLock lock(mutex_);
  return subscriptions_.size();
}

}  // namespace weir
