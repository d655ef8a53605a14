// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a test on every SIMD target of this machine.

#include "hwy/highway.h"

namespace weir::test {

/// Restricts dispatch to one target while it lives.
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) { Allow(target); }
  ~ScopedTarget() { Allow(0); }
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;

 private:
  static void Allow(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

/// Calls body(name) once for every target.
template <typename Body>
void OnEveryTarget(Body&& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ScopedTarget scoped(target);
    body(hwy::TargetName(target));
  }
}

}  // namespace weir::test
