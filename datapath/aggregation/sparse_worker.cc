// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/sparse_worker.h"

#include <algorithm>

#include "datapath/base/check.h"

namespace weir::aggregation {
Status SparseWorker::Begin(std::span<float> data, uint16_t code, uint32_t operation,
                           TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(Start(operation, deadline));
  WEIR_RETURN_IF_ERROR(columns_.Begin(data, code));
  LaunchAll();
  return OkStatus();
}

Status SparseWorker::Begin(std::span<const float> data, const BlockSurvey& survey, uint16_t code,
                           BlockSums* sums, uint32_t operation, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(Start(operation, deadline));
  WEIR_RETURN_IF_ERROR(columns_.Begin(data, survey, code, sums));
  LaunchAll();
  return OkStatus();
}

void SparseWorker::LaunchAll() {
  for (size_t slot = 0; slot < slots(); ++slot) {
    if (columns_.Active(slot)) Launch(slot, slot);
  }
}

// The index of a packet is its slot, because the columns know what is due there.
void SparseWorker::Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) {
  columns_.Build(index, header, payload);
}

Status SparseWorker::Accept(uint64_t index, const Packet& packet) {
  if (packet.header.contributions != lease().workers) {
    return DataLoss(StrCat("rank ", rank(), ": reply to ", Describe(packet.header), ": expected ",
                           lease().workers, " contributions, found ", packet.header.contributions));
  }
  if ((packet.header.flags & kPacketOverflow) != 0) {
    return DataLoss(StrCat("rank ", rank(), ": a sum does not fit in ", Describe(packet.header)));
  }
  if (const Status accepted = columns_.Accept(index, packet); !accepted.ok()) {
    return Annotate(accepted, StrCat("rank ", rank(), ": ", Describe(packet.header)));
  }
  if (columns_.Active(index)) Launch(index, index);
  return OkStatus();
}

SparseStreamWorker::SparseStreamWorker(const Lease& lease, int rank)
    : lease_(lease), rank_(rank), columns_(lease), rounds_(lease.slots), buffer_(kPacketBytesMax) {}

Status SparseStreamWorker::Begin(std::span<float> data, uint16_t code, uint32_t operation) {
  if (!status_.ok() || !done()) {
    return FailedPrecondition(StrCat("rank ", rank_, ": operation ", operation_, " ",
                                     status_.ok() ? "still runs" : Message(status_)));
  }
  WEIR_RETURN_IF_ERROR(columns_.Begin(data, code));
  operation_ = operation;
  line_.clear();
  for (uint16_t slot = 0; slot < lease_.slots; ++slot) {
    if (!columns_.Active(slot)) continue;
    ++active_;
    line_.push_back(slot);  // tells the others this worker's next blocks
  }
  return OkStatus();
}

std::span<const std::byte> SparseStreamWorker::NextPacket() {
  if (!status_.ok() || line_.empty()) return {};
  const uint16_t slot = line_.front();
  line_.pop_front();
  PacketHeader header = RequestHeader(lease_);
  header.slot = slot;
  header.round = rounds_[slot];
  header.operation = operation_;
  columns_.Build(slot, &header, std::span(buffer_).subspan(kPacketHeaderBytes));
  EncodePacketHeader(header, std::span(buffer_).first<kPacketHeaderBytes>());
  const std::span<std::byte> packet =
      std::span(buffer_).first(kPacketHeaderBytes + PayloadBytes(header));
  if (lease_.checked) SealPacket(packet);
  ++packets_sent_;
  return packet;
}

void SparseStreamWorker::OnPacket(std::span<const std::byte> message) {
  if (done()) return;
  const StatusOr<Packet> packet = DecodePacket(message);
  const Status accepted = packet.ok() ? Accept(*packet) : packet.status();
  if (!accepted.ok()) status_ = Annotate(accepted, StrCat("rank ", rank_));
}

Status SparseStreamWorker::Accept(const Packet& packet) {
  const PacketHeader& h = packet.header;
  if (!Fits(lease_, h) || (h.flags & kPacketReply) == 0 || (h.flags & kPacketNotice) != 0 ||
      !columns_.Active(h.slot) || h.round != rounds_[h.slot] || h.operation != operation_) {
    return DataLoss(StrCat("no reply that is due: ", Describe(h)));
  }
  if ((h.flags & kPacketOverflow) != 0) {
    return DataLoss(StrCat("a sum does not fit in ", Describe(h)));
  }
  WEIR_RETURN_IF_ERROR(columns_.Accept(h.slot, packet));
  ++rounds_[h.slot];
  if (!columns_.Active(h.slot)) {
    --active_;
  } else if (columns_.HasBlock(h.slot)) {
    line_.push_back(h.slot);
  }
  return OkStatus();
}

