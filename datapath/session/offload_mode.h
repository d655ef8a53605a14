// SPDX-License-Identifier: Apache-2.0
#pragma once
// How lanes are summed in each mode of an aggregator: which worker sends them, and what the result
// holds.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "datapath/aggregation/lease.h"
#include "datapath/aggregation/worker.h"
#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

struct LaneShares;

/// How one lease adds lanes. Each sum calls Survey and Begin, runs the worker's loop until it is
/// done, and calls Store, all with the same lanes, which outlive the four. Not thread-safe.
class OffloadMode {
 public:
  virtual ~OffloadMode() = default;

  /// As LaneOffload::Survey.
  virtual StatusOr<uint32_t> Survey(std::span<const std::byte> lanes) = 0;

  /// Starts the worker's operation. Errors are the worker's.
  virtual Status Begin(std::span<const std::byte> lanes, uint32_t greatest, uint32_t operation,
                       TimePoint deadline) = 0;

  virtual aggregation::Worker& worker() = 0;

  /// Bytes of lanes that the last operation sent.
  virtual uint64_t bytes_sent() const = 0;

  /// As LaneOffload::complete and result, once the worker is done.
  virtual bool complete() const { return true; }
  virtual std::span<std::byte> result() { return {}; }

  /// As LaneOffload::Store.
  virtual void Store(std::span<std::byte> lanes, LaneShares* shares) = 0;
};

/// `terms` must be valid. kUnimplemented: no collective has lanes that this mode could add.
StatusOr<std::unique_ptr<OffloadMode>> MakeOffloadMode(const aggregation::Lease& terms, int rank);

}  // namespace weir
