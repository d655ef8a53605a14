// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks that all ranks hold the same data. Every so many steps each rank hashes what was delivered
// to it, and the ranks compare the hashes in one more small operation at the start of the next
// step, for which no caller waits. All ranks get the same sums bit for bit by contract. So a
// difference means a fault of memory or of a device, or a bug of Weir, and the job stops before its
// replicas drift apart unnoticed.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/collective/group.h"

namespace weir {

/// By default, steps whose number is a multiple of this are compared.
inline constexpr uint64_t kCompareEverySteps = 64;

/// Digests of one rank's results after a step.
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

/// Compares the digests of all ranks. Every rank calls it after Begin on `group`. Returns kDataLoss
/// with the same text on every rank if they differ: it names the first bucket whose sums differ, or
/// the parameters, and which ranks hold which hash. Parameters are compared among the ranks that
/// gave theirs. Sends 32 bytes to every other rank, and 8 more for each sum if sums differ. Other
/// errors are the group's.
Status CompareReplicas(Group& group, const ReplicaDigest& own);

}  // namespace weir
