// SPDX-License-Identifier: Apache-2.0
#pragma once
// The functions of NCCL and CUDA that the nccl transport uses, so that its protocol can be built
// and tested without them.

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "datapath/base/status.h"

namespace weir::nccl {

/// ncclUniqueId, by which the two ends of a channel find each other.
using UniqueId = std::array<std::byte, 128>;

/// One end of one direction between two ranks: a communicator of two ranks with its own stream.
/// What one end begins to send in batch n, the other must begin to receive in its batch n. Not
/// thread-safe. The destructor aborts a running batch.
class Channel {
 public:
  virtual ~Channel() = default;

  /// Returns whether the last thing that was begun, which is first the channel itself, has ended.
  /// Never blocks. kUnavailable: NCCL, the device, or, as far as NCCL knows, the peer failed.
  virtual StatusOr<bool> Done() = 0;
  /// Begins to move `buffers` in order and as one group. They are device memory that must stay
  /// valid and unused until Done. To be called only when Done. kUnavailable: NCCL or the device
  /// failed.
  virtual Status Begin(std::span<const std::span<std::byte>> buffers) = 0;
};

/// One GPU. Not thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  /// kUnavailable: NCCL failed.
  virtual StatusOr<UniqueId> NewId() = 0;
  /// Begins to make a channel, which can be used once it is Done. Both ends call it with the same
  /// id.
  virtual StatusOr<std::unique_ptr<Channel>> Open(const UniqueId& id, bool sends) = 0;
  /// kInvalidArgument: `buffer` is not empty and not memory that this device can access.
  virtual Status Check(std::span<const std::byte> buffer) const = 0;
};

}  // namespace weir::nccl
