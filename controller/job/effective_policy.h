// SPDX-License-Identifier: Apache-2.0
#pragma once
// The policy that rules a job, and how a pin or a rollback narrows it.

#include <string>
#include <string_view>
#include <vector>

#include "controller/policy/policy.h"
#include "datapath/base/status.h"

namespace weir {

struct PolicyEntry {
  Policy policy;
  std::string name;
  std::string source;
  std::string origin;  // file path or "api"
  double loaded_unix_s = 0;
  std::string error;   // of the newest text, when rejected
  bool valid = false;  // false: no text of it ever parsed
};

/// The policy that the solver obeyed in one decision, complete enough for a replay.
struct EffectivePolicy {
  Policy policy;
  std::string record;  // see MakeEffectivePolicy
};

/// How an operator's pin or a rollback narrows a policy.
struct PolicyOverride {
  enum class Kind { kNone, kPin, kDenseOnly };
  Kind kind = Kind::kNone;
  std::string codec, collective;             // kPin
  double ratio = 1;                          // kPin
  int bits = 0;                              // kPin
  std::vector<std::string> lossless_codecs;  // kDenseOnly
  double gain_min = 0;                       // at least, whatever the kind but a pin
  int sync_every_max = 0;                    // at most; 0: as the policy says
};

/// `source` (empty: `defaults`) under `override_by`; keys that it leaves out are as in `defaults`.
/// The record is JSON and deterministic.
StatusOr<EffectivePolicy> MakeEffectivePolicy(std::string_view name, std::string_view source,
                                              const PolicyOverride& override_by,
                                              const Policy& defaults = {});
/// The policy that a stored record describes. kDataLoss: malformed.
StatusOr<Policy> DecodeEffectivePolicy(std::string_view record);

}  // namespace weir
