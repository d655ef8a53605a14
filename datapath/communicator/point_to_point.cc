// SPDX-License-Identifier: Apache-2.0
#include "datapath/communicator/point_to_point.h"

#include <algorithm>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"

namespace weir {
namespace {

constexpr uint64_t kBucket = 0x7032700000000000;  // sent in the place of an operation's bucket
constexpr uint32_t kControlSlot = 0, kPayloadSlot = 1;
constexpr Duration kShutdownNoticeMax = std::chrono::milliseconds(200);

FrameHeader Header(uint32_t slot) {
  FrameHeader header;
  header.slot = slot;
  header.bucket = kBucket;
  return header;
}

Status Closed(int peer, std::string_view what) {
  return Unavailable(StrCat("rank ", peer, " closed its communicator", what));
}

}  // namespace

PointToPoint::PointToPoint(Transport& transport)
    : transport_(transport), peers_(static_cast<size_t>(transport.world())) {
  window_ = std::clamp<size_t>(kPostedMax / peers_.size(), 3, 9) - 1;
  for (int peer = 0; peer < transport_.world() && failure_.ok(); ++peer) {
    if (peer == transport_.rank()) continue;
    if (const Status status = PostControlReceive(peer); !status.ok()) (void)Fail(status);
  }
}

// ---- orders

Status PointToPoint::CheckOrder(const PointToPointMessage& message, bool sends) const {
  if (!failure_.ok()) return failure_;
  const int peer = message.peer, world = transport_.world();
  const bool any = !sends && peer == kAnyRank;
  if (!any && (peer < 0 || peer >= world || peer == transport_.rank())) {
    return InvalidArgument(
        StrCat("peer: expected another rank of 0..", world - 1, ", found ", peer));
  }
  if (open_ >= kMessagesMax) {
    return ResourceExhausted(StrCat("more than ", kMessagesMax, " messages under way"));
  }
  const bool nobody = any && std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) {
                        return p.departed || p.receive == 0;
                      });
  if (nobody) return Unavailable("every other rank closed its communicator");
  if (!any && peers_[peer].departed) return Closed(peer, "");
  return OkStatus();
}

PointToPoint::Open PointToPoint::Admit(PointToPointMessage message) {
  ++open_;
  Open open;
  static_cast<PointToPointMessage&>(open) = std::move(message);
  open.id = ++issued_;
  open.deadline = RealClock().Now() + open.timeout;
  earliest_ = std::min(earliest_, open.deadline);
  return open;
}

void PointToPoint::Send(PointToPointMessage message) {
  if (const Status status = CheckOrder(message, true); !status.ok()) {
    return message.done(status, message.peer);
  }
  Open open = Admit(std::move(message));
  Peer& peer = peers_[open.peer];
  peer.controls.push_back({Kind::kOffer, open.id, open.tag, open.bytes.size()});
  peer.outgoing.emplace(open.id, std::move(open));
}

void PointToPoint::Receive(PointToPointMessage message) {
  if (const Status status = CheckOrder(message, false); !status.ok()) {
    return message.done(status, message.peer);
  }
  Open open = Admit(std::move(message));
  for (int peer = 0; peer < transport_.world(); ++peer) {
    if (open.peer != kAnyRank && open.peer != peer) continue;
    std::deque<Control>& offers = peers_[peer].offers;
    const auto offer = std::find_if(offers.begin(), offers.end(),
                                    [&](const Control& c) { return c.tag == open.tag; });
    if (offer == offers.end()) continue;
    const Control taken = *offer;
    offers.erase(offer);
    return Match(std::move(open), peer, taken);
  }
  receives_.push_back(std::move(open));
}

void PointToPoint::Match(Open receive, int peer, const Control& offer) {
  Peer& from = peers_[peer];
  if (offer.bytes != receive.bytes.size()) {
    from.controls.push_back({Kind::kRefuse, offer.id, offer.tag, receive.bytes.size()});
    return Finish(
        std::move(receive),
        InvalidArgument(StrCat("rank ", peer, " sent ", offer.bytes, " bytes with tag ", offer.tag,
                               ", rank ", transport_.rank(), " expected ", receive.bytes.size())),
        peer);
  }
  from.controls.push_back({Kind::kAccept, offer.id, offer.tag, offer.bytes});
  if (offer.bytes == 0) return Finish(std::move(receive), OkStatus(), peer);
  from.incoming.emplace(offer.id, std::move(receive));
}

void PointToPoint::Finish(Open message, const Status& status, int peer) {
  --open_;
  message.done(status, peer);
}

// ---- one turn

