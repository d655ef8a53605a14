// SPDX-License-Identifier: Apache-2.0
#pragma once
// The words and the digest of a decision.

#include <string>

#include "controller/model/format.h"
#include "controller/solver/solver.h"

namespace weir {

/// One sentence with numbers: what the network is, what was chosen against what, and why.
std::string ReasonText(const DecisionFacts& facts);

/// 16 hexadecimal digits: XXH3 over a canonical text of every choice and number of the decision. No
/// words are in it: labels, bounds and reasons may be put in other words without changing it.
std::string DigestOf(const Decision& decision);

}  // namespace weir
