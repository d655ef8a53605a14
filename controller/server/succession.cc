// SPDX-License-Identifier: Apache-2.0
#include "controller/server/succession.h"

#include <algorithm>

#include "datapath/base/log.h"

namespace weir {

Succession::Succession(Options options, const Clock& clock, Store& store, EventHub& events,
                       ServedPlane& served, Leadership* leadership)
    : options_(std::move(options)),
      clock_(clock),
      store_(store),
      events_(events),
      served_(served),
      leadership_(leadership) {}

StatusOr<std::unique_ptr<ControlPlane>> Succession::MakePlane() const {
  auto plane = std::make_unique<ControlPlane>(options_.fleet, clock_, store_, events_);
  WEIR_RETURN_IF_ERROR(plane->Recover());
  options_.prepare(*plane);
  return plane;
}

Status Succession::Begin() {
  if (leadership_ == nullptr) return Lead(1);
  // There is something to answer from, also while the store does not answer.
  served_.Replace(std::make_unique<ControlPlane>(options_.fleet, clock_, store_, events_), 0);
  return OkStatus();
}

Status Succession::Lead(uint64_t term) {
  WEIR_ASSIGN_OR_RETURN(auto plane, MakePlane());
  const Fleet& fleet = plane->fleet;
  const auto all = fleet.policies().All();
  const auto stored = std::count_if(all.begin(), all.end(),
                                    [](const PolicyEntry& entry) { return entry.origin == "api"; });
  Log(LogLevel::kInfo, "controller",
      StrCat("recovered ", fleet.nodes().all().size(), " nodes, ", fleet.jobs().all().size(),
             " jobs, ", stored, " policies"));
  served_.Replace(std::move(plane), term);
  begun_ = true;
  return options_.begin();
}

void Succession::StandDown() {
  served_.StandDown();
  if (begun_) options_.end();
  begun_ = false;
  served_->fleet.CloseStreams(Unavailable("this controller no longer leads"));
  copied_ = -1;
  next_copy_ = clock_.Now();
}

// A standby answers questions from what the leader has stored.
void Succession::Copy() {
  const TimePoint now = clock_.Now();
  if (now < next_copy_) return;
  next_copy_ = now + options_.copy_interval;
  const LeadershipView view = leadership_->view();
  // Without a quorum there is one copy to be had, and it is looked for less often.
  if (!view.store.ok()) next_copy_ = now + 3 * options_.copy_interval;
  const int64_t revision = view.revision;
  if (revision == copied_) return;
  auto plane = MakePlane();
  if (!plane.ok()) return;  // the view says why the store cannot be used
  served_.Replace(*std::move(plane), 0);
  copied_ = revision;
}

void Succession::OnTick() {
  if (leadership_ != nullptr) {
    const auto tenure = leadership_->tenure();
    const uint64_t term = tenure.has_value() ? tenure->term : 0;
    if (term != served_.term()) {
      if (served_.term() != 0) StandDown();
      if (term != 0) {
        if (const Status led = Lead(term); !led.ok()) {
          Log(LogLevel::kError, "controller", StrCat("cannot lead: ", Message(led)));
          leadership_->Resign(term, Message(led));
          if (served_.term() != 0) StandDown();
        }
      }
    }
  }
  if (served_.acts()) {
    served_->fleet.OnTick();
    if (!store_.Flush().ok()) ++served_->fleet.counters().store_errors;
  } else if (leadership_ != nullptr) {
    Copy();
  }
}

}  // namespace weir
