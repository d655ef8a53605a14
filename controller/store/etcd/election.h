// SPDX-License-Identifier: Apache-2.0
#pragma once
// Elects the leader of the controllers that share an etcd: the one that creates the key
// "leader", under a lease of a few seconds, leads until the lease ends.
//
// Two things keep a former leader from acting. It counts its lease from before each renewal, by its
// own monotonic clock, so its tenure ends on its own account before the lease does, also while the
// process is stopped. And each of its writes is a transaction that etcd only runs while the key has
// the revision at which this leader created it (the term), so a leader that believes in its tenure
// for too long, with a clock that runs slow, changes nothing.

#include <atomic>
#include <string>
#include <thread>

#include "controller/store/etcd/etcd_client.h"
#include "controller/store/leadership.h"
#include "datapath/base/mutex.h"

namespace weir {

struct ElectionOptions {
  EtcdOptions etcd;
  std::string identity;  // of this process: no other has the same
  int64_t lease_s = 3;   // etcd makes it longer if its own elections take longer
  Duration renew_interval = std::chrono::milliseconds(500);
  Duration poll_interval = std::chrono::milliseconds(250);  // of the key, while another one leads
  Duration resigned_pause = std::chrono::seconds(5);        // before it competes again
  Duration compact_interval = std::chrono::seconds(60);     // etcd keeps what changed since then
};

/// The key that the leader holds.
std::string LeaderKey(const EtcdOptions& etcd);

/// Competes on the thread "weir-election" from Start until it is destroyed; then the lease is given
/// back, so that another controller follows at once. While it leads, it makes etcd forget what was
/// overwritten or deleted (compaction).
class EtcdElection : public Leadership {
 public:
  explicit EtcdElection(ElectionOptions options);
  ~EtcdElection() override;
  /// Called once, with the address that others are told.
  void Start(const ControllerAddress& own);

  std::optional<Tenure> tenure() const override WEIR_EXCLUDES(mutex_);
  LeadershipView view() const override WEIR_EXCLUDES(mutex_);
  void Resign(uint64_t term, const std::string& why) override WEIR_EXCLUDES(mutex_);

 private:
  void Loop();
  Duration Compete();
  Duration Renew();
  Status TryToLead();
  void EndTenure(const std::string& why) WEIR_EXCLUDES(mutex_);
  void Settle(const Status& answered) WEIR_EXCLUDES(mutex_);
  void ReturnLease();
  void KeepSmall();

  const ElectionOptions options_;
  const std::string key_;
  EtcdClient client_;  // used only by the thread
  std::string value_;
  int64_t lease_ = 0;  // used only by the thread, as the next ones
  Duration lease_lasts_{0};
  TimePoint next_compaction_{};
  TimePoint looked_at_{};  // the member's state
  int64_t compact_to_ = 0;
  Status alarm_;  // why etcd answers, but takes no writes

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ WEIR_GUARDED_BY(mutex_) = false;
  std::optional<Tenure> tenure_ WEIR_GUARDED_BY(mutex_);
  std::optional<ControllerAddress> leader_ WEIR_GUARDED_BY(mutex_);
  Status store_ WEIR_GUARDED_BY(mutex_);
  TimePoint contact_ WEIR_GUARDED_BY(mutex_){};
  TimePoint resigned_until_ WEIR_GUARDED_BY(mutex_){};
  std::string resigned_why_ WEIR_GUARDED_BY(mutex_);
  int64_t revision_ WEIR_GUARDED_BY(mutex_) = 0;
  uint64_t changes_ WEIR_GUARDED_BY(mutex_) = 0;
  double store_bytes_ WEIR_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace weir
