// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often the ranks synchronise, and how their parameters follow from a synchronisation. A plan
// says it, and the caller of the session does it, since only the caller knows parameters and the
// optimiser: see weir_options.local_steps.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "datapath/base/json.h"
#include "datapath/base/status.h"

namespace weir {

inline constexpr uint32_t kPlanSyncEveryMax = 1u << 16;
inline constexpr uint32_t kSyncFragmentsMax = 1024;

/// How a synchronisation uses D, the mean over ranks of (parameters at the last one - parameters
/// now).
enum class OuterStep {
  kAverage,      // parameters -= D, which is the mean of the ranks' parameters
  kSgdNesterov,  // velocity = momentum * velocity + D; parameters -= rate * (D + momentum *
                 // velocity)
  kSign,         // parameters -= rate * sign(D)
};

/// A transform of each rank's movement before it is summed, which is undone after. kDct: an
/// orthonormal cosine transform of each 64 x 64 elements.
enum class SyncTransform { kNone, kDct };

/// weir.v1.Sync. The default is a sum of gradients in every step.
struct Sync {
  uint32_t every =
      1;  // optimiser steps from one synchronisation to the next; 1: gradients are summed
  OuterStep outer = OuterStep::kAverage;
  double rate = 1, momentum = 0;  // of kSgdNesterov; the rate also of kSign
  uint32_t fragments =
      1;  // groups of buckets, of which one synchronises every `every` / fragments steps
  uint32_t overlap = 0;  // steps by which a synchronisation begins before the ranks wait for it
  double mix = 0;  // with overlap: the share of a rank's own parameters in what it goes on with

  double residual_decay = 1;  // residuals are multiplied by it after each synchronisation
  SyncTransform transform = SyncTransform::kNone;

  /// Whether ranks keep their gradients, and sum movements instead.
  bool local() const { return every > 1 || outer == OuterStep::kSign; }
  friend bool operator==(const Sync&, const Sync&) = default;
};

/// Reads the object at `path`. kInvalidArgument names the key, what was expected and found.
StatusOr<Sync> ReadSync(const nlohmann::json& value, std::string path, bool reject_unknown);

/// The JSON form of weir.v1.Sync.
nlohmann::json SyncToJson(const Sync& sync);

/// The line in a plan's canonical text (proto/WIRE.md section 2).
std::string CanonicalText(const Sync& sync);

}  // namespace weir