SparseStreamPool::SparseStreamPool(const Lease& lease)
    : lease_(lease),
      operation_(MakeLaneOperation(lease)),
      words_(StateWords(lease)),
      slots_(lease.slots),
      state_(size_t{lease.slots} * words_) {
  for (Slot& slot : slots_) {
    slot.columns.resize(lease.columns);
    for (Column& column : slot.columns) {
      column.nexts.resize(static_cast<size_t>(lease.workers), kNoBlock);
    }
  }
}

Status SparseStreamPool::Check(int worker, const Packet& packet, const Slot& slot) const {
  const PacketHeader& h = packet.header;
  const bool opens = slot.first && slot.announced == 0;
  const bool repeated = slot.first && (slot.announced >> worker & 1) != 0;
  if (h.round != slot.round || repeated || (!opens && h.operation != slot.operation) ||
      (!opens && h.offset != slot.columns[0].current)) {
    return DataLoss(StrCat("worker ", worker, ": ", Describe(h), " is not due, expected round ",
                           slot.round, " operation ", slot.operation, " block ",
                           slot.columns[0].current));
  }
  for (size_t j = 0; j < lease_.columns && !slot.first; ++j) {
    const Column& column = slot.columns[j];
    const bool owed =
        column.current != kNoBlock && column.nexts[static_cast<size_t>(worker)] == column.current;
    if (((h.detail >> j & 1) != 0) != owed) {
      return DataLoss(StrCat("worker ", worker, ": ", Describe(h), " column ", j, ": expected ",
                             owed ? "a" : "no", " block"));
    }
  }
  return OkStatus();
}

StatusOr<Outcome> SparseStreamPool::OnPacket(int worker, const Packet& packet) {
  const PacketHeader& h = packet.header;
  WEIR_CHECK(worker >= 0 && worker < lease_.workers && h.slot < slots_.size());
  Slot& slot = slots_[h.slot];
  WEIR_RETURN_IF_ERROR(Check(worker, packet, slot));
  if (slot.first && slot.announced == 0) {
    slot.operation = h.operation;
    slot.columns[0].current = h.offset;
  }
  slot.announced |= uint64_t{1} << worker;
  for (size_t j = 0; j < lease_.columns; ++j) {
    uint32_t next;
    LoadLanes(packet.payload.subspan(j * 4), lease_.little_endian, {&next, 1});
    // A next block that does not lie ahead would keep the stream waiting or running for ever.
    if (!slot.first && next != kNoBlock && next <= slot.columns[j].current) {
      return DataLoss(StrCat("worker ", worker, ": ", Describe(h), " column ", j,
                             ": expected a next block above ", slot.columns[j].current, ", found ",
                             next));
    }
    slot.columns[j].nexts[static_cast<size_t>(worker)] = next;
  }
  const std::span<uint32_t> state = std::span(state_).subspan(h.slot * words_, words_);
  bool fits = true;
  if (slot.empty) {
    operation_->Set(packet, state);
  } else {
    fits = operation_->Add(packet, state);
  }
  slot.empty = false;
  // Integers on a shared scale fit by construction, so a worker that breaks this breaks the sum for
  // all.
  if (!fits) return DataLoss(StrCat("worker ", worker, ": a sum does not fit in ", Describe(h)));
  if (!Complete(slot)) return Outcome{.verdict = Verdict::kAdded};
  Advance(&slot);
  EncodeReply(h, slot, state);
  return Outcome{.verdict = Verdict::kCompleted, .reply = reply_};
}

void SparseStreamPool::EncodeReply(const PacketHeader& request, const Slot& slot,
                                   std::span<uint32_t> state) {
  PacketHeader reply = request;
  reply.flags = static_cast<uint8_t>((request.flags & kPacketLittleEndian) | kPacketReply);
  reply.checksum = 0;
  reply_.resize(kPacketBytesMax);
  // The next blocks of workers that were silent in this round count, too.
  for (size_t j = 0; j < lease_.columns; ++j) state[1 + j] = slot.columns[j].current;
  operation_->Write(state, &reply, std::span(reply_).subspan(kPacketHeaderBytes));
  EncodePacketHeader(reply, std::span(reply_).first<kPacketHeaderBytes>());
  reply_.resize(kPacketHeaderBytes + PayloadBytes(reply));
  if (lease_.checked) SealPacket(reply_);
}

bool SparseStreamPool::Complete(const Slot& slot) const {
  if (slot.first) return slot.announced == ~uint64_t{0} >> (kWorkersMax - lease_.workers);
  for (const Column& column : slot.columns) {
    if (column.current == kNoBlock) continue;
    for (const uint32_t next : column.nexts) {
      if (next == column.current) return false;
    }
  }
  return true;
}

void SparseStreamPool::Advance(Slot* slot) {
  bool ended = true;
  for (Column& column : slot->columns) {
    column.current = *std::min_element(column.nexts.begin(), column.nexts.end());
    ended = ended && column.current == kNoBlock;
  }
  ++slot->round;
  slot->first = ended;
  slot->empty = true;
  if (ended) slot->announced = 0;
}

}  // namespace weir::aggregation