Status PointToPoint::Serve(TimePoint until) {
  if (!failure_.ok()) return failure_;
  if (const Status late = CheckDeadlines(RealClock().Now()); !late.ok()) return Fail(late);
  tickets_.clear();
  owners_.clear();
  const auto add = [&](Ticket ticket, int peer) {
    tickets_.push_back(ticket);
    owners_.push_back(peer);
  };
  for (int peer = 0; peer < transport_.world(); ++peer) {
    if (const Status status = Fill(peer); !status.ok()) return Fail(status);
    // Sends come first. A peer may leave once it has received all of a message, and the message
    // must then count as sent before the peer's departure is noticed.
    if (!peers_[peer].posted.empty()) add(peers_[peer].posted.front().ticket, peer);
  }
  const size_t sends = tickets_.size();
  for (int peer = 0; peer < transport_.world(); ++peer) {
    if (peers_[peer].receive != 0) add(peers_[peer].receive, peer);
  }
  const auto first = transport_.WaitAny(tickets_, std::min(until, earliest_));
  if (!first.ok()) return Fail(first.status());
  if (!first->has_value()) return OkStatus();
  const int peer = owners_[**first];
  const Status status = **first < sends ? OnSent(peer) : OnReceive(peer);
  return status.ok() ? status : Fail(status);
}

Status PointToPoint::Post(int peer, const Control& control) {
  Posted& posted = peers_[peer].posted.emplace_back();
  ByteWriter writer(posted.control);
  writer.Write(static_cast<uint64_t>(control.kind));
  writer.Write(control.id);
  writer.Write(control.tag);
  writer.Write(control.bytes);
  const auto ticket = transport_.PostSend(peer, Header(kControlSlot), posted.control);
  if (ticket.ok()) {
    posted.ticket = *ticket;
  } else {
    peers_[peer].posted.pop_back();
  }
  return ticket.status();
}

// Posts the frames that wait for `peer` to the transport, controls before payloads.
Status PointToPoint::Fill(int peer) {
  Peer& to = peers_[peer];
  while (!to.unreachable && to.posted.size() < window_ &&
         !(to.controls.empty() && to.accepted.empty())) {
    Status status;
    if (!to.controls.empty()) {
      status = Post(peer, to.controls.front());
      to.controls.pop_front();
    } else {
      status = PostSegment(peer);
    }
    // The transport already knows that the peer left; its shutdown notice is about to be read.
    if (status.code() == StatusCode::kUnavailable) to.unreachable = true;
    if (!status.ok() && !to.unreachable) return status;
  }
  return OkStatus();
}

Status PointToPoint::PostSegment(int peer) {
  Peer& to = peers_[peer];
  Open& message = to.outgoing.at(to.accepted.front());
  const size_t size = std::min(kSegmentBytes, message.bytes.size() - message.moved);
  WEIR_RETURN_IF_ERROR(Post(peer, {Kind::kData, message.id, message.tag, size}));
  WEIR_ASSIGN_OR_RETURN(
      const Ticket ticket,
      transport_.PostSend(peer, Header(kPayloadSlot), message.bytes.subspan(message.moved, size)));
  message.moved += size;
  const bool last = message.moved == message.bytes.size();
  to.posted.push_back({.ticket = ticket, .control = {}, .finishes = last ? message.id : 0});
  if (last) to.accepted.pop_front();
  return OkStatus();
}

Status PointToPoint::OnSent(int peer) {
  Peer& to = peers_[peer];
  const Posted& sent = to.posted.front();
  WEIR_RETURN_IF_ERROR(transport_.Wait(sent.ticket, RealClock().Now()).status());
  const auto message = to.outgoing.find(sent.finishes);
  to.posted.pop_front();
  if (message == to.outgoing.end()) return OkStatus();
  Open open = std::move(message->second);
  to.outgoing.erase(message);
  Finish(std::move(open), OkStatus(), peer);
  return OkStatus();
}

// ---- frames from peers

Status PointToPoint::PostControlReceive(int peer) {
  Peer& from = peers_[peer];
  from.payload = false;
  WEIR_ASSIGN_OR_RETURN(from.receive, transport_.PostReceive(peer, from.control));
  return OkStatus();
}

