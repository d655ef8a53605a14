// SPDX-License-Identifier: Apache-2.0
#pragma once
// The control plane that answers now, and whether it may act. A controller that shares its store
// gets another plane when it begins or ceases to lead; what a standby serves is a copy of the
// store.

#include <atomic>
#include <memory>
#include <string>

#include "controller/server/control_plane.h"
#include "controller/store/leadership.h"

namespace weir {

class ServedPlane {
 public:
  /// `leadership` outlives it; null: this controller is the only one.
  explicit ServedPlane(const Leadership* leadership = nullptr) : leadership_(leadership) {}
  ServedPlane(std::unique_ptr<ControlPlane> plane) : leadership_(nullptr) {
    Replace(std::move(plane), 1);
  }

  // On the executor's thread.
  ControlPlane& operator*() const { return *plane_; }
  ControlPlane* operator->() const { return plane_.get(); }
  ControlPlane* get() const { return plane_.get(); }
  /// `term`: in which `plane` acts; 0: it is a copy, which only answers questions.
  void Replace(std::unique_ptr<ControlPlane> plane, uint64_t term) {
    term_ = 0;
    plane_ = std::move(plane);
    term_ = term;
  }
  /// The plane goes on as a copy.
  void StandDown() { term_ = 0; }

  // Thread-safe.

  bool shared() const { return leadership_ != nullptr; }
  /// In which the plane acts; 0: it does not.
  uint64_t term() const { return term_; }
  /// Whether the plane may decide, write and send orders: asked right before each of these, because
  /// a process that was stopped for a while does not know what it has missed.
  bool acts() const;
  /// OK if it acts. kUnavailable names the leader, or says why there is none.
  Status RequireActing() const;
  /// OK if it acts, or knows who does.
  Status RequireLeaderKnown() const;
  LeadershipView view() const { return shared() ? leadership_->view() : LeadershipView{}; }
  /// Metrics of the above; empty where nothing is shared.
  std::string MetricsText() const;

 private:
  const Leadership* const leadership_;
  std::unique_ptr<ControlPlane> plane_;
  std::atomic<uint64_t> term_{0};
};

}  // namespace weir
