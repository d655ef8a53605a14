#pragma once
// Do all ranks hold the same? Once in so many steps every rank hashes what was delivered to it, and
// the ranks compare the hashes in band, as one more small operation at the begin of the next step,
// for which nobody waits. Sums are equal bit for bit by contract, so a difference is a fault of
// memory, of a device or of ours, and the job stops before its replicas drift apart in silence.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/collective/group.h"

namespace weir {

/// A step whose number divides by this is compared, unless the options say otherwise.
inline constexpr uint64_t kCompareEverySteps = 64;

/// What one rank holds after a step.
struct ReplicaDigest {
  struct Sum {
    std::string name;  // of the bucket, for messages
    uint64_t hash = 0;
  };
  std::vector<Sum> sums;               // in the order of the step's operations
  std::optional<uint64_t> parameters;  // of the model, where the caller gave them
};

/// XXH3-64. Thread-safe, O(n).
uint64_t HashBytes(std::span<const std::byte> bytes);

/// Compares the digests of all ranks, after Begin on `group`; every rank calls it. kDataLoss, the
/// same on every rank: names the first bucket whose sums differ, or the parameters, and which ranks
/// hold what. Parameters are compared among the ranks that gave theirs. 32 bytes to every other
/// rank where all is equal, else 8 more for each sum. Errors of the group otherwise.
Status CompareReplicas(Group& group, const ReplicaDigest& own);

}  // namespace weir
