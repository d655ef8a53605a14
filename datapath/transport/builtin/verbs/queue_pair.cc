// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/queue_pair.h"

#include <arpa/inet.h>

#include <cerrno>

namespace weir::verbs {
namespace {
// Small frames are copied into the work request, if the device supports it, so that the device need
// not fetch the buffer.
constexpr uint32_t kInlineBytes = 256;
// Credits ensure that a receiver is always ready. Should it ever not be, the sender tries again
// after 0.64 ms instead of the connection manager's 655 ms.
constexpr uint8_t kReceiverNotReadyTimer = 12;
}  // namespace

StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(const Device& device, rdma_cm_id* id,
                                                       std::byte* memory, WorkId name) {
  std::unique_ptr<QueuePair> self(new QueuePair(device, memory, name));
  WEIR_RETURN_IF_ERROR(self->MakePair());
  WEIR_RETURN_IF_ERROR(self->Modify(id, IBV_QPS_INIT));
  for (uint32_t slot = 0; slot < device.plan().receive_slots(); ++slot) {
    WEIR_RETURN_IF_ERROR(self->Receive(slot));
  }
  return self;
}

Status QueuePair::MakePair() {
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = wanted.recv_cq = device_.completions();
  wanted.cap.max_send_wr = device_.plan().send_slots;
  wanted.cap.max_recv_wr = device_.plan().receive_slots();
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.qp_type = IBV_QPT_RC;
  for (const uint32_t inline_bytes : {kInlineBytes, 0u}) {
    ibv_qp_init_attr attributes = wanted;
    attributes.cap.max_inline_data = inline_bytes;
    pair_.reset(Rdma().ibv_create_qp(device_.domain(), &attributes));
    if (!pair_) continue;
    inline_max_ = attributes.cap.max_inline_data;
    return OkStatus();
  }
  return ResourceError(StrCat("queue pair of RDMA device ", device_.name()),
                       device_.plan().PeerBytes(), errno);
}

Status QueuePair::Modify(rdma_cm_id* id, ibv_qp_state state) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = state;
  int mask = 0;
  if (Rdma().rdma_init_qp_attr(id, &attributes, &mask) != 0) {
    return Unavailable(StrCat("queue pair attributes: ", mesh::ErrorText(errno)));
  }
  if (mask & IBV_QP_MIN_RNR_TIMER) attributes.min_rnr_timer = kReceiverNotReadyTimer;
  if (const int error = Rdma().ibv_modify_qp(pair_.get(), &attributes, mask); error != 0) {
    return Unavailable(StrCat("queue pair of RDMA device ", device_.name(), " refuses state ",
                              static_cast<int>(state), ": ", mesh::ErrorText(error)));
  }
  return OkStatus();
}

Status QueuePair::Activate(rdma_cm_id* id) {
  // Before the peers have agreed, the requesting side's attributes permit no writes, not even those
  // of zero bytes that probe a peer.
  WEIR_RETURN_IF_ERROR(Modify(id, IBV_QPS_INIT));
  WEIR_RETURN_IF_ERROR(Modify(id, IBV_QPS_RTR));
  return Modify(id, IBV_QPS_RTS);
}

std::span<const std::byte> QueuePair::ReceiveSlot(uint32_t slot) {
  const size_t bytes = device_.plan().receive.slot_bytes;
  return {memory_ + bytes * slot, bytes};
}

std::span<std::byte> QueuePair::SendSlot(uint32_t slot) {
  const size_t bytes = device_.plan().receive.slot_bytes;
  return {memory_ + bytes * (device_.plan().receive_slots() + slot), bytes};
}

uint64_t QueuePair::Work(bool receive, uint32_t slot) const {
  WorkId work = name_;
  work.receive = receive;
  work.slot = slot;
  return work.Pack();
}

Status QueuePair::Send(uint32_t slot, size_t bytes, uint32_t immediate, bool signaled) {
  ibv_sge piece = {};
  piece.addr = reinterpret_cast<uintptr_t>(SendSlot(slot).data());
  piece.length = static_cast<uint32_t>(bytes);
  piece.lkey = device_.key();
  ibv_send_wr request = {};
  request.wr_id = Work(false, slot);
  request.sg_list = &piece;
  request.num_sge = bytes > 0 ? 1 : 0;
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(immediate);
  if (signaled) request.send_flags |= IBV_SEND_SIGNALED;
  if (bytes > 0 && bytes <= inline_max_) request.send_flags |= IBV_SEND_INLINE;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair_.get(), &request, &bad); error != 0) {
    return Unavailable(StrCat("the RDMA device refuses a send: ", mesh::ErrorText(error)));
  }
  return OkStatus();
}

// A write of zero bytes needs neither memory nor a key of the peer, and the peer's device answers
// it.
Status QueuePair::Probe(uint32_t slot) {
  ibv_send_wr request = {};
  request.wr_id = Work(false, slot);
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair_.get(), &request, &bad); error != 0) {
    return Unavailable(StrCat("the RDMA device refuses a probe: ", mesh::ErrorText(error)));
  }
  return OkStatus();
}

Status QueuePair::Receive(uint32_t slot) {
  ibv_sge piece = {};
  piece.addr = reinterpret_cast<uintptr_t>(ReceiveSlot(slot).data());
  piece.length = device_.plan().receive.slot_bytes;
  piece.lkey = device_.key();
  ibv_recv_wr request = {};
  request.wr_id = Work(true, slot);
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(pair_.get(), &request, &bad); error != 0) {
    return Unavailable(StrCat("the RDMA device refuses a receive: ", mesh::ErrorText(error)));
  }
  return OkStatus();
}

}  // namespace weir::verbs
