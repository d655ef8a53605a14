#pragma once
// Runs a test on every SIMD target of this machine.

#include "hwy/highway.h"

namespace weir::test {

/// Calls body(name) once for every target, and leaves the machine's own choice.
template <typename Body>
void OnEveryTarget(Body&& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace weir::test