Status PointToPoint::OnReceive(int peer) {
  Peer& from = peers_[peer];
  WEIR_ASSIGN_OR_RETURN(const FrameHeader header, transport_.Wait(from.receive, RealClock().Now()));
  from.receive = 0;
  const size_t expected = from.payload ? from.arriving_bytes : kControlBytes;
  if (header.bucket != kBucket || header.slot != (from.payload ? kPayloadSlot : kControlSlot) ||
      header.payload_bytes != expected) {
    return DataLoss(StrCat("rank ", peer, " sent ", Describe(header), " of ", header.payload_bytes,
                           " bytes, expected ", expected, " bytes of a message between two ranks"));
  }
  if (from.payload) return OnPayload(peer);
  Control control;
  uint64_t kind = 0;
  ByteReader reader(from.control);
  WEIR_RETURN_IF_ERROR(reader.Read(&kind));
  WEIR_RETURN_IF_ERROR(reader.Read(&control.id));
  WEIR_RETURN_IF_ERROR(reader.Read(&control.tag));
  WEIR_RETURN_IF_ERROR(reader.Read(&control.bytes));
  if (kind < 1 || kind > static_cast<uint64_t>(Kind::kShutdownNotice)) {
    return DataLoss(StrCat("rank ", peer, " sent a control of kind ", kind, ", expected 1..5"));
  }
  control.kind = static_cast<Kind>(kind);
  WEIR_RETURN_IF_ERROR(OnControl(peer, control));
  return from.receive == 0 && !from.departed ? PostControlReceive(peer) : OkStatus();
}

Status PointToPoint::OnControl(int peer, const Control& control) {
  switch (control.kind) {
    case Kind::kOffer:
      return OnOffer(peer, control);
    case Kind::kAccept:
    case Kind::kRefuse:
      return OnAnswer(peer, control);
    case Kind::kData:
      return OnData(peer, control);
    case Kind::kShutdownNotice:
      return OnShutdownNotice(peer);
  }
  return OkStatus();
}

Status PointToPoint::OnOffer(int peer, const Control& offer) {
  Peer& from = peers_[peer];
  if (from.offers.size() >= kMessagesMax || from.incoming.count(offer.id) != 0) {
    return DataLoss(StrCat("rank ", peer, " offered message ", offer.id, " twice, or more than ",
                           kMessagesMax));
  }
  const auto wanted = std::find_if(receives_.begin(), receives_.end(), [&](const Open& open) {
    return open.tag == offer.tag && (open.peer == kAnyRank || open.peer == peer);
  });
  if (wanted == receives_.end()) {
    from.offers.push_back(offer);
    return OkStatus();
  }
  Open receive = std::move(*wanted);
  receives_.erase(wanted);
  Match(std::move(receive), peer, offer);
  return OkStatus();
}

Status PointToPoint::OnAnswer(int peer, const Control& answer) {
  Peer& to = peers_[peer];
  const auto found = to.outgoing.find(answer.id);
  if (found == to.outgoing.end() || found->second.accepted) {
    return DataLoss(StrCat("rank ", peer, " answered message ", answer.id,
                           ", which it was not offered, or twice"));
  }
  if (answer.kind == Kind::kAccept && !found->second.bytes.empty()) {
    found->second.accepted = true;
    to.accepted.push_back(answer.id);
    return OkStatus();
  }
  Open open = std::move(found->second);
  to.outgoing.erase(found);
  Status status;
  if (answer.kind == Kind::kRefuse) {
    status = InvalidArgument(StrCat("rank ", transport_.rank(), " sent ", open.bytes.size(),
                                    " bytes with tag ", open.tag, ", rank ", peer, " expected ",
                                    answer.bytes));
  }
  Finish(std::move(open), status, peer);
  return OkStatus();
}

Status PointToPoint::OnData(int peer, const Control& data) {
  Peer& from = peers_[peer];
  const auto found = from.incoming.find(data.id);
  if (found == from.incoming.end()) {
    return DataLoss(StrCat("rank ", peer, " sent message ", data.id, ", which was not accepted"));
  }
  Open& open = found->second;
  const size_t left = open.bytes.size() - open.moved;
  if (data.bytes == 0 || data.bytes > left) {
    return DataLoss(StrCat("rank ", peer, " announced ", data.bytes, " bytes of message ", data.id,
                           ", expected 1..", left));
  }
  from.payload = true;
  from.arriving = data.id;
  from.arriving_bytes = data.bytes;
  WEIR_ASSIGN_OR_RETURN(from.receive,
                        transport_.PostReceive(peer, open.bytes.subspan(open.moved, data.bytes)));
  return OkStatus();
}

Status PointToPoint::OnPayload(int peer) {
  Peer& from = peers_[peer];
  const auto found = from.incoming.find(from.arriving);
  WEIR_CHECK(found != from.incoming.end());
  found->second.moved += from.arriving_bytes;
  if (found->second.moved == found->second.bytes.size()) {
    Open open = std::move(found->second);
    from.incoming.erase(found);
    Finish(std::move(open), OkStatus(), peer);
  }
  return PostControlReceive(peer);
}

