// SPDX-License-Identifier: Apache-2.0
#include "controller/server/served_plane.h"

namespace weir {
namespace {

std::string FigureText(const char* name, const char* kind, const char* help, double value) {
  return StrCat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n", name, " ", value,
                "\n");
}

}  // namespace

bool ServedPlane::acts() const {
  const uint64_t term = term_;
  if (term == 0) return false;
  if (leadership_ == nullptr) return true;
  const auto tenure = leadership_->tenure();
  return tenure.has_value() && tenure->term == term;
}

Status ServedPlane::RequireActing() const {
  if (acts()) return OkStatus();
  const LeadershipView view = this->view();
  if (view.leads) return Unavailable("this controller begins to lead: try again in a moment");
  if (!view.store.ok()) {  // and so the leader that was known may lead no more
    return Unavailable(StrCat(
        "this controller does not lead, and the shared store cannot be used: ", Message(view.store),
        "; jobs go on with the plans that they have"));
  }
  if (view.leader.has_value()) {
    return Unavailable(StrCat("this controller stands by; the leader is at ", view.leader->grpc,
                              " (gRPC) and ", view.leader->http));
  }
  return Unavailable("no controller leads yet: try again in a moment");
}

Status ServedPlane::RequireLeaderKnown() const {
  if (acts()) return view().store;
  const LeadershipView view = this->view();
  return view.store.ok() && view.leader.has_value() && !view.leads ? OkStatus() : RequireActing();
}

std::string ServedPlane::MetricsText() const {
  if (!shared()) return "";
  const LeadershipView view = this->view();
  return FigureText("weir_leader", "gauge",
                    "Whether this controller leads: 1, or 0 if it stands by.", acts() ? 1 : 0) +
         FigureText("weir_leader_known", "gauge",
                    "Whether this controller leads or knows the one that does: 1 or 0.",
                    RequireLeaderKnown().ok() ? 1 : 0) +
         FigureText("weir_store_available", "gauge",
                    "Whether a quorum of the shared store answers and takes writes: 1 or 0.",
                    view.store.ok() ? 1 : 0) +
         FigureText("weir_store_bytes", "gauge",
                    "Bytes in use in the shared store's database; 0 on a standby.",
                    view.store_bytes) +
         FigureText("weir_leader_changes_total", "counter",
                    "Number of times that this controller began or ceased to lead.",
                    static_cast<double>(view.changes));
}

}  // namespace weir
