// SPDX-License-Identifier: Apache-2.0
#pragma once
// The audit trail: who, by its credential, from where, changed what from what to what, and what was
// refused. Kept in the store, where entries cannot be changed, and written to the log.

#include <map>
#include <string>

#include "controller/server/auth/authenticator.h"
#include "controller/store/store.h"
#include "datapath/base/clock.h"
#include "datapath/base/mutex.h"
#include "weir/v1/admin.pb.h"

namespace weir {

class AuditTrail {
 public:
  /// Refusals of one address, and of all, that a window of 10 s keeps; the number of the others is
  /// logged. So nobody can fill the disk, or push other refusals out of the trail.
  static constexpr int kRefusalsOfPeerMax = 5;
  static constexpr int kRefusalsMax = 50;
  static constexpr Duration kWindow = std::chrono::seconds(10);
  static constexpr size_t kTextMax = 2000;  // bytes of each state; the rest is cut off

  explicit AuditTrail(Store& store, const Clock& clock = RealClock())
      : store_(store), clock_(clock) {}

  /// Stores and logs `record`, whose time and id are set here. On the executor's thread.
  void Add(v1::AuditRecord record);
  /// Fills `response` on OK. On the executor's thread. kInvalidArgument: the page token.
  Status List(const v1::ListAuditRequest& request, v1::ListAuditResponse* response);

  /// Whether one more refusal of `peer` is kept. Thread-safe.
  bool TakesRefusal(const std::string& peer) WEIR_EXCLUDES(mutex_);

 private:
  Store& store_;
  const Clock& clock_;
  Mutex mutex_;
  TimePoint window_end_ WEIR_GUARDED_BY(mutex_){};
  std::map<std::string, int> refusals_ WEIR_GUARDED_BY(mutex_);
  int kept_ WEIR_GUARDED_BY(mutex_) = 0;
  uint64_t left_out_ WEIR_GUARDED_BY(mutex_) = 0;
};

/// The record of a refusal: `caller` is null where nobody is known.
v1::AuditRecord RefusalRecord(const Caller* caller, const Origin& from, const std::string& method,
                              const std::string& target, const Status& why);

/// The record of a file that this controller read because it had changed: what it said before, and
/// says now or why it is not used. Nobody knows who wrote it.
v1::AuditRecord FileRecord(const std::string& method, const std::string& path,
                           const std::string& before, const StatusOr<std::string>& after);

}  // namespace weir