// Ends the messages that a peer which left had only offered or was only asked for. A message that
// was moved in part is an error, because its rest will not arrive.
Status PointToPoint::OnShutdownNotice(int peer) {
  Peer& from = peers_[peer];
  from.departed = true;
  from.unreachable = true;
  const bool moving = !from.incoming.empty() ||
                      std::any_of(from.outgoing.begin(), from.outgoing.end(),
                                  [](const auto& entry) { return entry.second.accepted; });
  if (moving) return Closed(peer, " with messages under way");
  from.offers.clear();
  from.controls.clear();
  for (auto& [id, open] : std::exchange(from.outgoing, {})) {
    Finish(std::move(open), Closed(peer, ""), peer);
  }
  const bool last = std::all_of(peers_.begin(), peers_.end(),
                                [](const Peer& p) { return p.departed || p.receive == 0; });
  std::deque<Open> kept;
  for (Open& open : std::exchange(receives_, {})) {
    if (open.peer == peer || (open.peer == kAnyRank && last)) {
      Finish(std::move(open), Closed(peer, ""), peer);
    } else {
      kept.push_back(std::move(open));
    }
  }
  receives_ = std::move(kept);
  return OkStatus();
}

// ---- ending

Status PointToPoint::CheckDeadlines(TimePoint now) {
  if (now < earliest_) return OkStatus();
  earliest_ = TimePoint::max();
  const auto late = [&](const Open& open) {
    earliest_ = std::min(earliest_, open.deadline);
    return open.deadline <= now;
  };
  const auto text = [](const Open& open, std::string_view what) {
    return DeadlineExceeded(StrCat(what, " a message of ", open.bytes.size(), " bytes with tag ",
                                   open.tag, " within ", ToSeconds(open.timeout), " s"));
  };
  for (const Open& open : receives_) {
    if (!late(open)) continue;
    return text(open, open.peer == kAnyRank ? std::string("no rank sent")
                                            : StrCat("rank ", open.peer, " did not send"));
  }
  for (int peer = 0; peer < transport_.world(); ++peer) {
    for (const auto& [id, open] : peers_[peer].incoming) {
      if (late(open)) return text(open, StrCat("rank ", peer, " did not finish sending"));
    }
    for (const auto& [id, open] : peers_[peer].outgoing) {
      if (late(open)) return text(open, StrCat("rank ", peer, " did not receive"));
    }
  }
  return OkStatus();
}

// Buffers are free once Abort has returned.
Status PointToPoint::Fail(const Status& status) {
  if (!failure_.ok()) return failure_;
  failure_ = status;
  transport_.Abort(Message(status));
  EndAll(status);
  return failure_;
}

void PointToPoint::Abandon(const Status& status) {
  if (failure_.ok()) failure_ = status;
  EndAll(failure_);  // also if the transport lacks memory for its message
  transport_.Abandon(Message(status));
}

void PointToPoint::EndAll(const Status& status) {
  for (Open& open : std::exchange(receives_, {})) {
    const int peer = open.peer;
    Finish(std::move(open), status, peer);
  }
  for (int peer = 0; peer < transport_.world(); ++peer) {
    for (auto& [id, open] : std::exchange(peers_[peer].incoming, {})) {
      Finish(std::move(open), status, peer);
    }
    for (auto& [id, open] : std::exchange(peers_[peer].outgoing, {})) {
      Finish(std::move(open), status, peer);
    }
  }
}

void PointToPoint::Leave() {
  const Status closed = Aborted("the communicator was closed");
  if (!failure_.ok()) return;
  for (const Peer& peer : peers_) {
    const bool moving = !peer.incoming.empty() ||
                        std::any_of(peer.outgoing.begin(), peer.outgoing.end(),
                                    [](const auto& entry) { return entry.second.accepted; });
    if (moving) return (void)Fail(closed);
  }
  failure_ = closed;
  EndAll(closed);
  for (int peer = 0; peer < transport_.world(); ++peer) {
    if (peers_[peer].receive != 0)
      peers_[peer].controls.push_back({Kind::kShutdownNotice, 0, 0, 0});
  }
  const TimePoint end = RealClock().Now() + kShutdownNoticeMax;
  while (RealClock().Now() < end) {
    tickets_.clear();
    owners_.clear();
    for (int peer = 0; peer < transport_.world(); ++peer) {
      if (!Fill(peer).ok()) return;
      if (peers_[peer].posted.empty()) continue;
      tickets_.push_back(peers_[peer].posted.front().ticket);
      owners_.push_back(peer);
    }
    if (tickets_.empty()) return;
    const auto first = transport_.WaitAny(tickets_, end);
    if (!first.ok()) return;
    if (first->has_value() && !OnSent(owners_[**first]).ok()) return;
  }
}

}  // namespace weir
