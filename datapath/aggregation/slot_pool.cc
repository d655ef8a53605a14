// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/slot_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "datapath/base/check.h"

namespace weir::aggregation {

SlotPool::SlotPool(const Lease& lease, bool exact_floats)
    : lease_(lease),
      operation_(MakeLaneOperation(lease, exact_floats)),
      words_(StateWords(lease)),
      everybody_(~uint64_t{0} >> (kWorkersMax - static_cast<size_t>(lease.workers))),
      slots_(lease.slots),
      state_(operation_->SumsInPlace() ? 0 : size_t{lease.slots} * 2 * words_) {}

std::span<const uint32_t> SlotPool::State(size_t slot, uint32_t round) const {
  if (!state_.empty()) {
    return std::span(state_).subspan((slot * 2 + (round & 1)) * words_, words_);
  }
  const std::byte* lanes = slots_[slot].sets[round & 1].reply.data() + kPacketHeaderBytes;
  return {reinterpret_cast<const uint32_t*>(lanes), words_};
}

std::span<uint32_t> SlotPool::State(size_t slot, uint32_t round) {
  const std::span<const uint32_t> state = std::as_const(*this).State(slot, round);
  return {const_cast<uint32_t*>(state.data()), state.size()};
}

void SlotPool::Open(Slot* slot, const PacketHeader& header, TimePoint now) {
  slot->newest = header.round;
  // Workers begin an operation only after all rounds of the previous one are complete.
  if (header.operation != late_operation_) late_ = 0;
  late_operation_ = header.operation;
  Set& set = slot->sets[header.round & 1];
  set.round = header.round;
  set.contributors = 0;
  set.count = 0;
  set.complete = false;
  set.header = header;
  set.header.exponent = 0;
  set.opened_at = now;
  set.reply.resize(kPacketBytesMax);
  set.reply_bytes = 0;
}

Outcome SlotPool::OnPacket(int worker, const Packet& packet, TimePoint now) {
  const PacketHeader& h = packet.header;
  WEIR_CHECK(worker >= 0 && worker < lease_.workers && h.slot < slots_.size());
  Slot& slot = slots_[h.slot];
  const int64_t round = h.round;
  if (round > slot.newest + 1) return {.verdict = Verdict::kEarly};
  if (round == slot.newest + 1) {
    // A worker opens this round only after the reply to the previous one. So that round is
    // complete, and all workers have read the one before it, whose set this round reuses.
    if (slot.newest >= 0 && !slot.sets[slot.newest & 1].complete) {
      return {.verdict = Verdict::kEarly};
    }
    Open(&slot, h, now);
  } else if (round + 1 < slot.newest) {
    // A worker can be this far behind and still wait only where rounds may end without some
    // workers.
    if (lease_.cutoff > Duration::zero()) return Tell(h, Notice::kExpired);
    return {.verdict = Verdict::kStale};
  }
  return Contribute(worker, packet, &slot.sets[h.round & 1]);
}

Outcome SlotPool::Contribute(int worker, const Packet& packet, Set* set) {
  const PacketHeader& h = packet.header;
  const bool lead = (h.flags & kPacketLead) != 0;
  const bool set_lead = (set->header.flags & kPacketLead) != 0;
  if (h.operation != set->header.operation || h.offset != set->header.offset || lead != set_lead) {
    return Tell(h, Notice::kMismatch);
  }
  if (set->complete) return {.verdict = Verdict::kServed, .reply = set->Reply()};
  const uint64_t bit = uint64_t{1} << worker;
  if ((set->contributors & bit) != 0) return {.verdict = Verdict::kDuplicate};
  const bool first = set->contributors == 0;
  set->header.exponent = std::max(set->header.exponent, h.exponent);
  set->contributors |= bit;
  ++set->count;
  const bool complete = HasAllAwaited(*set);
  if (!lead && first) {
    operation_->Set(packet, State(h.slot, h.round));
  } else if (!lead && !complete && !operation_->Add(packet, State(h.slot, h.round))) {
    set->header.flags |= kPacketOverflow;
  }
  if (!complete) return {.verdict = Verdict::kAdded};
  Complete(lead || first ? nullptr : &packet, set);
  return {.verdict = Verdict::kCompleted,
          .reply = set->Reply(),
          .partial = set->count < lease_.workers};
}

bool SlotPool::HasAllAwaited(const Set& set) const {
  return (set.contributors | late_) == everybody_ && set.count >= lease_.quorum;
}

void SlotPool::Complete(const Packet* last, Set* set) {
  PacketHeader reply = set->header;
  reply.flags = static_cast<uint8_t>((reply.flags & ~kPacketChecked) | kPacketReply);
  reply.contributions = static_cast<uint16_t>(set->count);
  reply.checksum = 0;
  const std::span<std::byte> payload = std::span(set->reply).subspan(kPacketHeaderBytes);
  if ((reply.flags & kPacketLead) == 0) {
    const std::span<uint32_t> state = State(reply.slot, reply.round);
    if (last == nullptr) {
      operation_->Write(state, &reply, payload);
    } else if (!operation_->AddAndWrite(*last, state, &reply, payload)) {
      reply.flags |= kPacketOverflow;
    }
    if (lease_.mode == PacketMode::kTable) {
      const uint64_t contributors = __builtin_bswap64(set->contributors);
      std::memcpy(payload.data(), &contributors, sizeof contributors);
    }
  }
  EncodePacketHeader(reply, std::span(set->reply).first<kPacketHeaderBytes>());
  set->reply_bytes = kPacketHeaderBytes + PayloadBytes(reply);
  if (lease_.checked) SealPacket(std::span(set->reply).first(set->reply_bytes));
  set->complete = true;
}

Outcome SlotPool::Tell(const PacketHeader& header, Notice notice) {
  PacketHeader reply = header;
  reply.flags =
      static_cast<uint8_t>((header.flags & kPacketLittleEndian) | kPacketReply | kPacketNotice);
  reply.exponent = 0;
  reply.detail = static_cast<uint32_t>(notice);
  reply.checksum = 0;
  notice_.resize(kPacketHeaderBytes);
  EncodePacketHeader(reply, std::span(notice_).first<kPacketHeaderBytes>());
  if (lease_.checked) SealPacket(notice_);
  return {.verdict = Verdict::kNoticed, .reply = notice_};
}

void SlotPool::OnTimer(TimePoint now,
                       const std::function<void(std::span<const std::byte>)>& on_reply) {
  if (lease_.cutoff == Duration::zero()) return;
  for (Slot& slot : slots_) {
    if (slot.newest < 0) continue;
    Set& set = slot.sets[slot.newest & 1];
    if (set.complete || set.count < lease_.quorum) continue;
    if (!HasAllAwaited(set) && now - set.opened_at < lease_.cutoff) continue;
    late_ |= everybody_ & ~set.contributors;
    Complete(nullptr, &set);
    on_reply(set.Reply());
  }
}

std::optional<OpenRound> SlotPool::OldestOpenRound() const {
  const Set* oldest = nullptr;
  for (const Slot& slot : slots_) {
    if (slot.newest < 0) continue;
    const Set& set = slot.sets[slot.newest & 1];
    if (set.complete || (oldest != nullptr && oldest->opened_at <= set.opened_at)) continue;
    oldest = &set;
  }
  if (oldest == nullptr) return std::nullopt;
  return OpenRound{.slot = oldest->header.slot,
                   .round = oldest->round,
                   .operation = oldest->header.operation,
                   .missing = everybody_ & ~oldest->contributors,
                   .opened_at = oldest->opened_at};
}

void SlotPool::AppendStateForTest(std::vector<uint64_t>* out) const {
  out->push_back(late_);
  for (size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    out->push_back(static_cast<uint64_t>(slot.newest));
    for (int64_t round = std::max<int64_t>(0, slot.newest - 1); round <= slot.newest; ++round) {
      const Set& set = slot.sets[round & 1];
      out->push_back(set.contributors << 1 | (set.complete ? 1 : 0));
      if (set.complete) {  // then the state is undefined
        for (const std::byte octet : set.Reply()) out->push_back(std::to_integer<uint64_t>(octet));
        continue;
      }
      const std::span<const uint32_t> state = State(s, static_cast<uint32_t>(round));
      out->insert(out->end(), state.begin(), state.end());
    }
  }
}

}  // namespace weir::aggregation
