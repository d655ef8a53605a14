// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/mesh.h"

#include <arpa/inet.h>

#include <cerrno>

#include "datapath/base/log.h"

namespace weir::verbs {
namespace {
constexpr int kBatch = 32;

void* ContextOf(int rank) { return reinterpret_cast<void*>(static_cast<intptr_t>(rank) + 1); }
int RankOf(const rdma_cm_id* id) {
  return static_cast<int>(reinterpret_cast<intptr_t>(id->context)) - 1;
}
}  // namespace

Mesh::Mesh(int rank, int world, ChannelPtr channel, CmIdPtr listener,
           std::unique_ptr<Device> device)
    : rank_(rank),
      channel_(std::move(channel)),
      listener_(std::move(listener)),
      device_(std::move(device)),
      peers_(world),
      generations_(world) {}

Mesh::~Mesh() {
  for (size_t r = 0; r < peers_.size(); ++r) Drop(static_cast<int>(r));
}

Status Mesh::NewId(int rank) {
  Drop(rank);
  rdma_cm_id* id = nullptr;
  if (Rdma().rdma_create_id(channel_.get(), &id, ContextOf(rank), RDMA_PS_TCP) != 0) {
    return Unavailable(StrCat("rdma_create_id: ", mesh::ErrorText(errno)));
  }
  peers_[rank].id.reset(id);
  return OkStatus();
}

void Mesh::TakeId(int rank, rdma_cm_id* id) {
  Drop(rank);
  id->context = ContextOf(rank);
  peers_[rank].id.reset(id);
}

Status Mesh::MakePair(int rank) {
  WorkId name;
  name.rank = static_cast<uint16_t>(rank);
  name.generation = ++generations_[rank];
  std::byte* const memory = device_->PeerMemory(rank < rank_ ? rank : rank - 1);
  WEIR_ASSIGN_OR_RETURN(peers_[rank].pair,
                        QueuePair::Create(*device_, peers_[rank].id.get(), memory, name));
  return OkStatus();
}

void Mesh::MakeStream(int rank, const std::string& address, const Window& theirs,
                      FrameChannel channel) {
  Stream::Options options;
  options.self = rank_;
  options.peer = rank;
  options.address = address;
  options.ours = device_->plan().receive;
  options.theirs = theirs;
  options.send_slots = device_->plan().send_slots;
  peers_[rank].stream =
      std::make_unique<Stream>(std::move(options), peers_[rank].pair.get(), std::move(channel));
}

void Mesh::Drop(int rank) {
  Peer& peer = peers_[rank];
  if (peer.connected) Rdma().rdma_disconnect(peer.id.get());
  peer.stream.reset();
  peer.pair.reset();
  peer = Peer();
}

StatusOr<std::optional<ConnectionEvent>> Mesh::NextEvent() {
  rdma_cm_event* event = nullptr;
  if (Rdma().rdma_get_cm_event(channel_.get(), &event) != 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return std::nullopt;
    return Internal(StrCat("rdma_get_cm_event: ", mesh::ErrorText(errno)));
  }
  ConnectionEvent copy;
  copy.type = event->event;
  copy.id = event->id;
  copy.status = event->status;
  const auto* bytes = static_cast<const std::byte*>(event->param.conn.private_data);
  if (bytes != nullptr) {
    copy.private_data.assign(bytes, bytes + event->param.conn.private_data_len);
  }
  // A request's id has inherited the listener's context.
  if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) copy.rank = RankOf(event->id);
  Rdma().rdma_ack_cm_event(event);
  return copy;
}

Status Mesh::TakeDeviceEvents() {
  ibv_async_event event;
  while (Rdma().ibv_get_async_event(device_->context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    const std::string text = Rdma().ibv_event_type_str(type);
    const ibv_qp* const pair = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                                       type == IBV_EVENT_QP_ACCESS_ERR
                                   ? event.element.qp
                                   : nullptr;
    Rdma().ibv_ack_async_event(&event);
    if (type == IBV_EVENT_DEVICE_FATAL || type == IBV_EVENT_CQ_ERR) {
      return Unavailable(StrCat("RDMA device ", device_->name(), " reports: ", text));
    }
    if (type == IBV_EVENT_PORT_ERR) {  // may come back; the device's retries bound the wait
      Log(LogLevel::kWarning, "transport", StrCat("RDMA device ", device_->name(), ": ", text));
    }
    for (Peer& peer : peers_) {
      if (pair == nullptr || !peer.pair || peer.pair->raw() != pair) continue;
      peer.lost = true;
      peer.lost_because = text;
    }
  }
  return OkStatus();
}

Status Mesh::TakeCompletions(TimePoint now, bool* progress) {
  Status first = OkStatus();
  ibv_wc batch[kBatch];
  int count;
  while ((count = ibv_poll_cq(device_->completions(), kBatch, batch)) > 0) {
    *progress = true;
    for (int i = 0; i < count; ++i) {
      const Status status = OnCompletion(batch[i], now);
      if (first.ok()) first = status;
    }
    if (count < kBatch) break;
  }
  if (count < 0) return Unavailable(StrCat("RDMA device ", device_->name(), ": cannot be polled"));
  return first;
}

Status Mesh::OnCompletion(const ibv_wc& completion, TimePoint now) {
  const WorkId work = WorkId::Unpack(completion.wr_id);
  if (work.rank >= peers_.size()) return OkStatus();
  Peer& peer = peers_[work.rank];
  if (!peer.pair || peer.pair->generation() != work.generation) return OkStatus();
  if (completion.status != IBV_WC_SUCCESS) {
    if (completion.status == IBV_WC_LOC_LEN_ERR && peer.stream) {
      return DataLoss(StrCat(peer.stream->name(), " sent a message longer than a slot"));
    }
    if (!peer.lost) {  // what follows the first failure is only flushed
      peer.lost = true;
      peer.lost_because = Rdma().ibv_wc_status_str(completion.status);
    }
    return OkStatus();
  }
  if (!peer.stream) return OkStatus();
  if (!work.receive) {
    peer.stream->OnSent(work.slot, now);
    return OkStatus();
  }
  if (completion.opcode != IBV_WC_RECV || !(completion.wc_flags & IBV_WC_WITH_IMM)) {
    return DataLoss(StrCat(peer.stream->name(), " sent a message of another protocol"));
  }
  return peer.stream->OnMessage(work.slot, completion.byte_len, ntohl(completion.imm_data), now);
}

Status Mesh::Arm() {
  if (armed_) return OkStatus();
  if (const int error = ibv_req_notify_cq(device_->completions(), 0); error != 0) {
    return Unavailable(StrCat("RDMA device ", device_->name(), ": ", mesh::ErrorText(error)));
  }
  armed_ = true;
  return OkStatus();
}

void Mesh::TakeWakeUps() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned int count = 0;
  while (Rdma().ibv_get_cq_event(device_->completion_channel(), &queue, &context) == 0) ++count;
  if (count > 0) Rdma().ibv_ack_cq_events(device_->completions(), count);
  armed_ = false;
}

}  // namespace weir::verbs
