#pragma once
// What the nccl transport needs of NCCL and CUDA, so that its protocol can be built and tested
// where there is neither.

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "datapath/base/status.h"

namespace weir::nccl {

/// What makes two ends find each other: ncclUniqueId.
using UniqueId = std::array<std::byte, 128>;

/// One end of one direction between two ranks: a communicator of two and a stream of its own. What
/// the one end begins to send in the n-th batch the other begins to receive in its n-th. Not
/// thread-safe. The destructor aborts what is under way.
class Channel {
 public:
  virtual ~Channel() = default;

  /// Whether what was begun last, first of all the channel itself, is over. Never blocks.
  /// kUnavailable: NCCL or the device failed, or the peer did, as far as NCCL knows.
  virtual StatusOr<bool> Done() = 0;
  /// Begins to move `buffers`, device memory that is alive and left alone until Done, in order and
  /// as one group. Only when Done. kUnavailable.
  virtual Status Begin(std::span<const std::span<std::byte>> buffers) = 0;
};

/// One GPU. Not thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  /// kUnavailable.
  virtual StatusOr<UniqueId> NewId() = 0;
  /// Begins to make a channel, which is one once it is Done. Both ends call it with the same id.
  virtual StatusOr<std::unique_ptr<Channel>> Open(const UniqueId& id, bool sends) = 0;
  /// kInvalidArgument: `buffer`, not empty, is not memory that this device reaches.
  virtual Status Check(std::span<const std::byte> buffer) const = 0;
};

}  // namespace weir::nccl
