// SPDX-License-Identifier: Apache-2.0
// Every frame carries the identity of its operation, so that bytes of different operations are
// never summed.

#include "datapath/collective/group.h"

#include <algorithm>

#include "datapath/base/check.h"

namespace weir {

Group::Group(Transport& transport, size_t segment_bytes, ScratchPool* scratch)
    : transport_(transport),
      segment_bytes_(std::max<size_t>(segment_bytes, 1)),
      scratch_(scratch) {}

void Group::SetNodes(std::vector<int> nodes) {
  WEIR_CHECK(nodes.empty() || nodes.size() == static_cast<size_t>(transport_.world()));
  nodes_ = std::move(nodes);
}

void Group::SetRing(std::vector<int> order) {
  WEIR_CHECK(order.empty() || order.size() == static_cast<size_t>(transport_.world()));
  ring_ = std::move(order);
  if (ring_.empty()) return;
  const auto own = std::find(ring_.begin(), ring_.end(), transport_.rank());
  WEIR_CHECK(own != ring_.end());
  ring_place_ = static_cast<int>(own - ring_.begin());
}

void Group::SetShards(std::vector<uint32_t> shares) {
  WEIR_CHECK(shares.empty() || shares.size() == static_cast<size_t>(transport_.world()));
  shards_ = std::move(shares);
}

void Group::Begin(const OperationId& id, ControlWord control, uint16_t flags, TimePoint deadline) {
  id_ = id;
  control_ = control;
  flags_ = flags;
  deadline_ = deadline;
  bytes_sent_ = 0;
  device_bytes_ = 0;
  device_time_ = Duration(0);
  failed_ = false;
  receives_.clear();
  const Duration left = deadline - RealClock().Now();
  grace_ = std::clamp<Duration>(left / 10, Duration(0), std::chrono::seconds(1));
  const auto world = static_cast<size_t>(transport_.world());
  heard_.assign(world, false);
  sent_.assign(world, 0);
  awaited_.assign(world, 0);
}

StatusOr<Ticket> Group::Send(int member, uint32_t slot, std::span<const std::byte> payload) {
  const int peer = NameOf(member);
  FrameHeader header;
  header.type = FrameType::kData;
  header.flags = flags_;
  header.slot = slot + slot_offset_;
  header.message = sent_[static_cast<size_t>(peer)]++;
  header.plan_version = id_.plan_version;
  header.op_sequence = id_.op_sequence;
  header.bucket = id_.bucket;
  header.control = control_;
  StatusOr<Ticket> ticket = transport_.PostSend(peer, header, payload);
  if (!ticket.ok()) return Fail(Annotate(ticket.status(), StrCat("sending to rank ", peer)));
  bytes_sent_ += kFrameHeaderBytes + payload.size();
  return ticket;
}

StatusOr<Ticket> Group::Receive(int member, uint32_t slot, std::span<std::byte> buffer) {
  const int peer = NameOf(member);
  StatusOr<Ticket> ticket = transport_.PostReceive(peer, buffer);
  if (!ticket.ok()) return Fail(Annotate(ticket.status(), StrCat("receiving from rank ", peer)));
  receives_.push_back({*ticket, peer, slot + slot_offset_, awaited_[static_cast<size_t>(peer)]++});
  return ticket;
}

Status Group::WaitSend(Ticket ticket) {
  StatusOr<FrameHeader> header = transport_.Wait(ticket, deadline_);
  return header.ok() ? OkStatus() : Fail(header.status());
}

StatusOr<size_t> Group::WaitReceive(Ticket ticket) {
  const auto pending = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const Pending& p) { return p.ticket == ticket; });
  WEIR_CHECK(pending != receives_.end());
  const Pending expected = *pending;
  receives_.erase(pending);
  const auto peer = static_cast<size_t>(expected.peer);
  StatusOr<FrameHeader> header =
      transport_.Wait(ticket, heard_[peer] ? deadline_ + grace_ : deadline_);
  if (!header.ok()) {
    return Fail(Annotate(header.status(), StrCat("waiting for rank ", expected.peer)));
  }
  if (Status status = Verify(expected, *header); !status.ok()) return Fail(status);
  heard_[peer] = true;
  flags_ |= header->flags;
  if (header->control.version > control_.version) control_ = header->control;
  return header->payload_bytes;
}

Status Group::Pause(Duration pause, std::string_view awaited) {
  const TimePoint now = RealClock().Now();
  if (now >= deadline_) return Fail(DeadlineExceeded(std::string(awaited)));
  const auto woken = transport_.WaitAny({}, std::min(deadline_, now + pause));
  return woken.ok() ? OkStatus() : Fail(woken.status());
}

Status Group::Verify(const Pending& expected, const FrameHeader& found) const {
  if (found.type == FrameType::kData && found.plan_version == id_.plan_version &&
      found.op_sequence == id_.op_sequence && found.bucket == id_.bucket &&
      found.slot == expected.slot && found.message == expected.message) {
    return OkStatus();
  }
  FrameHeader wanted = found;
  wanted.source_rank = static_cast<uint16_t>(expected.peer);
  wanted.plan_version = id_.plan_version;
  wanted.op_sequence = id_.op_sequence;
  wanted.bucket = id_.bucket;
  wanted.slot = expected.slot;
  wanted.message = expected.message;
  return Internal(StrCat("rank ", expected.peer, " sent ", Describe(found), "; rank ",
                         transport_.rank(), " expected ", Describe(wanted)));
}

Status Group::Fail(const Status& status) {
  WEIR_CHECK(!status.ok());
  if (!failed_) {
    failed_ = true;
    transport_.Abort(Message(status));
  }
  return status;
}

GroupPart::GroupPart(Group& group, std::vector<int> members, uint32_t slot_offset) : group_(group) {
  WEIR_CHECK(group.members_.empty());
  const auto own = std::find(members.begin(), members.end(), group.transport_.rank());
  WEIR_CHECK(own != members.end());
  group.part_rank_ = static_cast<int>(own - members.begin());
  group.slot_offset_ = slot_offset;
  group.members_ = std::move(members);
}

GroupPart::~GroupPart() {
  group_.members_.clear();
  group_.slot_offset_ = 0;
}

}  // namespace weir
