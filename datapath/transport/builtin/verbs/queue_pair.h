// SPDX-License-Identifier: Apache-2.0
#pragma once
// One reliable connection: a queue pair of this transport's own device context, which follows the
// states of a connection manager's id.

#include "datapath/transport/builtin/verbs/device.h"
#include "datapath/transport/builtin/verbs/stream.h"

namespace weir::verbs {

/// The message that a completion belongs to. `generation` distinguishes a queue pair from an
/// earlier one of the same rank, whose completions may still arrive.
struct WorkId {
  uint16_t rank = 0;
  uint16_t generation = 0;
  bool receive = false;
  uint32_t slot = 0;

  uint64_t Pack() const {
    return uint64_t{rank} << 48 | uint64_t{generation} << 32 | uint64_t{receive} << 31 | slot;
  }
  static WorkId Unpack(uint64_t packed) {
    return {static_cast<uint16_t>(packed >> 48), static_cast<uint16_t>(packed >> 32),
            (packed >> 31 & 1) != 0, static_cast<uint32_t>(packed & 0x7fffffff)};
  }
};

class QueuePair : public MessagePort {
 public:
  /// A queue pair to `rank` in the state INIT with all receive slots posted. `memory` is its part
  /// of the pool; `generation` differs from earlier ones of that rank.
  static StatusOr<std::unique_ptr<QueuePair>> Create(const Device& device, rdma_cm_id* id,
                                                     std::byte* memory, WorkId name);

  /// Brings it to RTR and RTS with the attributes that the id has agreed on.
  Status Activate(rdma_cm_id* id);

  uint32_t number() const { return pair_->qp_num; }
  ibv_qp* raw() const { return pair_.get(); }
  uint16_t generation() const { return name_.generation; }

  std::span<std::byte> SendSlot(uint32_t slot) override;
  std::span<const std::byte> ReceiveSlot(uint32_t slot) override;
  Status Send(uint32_t slot, size_t bytes, uint32_t immediate, bool signaled) override;
  Status Probe(uint32_t slot) override;
  Status Receive(uint32_t slot) override;

 private:
  QueuePair(const Device& device, std::byte* memory, WorkId name)
      : device_(device), memory_(memory), name_(name) {}
  Status MakePair();
  Status Modify(rdma_cm_id* id, ibv_qp_state state);
  uint64_t Work(bool receive, uint32_t slot) const;

  const Device& device_;
  std::byte* const memory_;  // receive slots, then send slots
  const WorkId name_;
  uint32_t inline_max_ = 0;
  QueuePairPtr pair_;
};

}  // namespace weir::verbs
