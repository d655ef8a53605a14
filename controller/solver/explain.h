// SPDX-License-Identifier: Apache-2.0
#pragma once
// The words and the digest of a decision.

#include <string>

#include "controller/model/format.h"
#include "controller/solver/solver.h"

namespace weir {

/// "at 6.2 MB/s and 0.4 ms".
std::string NetworkText(const Snapshot& snapshot);
/// "top_k 0.01 over sparse_all_gather predicts 0.21 s per step at gain 0.41".
std::string PredictionText(const CandidatePlan& candidate);

/// 16 hexadecimal digits: XXH3 over a canonical text of every field but `digest`.
std::string DigestOf(const Decision& decision);

}  // namespace weir
