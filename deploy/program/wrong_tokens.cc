// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/wrong_tokens.h"

#include "datapath/base/log.h"

namespace weir {

void WrongTokens::BeginWindow() {
  const TimePoint now = clock_.Now();
  if (now < window_end_) return;
  if (unlogged_ > 0) {
    Log(LogLevel::kWarning, part_,
        StrCat(unlogged_, " more wrong tokens in the window before, from ", wrong_.size(),
               " addresses"));
  }
  wrong_.clear();
  unlogged_ = 0;
  window_end_ = now + kWindow;
}

Status WrongTokens::Refuse(const std::string& peer) {
  BeginWindow();
  if (wrong_.empty()) {
    Log(LogLevel::kWarning, part_, StrCat("a wrong token came from ", peer));
  } else {
    ++unlogged_;
  }
  // Addresses beyond the bound share one count.
  ++wrong_[wrong_.size() < kPeersMax || wrong_.contains(peer) ? peer : ""];
  return MakeStatus(StatusCode::kUnauthenticated, "unknown token");
}

Status WrongTokens::Check(const std::string& peer) {
  BeginWindow();
  const auto known = wrong_.find(peer);
  const auto shared = wrong_.find("");
  const int wrong = known != wrong_.end()    ? known->second
                    : shared != wrong_.end() ? shared->second
                                             : 0;
  if (wrong < kMax) return OkStatus();
  ++unlogged_;
  return ResourceExhausted(StrCat("more than ", kMax, " wrong tokens came from ", peer, " within ",
                                  ToSeconds(kWindow), " s; try again later"));
}

}  // namespace weir
