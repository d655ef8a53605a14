// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL, found at run time: the framework has usually loaded it already, and no part of this
// library links it. README.md says what it is used for.

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "datapath/base/status.h"

namespace weir::nccl {

/// ncclUniqueId, by which the members of a communicator find each other.
using UniqueId = std::array<std::byte, 128>;

/// kUnavailable: libnccl.so.2 is not found, is too old, or failed. Thread-safe.
StatusOr<UniqueId> NewId();

/// One member of a communicator that never blocks (ncclConfig_t::blocking is 0). Not thread-safe.
/// Before each call the caller makes its device the current one of the thread. Errors:
/// kUnavailable: NCCL failed; nothing more can be begun.
class Communicator {
 public:
  /// Begins to join, with the current device. kUnavailable also as NewId.
  static StatusOr<std::unique_ptr<Communicator>> Join(const UniqueId& id, int place, int size);
  /// Aborts (ncclCommAbort): kernels that wait for other members end, and use no memory any more.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Whether NCCL has done all calls so far, so that all of their work is in the stream. Never
  /// waits.
  StatusOr<bool> IsSettled();
  /// Queues on `stream`, as one group of sends and receives, what DeviceGroup::Exchange describes.
  /// To be called only when IsSettled.
  Status Exchange(std::span<const std::span<const float>> outgoing,
                  std::span<const std::span<float>> incoming, void* stream);

 private:
  struct Library;
  static StatusOr<const Library*> Find();
  friend StatusOr<UniqueId> NewId();

  explicit Communicator(const Library& library) : library_(library) {}
  Status Error(const char* call, int result) const;

  const Library& library_;
  void* comm_ = nullptr;
};

}  // namespace weir::nccl
