// SPDX-License-Identifier: Apache-2.0
#pragma once
// The solver's decision under a policy that allows no compression.

#include <gtest/gtest.h>

#include "controller/solver/solver.h"

namespace weir::test {

/// The decision with `identity` as the only codec; fails the test if there is none.
inline Decision Lossless(const Snapshot& snapshot) {
  Policy policy;
  policy.codecs = {"identity"};
  const auto decision = Decide(snapshot, policy);
  EXPECT_TRUE(decision.ok()) << ToString(decision.status());
  return decision.ok() ? *decision : Decision{};
}

}  // namespace weir::test
