// SPDX-License-Identifier: Apache-2.0
// The part of Session that compares what ranks were delivered; see replicas.h.

#include <algorithm>
#include <memory>
#include <utility>

#include "datapath/base/check.h"
#include "datapath/base/json.h"
#include "datapath/session/session.h"

namespace weir {
namespace {

// The longest time that a rank which leaves waits for others to compare replicas.
constexpr Duration kComparisonGrace = std::chrono::seconds(1);

}  // namespace

// The caller does not wait: the ranks compare while they compute the gradients of the next step.
Status Session::Compare() {
  WEIR_CHECK(comparison_.done == nullptr);  // the previous step waited for it
  const auto digest = std::move(digest_);
  comparison_ = Operation();
  comparison_.step = next_step_ - 1;
  comparison_.index = kComparisonIndex;
  comparison_.plan = plan_;
  comparison_.control = [digest, step = next_step_ - 2](Group& group) {
    return Annotate(CompareReplicas(group, *digest), StrCat("step ", step));
  };
  comparison_.done = [this](const Status& status) {
    MutexLock lock(mutex_);
    comparing_ = false;
    stats_.replicas_compared += status.ok() ? 1 : 0;
  };
  {
    MutexLock lock(mutex_);
    comparing_ = true;
  }
  const Status submitted = Submit(&comparison_);
  if (!submitted.ok()) {
    comparison_ = Operation();
    {
      MutexLock lock(mutex_);
      comparing_ = false;
    }
    Fail(submitted);
  }
  return submitted;
}

std::shared_ptr<const ReplicaDigest> Session::TakeDigest() {
  auto digest = std::make_shared<ReplicaDigest>();
  for (const Operation& op : operations_) {
    const std::string first =
        op.bucket->parameters.empty() ? "" : StrCat(" of '", op.bucket->parameters[0].name, "'...");
    digest->sums.push_back({StrCat("bucket ", Hex64(op.bucket->key), first, " (", op.choice.codec,
                                   ", ", op.choice.collective, ")"),
                            op.hash});
  }
  digest->parameters = std::exchange(parameters_hash_, std::nullopt);
  return digest;
}

void Session::AwaitComparison() {
  MutexLock lock(mutex_);
  if (!comparing_ || outstanding_ != 1) return;
  const TimePoint deadline =
      RealClock().Now() + std::min<Duration>(options_.operation_timeout, kComparisonGrace);
  while (outstanding_ != 0 && failure_.ok()) {
    if (!all_delivered_.WaitUntil(mutex_, deadline)) return;
  }
}

}  // namespace weir
