// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "datapath/transport/mesh/hello.h"

namespace weir::verbs {
namespace {
using mesh::ErrorText;
using State = mesh::RollCall::State;
constexpr int kResolveMs = 2000;
// Codes of InfiniBand's connection manager, which RoCE shares.
constexpr int kRejectedByConsumer = 28;
constexpr int kRejectedNobodyListens = 8;
constexpr size_t kPendingBeyondWorld = 64;

rdma_conn_param Parameters(std::span<const std::byte> private_data, uint32_t queue_pair) {
  rdma_conn_param parameters = {};
  parameters.private_data = private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(private_data.size());
  // Lost packets are sent again 6 times, for some 15 s, before a peer counts as dead; 7 would mean
  // for ever with soft-RoCE. A receiver that is not ready, which credits prevent, is asked without
  // limit, because the operation's deadline ends that.
  parameters.retry_count = 6;
  parameters.rnr_retry_count = 7;
  parameters.qp_num = queue_pair;
  return parameters;
}

void Reject(rdma_cm_id* id, std::span<const std::byte> private_data) {
  Rdma().rdma_reject(id, private_data.data(), static_cast<uint8_t>(private_data.size()));
  Rdma().rdma_destroy_id(id);
}
}  // namespace

Rendezvous::Rendezvous(const TransportOptions& options, const TransportAddress& own, Mesh* mesh,
                       int wake)
    : options_(options),
      own_(own),
      mesh_(mesh),
      wake_(wake),
      roll_(options),
      attempts_(static_cast<size_t>(options.world)) {
  if (options.job_key.has_value()) {
    pending_.emplace(*options.job_key, static_cast<size_t>(options.world) + kPendingBeyondWorld);
  }
}

Status Rendezvous::Run(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(roll_.Begin(addresses));
  while (!roll_.Complete()) {
    const TimePoint now = RealClock().Now();
    WEIR_RETURN_IF_ERROR(now >= deadline ? roll_.Missing() : Round(now, deadline));
  }
  return OkStatus();
}

// Waits for the next events and handles them.
Status Rendezvous::Round(TimePoint now, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(StartDue(now));
  const TimePoint wake_at = roll_.WakeAt(now, deadline);
  pollfd polled[] = {{wake_, POLLIN, 0}, {mesh_->channel()->fd, POLLIN, 0}};
  if (poll(polled, std::size(polled), mesh::PollTimeout(wake_at - now)) < 0 && errno != EINTR) {
    return Internal(StrCat("poll: ", ErrorText(errno)));
  }
  now = RealClock().Now();
  if (polled[0].revents != 0) return Aborted("connecting was interrupted");
  while (!roll_.Complete()) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<ConnectionEvent> event, mesh_->NextEvent());
    if (!event) break;
    WEIR_RETURN_IF_ERROR(OnEvent(*event, now));
  }
  if (pending_.has_value()) {
    for (std::string& refusal : pending_->Expire(now)) roll_.NoteRefusal(std::move(refusal));
  }
  return CheckLost(now);
}

Status Rendezvous::OnEvent(const ConnectionEvent& event, TimePoint now) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    OnRequest(event, now);
    return OkStatus();
  }
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    return Unavailable(StrCat("RDMA device ", mesh_->device().name(), " was removed"));
  }
  if (event.rank < 0 || event.rank >= options_.world) return OkStatus();  // the listener's
  Peer& peer = mesh_->peers()[event.rank];
  if (event.id != peer.id.get()) return OkStatus();
  switch (roll_[event.rank].state) {
    case State::kIdle:
      return OkStatus();
    case State::kDialing:
    case State::kAwaitingAnswer:
      return OnDialed(event, now);
    case State::kAnswered:
      if (event.type == RDMA_CM_EVENT_ESTABLISHED) {
        roll_[event.rank].state = State::kEstablished;
        return OkStatus();
      }
      [[fallthrough]];
    case State::kEstablished:
      // Other events, such as the end of a late handshake, also mean that the peer is gone.
      if (event.type != RDMA_CM_EVENT_TIMEWAIT_EXIT) peer.lost = true;
      return OkStatus();
  }
  return OkStatus();
}

// ---- dialing lower ranks

Status Rendezvous::StartDue(TimePoint now) {
  for (int r = 0; r < options_.rank; ++r) {
    if (roll_.IsDue(r, now)) WEIR_RETURN_IF_ERROR(Dial(r, now));
  }
  return OkStatus();
}

// Dials from the address that this rank listens at, so that all connections use the same device.
Status Rendezvous::Dial(int rank, TimePoint now) {
  WEIR_RETURN_IF_ERROR(mesh_->NewId(rank));
  rdma_cm_id* const id = mesh_->peers()[rank].id.get();
  WEIR_ASSIGN_OR_RETURN(mesh::SocketAddress own,
                        mesh::ResolveAddress(own_.substr(0, own_.rfind(':')) + ":0"));
  roll_[rank].state = State::kDialing;
  if (Rdma().rdma_resolve_addr(id, reinterpret_cast<sockaddr*>(&own.storage),
                               reinterpret_cast<sockaddr*>(&roll_[rank].address.storage),
                               kResolveMs) != 0) {
    Retry(rank, StrCat("cannot be reached: ", ErrorText(errno)), now);
  }
  return OkStatus();
}

void Rendezvous::Retry(int rank, std::string why, TimePoint now) {
  mesh_->Drop(rank);
  attempts_[rank] = Attempt();
  roll_.Retry(rank, std::move(why), now);
}

// The hello has a fresh nonce if there is a key.
StatusOr<Hello> Rendezvous::OwnHello(uint32_t called) const {
  const mesh::Introduction own = roll_.Own(called);
  Hello hello = {own.job,
                 own.rank,
                 own.world,
                 own.expected_peer,
                 mesh_->device().plan().receive,
                 mesh::ProtectionOf(options_)};
  if (options_.job_key.has_value()) {
    WEIR_ASSIGN_OR_RETURN(const Nonce nonce, NewNonce());
    std::copy_n(nonce.begin(), hello.nonce.size(), hello.nonce.begin());
  }
  return hello;
}

Status Rendezvous::OnDialed(const ConnectionEvent& event, TimePoint now) {
  const int rank = event.rank;
  const std::optional<Challenged>& challenged = attempts_[rank].challenged;
  if (challenged.has_value() && challenged->is_stranger &&
      event.type != RDMA_CM_EVENT_ADDR_RESOLVED && event.type != RDMA_CM_EVENT_ROUTE_RESOLVED) {
    return StrangerAt(rank);
  }
  const std::string cause = event.status < 0 ? ErrorText(-event.status) : StrCat(event.status);
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (Rdma().rdma_resolve_route(event.id, kResolveMs) != 0) {
        Retry(rank, StrCat("has no route: ", ErrorText(errno)), now);
      }
      return OkStatus();
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return SendRequest(rank, now);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      return OnAnswer(event, now);
    case RDMA_CM_EVENT_REJECTED:
      return OnRejected(event, now);
    case RDMA_CM_EVENT_ADDR_ERROR:
      Retry(rank, StrCat("has no RDMA address: ", cause), now);
      return OkStatus();
    case RDMA_CM_EVENT_ROUTE_ERROR:
      Retry(rank, StrCat("has no route: ", cause), now);
      return OkStatus();
    case RDMA_CM_EVENT_UNREACHABLE:
      Retry(rank, StrCat("does not answer: ", cause), now);
      return OkStatus();
    default:
      Retry(rank, StrCat("cannot be connected: ", Rdma().rdma_event_str(event.type)), now);
      return OkStatus();
  }
}

// A stranger gets a proof, too. It is worth nothing without the key, and a rank that holds another
// key learns from it that the keys differ, refuses it and logs that.
Status Rendezvous::SendRequest(int rank, TimePoint now) {
  Attempt& attempt = attempts_[rank];
  Peer& peer = mesh_->peers()[rank];
  Request request;
  uint32_t queue_pair = 0;  // a request that will only be challenged needs none
  if (attempt.challenged.has_value()) {
    request = EncodeProof(attempt.said.nonce, attempt.challenged->proof);
  } else {
    WEIR_ASSIGN_OR_RETURN(attempt.said, OwnHello(static_cast<uint32_t>(rank)));
    request = EncodeHello(attempt.said);
  }
  if (attempt.challenged.has_value() ? !attempt.challenged->is_stranger
                                     : !options_.job_key.has_value()) {
    WEIR_RETURN_IF_ERROR(mesh_->MakePair(rank));
    queue_pair = peer.pair->number();
  }
  rdma_conn_param parameters = Parameters(request, queue_pair);
  if (Rdma().rdma_connect(peer.id.get(), &parameters) != 0) {
    Retry(rank, StrCat("cannot be asked: ", ErrorText(errno)), now);
    return OkStatus();
  }
  roll_[rank].state = State::kAwaitingAnswer;
  roll_[rank].last_failure = "was asked and does not answer";
  return OkStatus();
}

Status Rendezvous::OnAnswer(const ConnectionEvent& event, TimePoint now) {
  const int rank = event.rank;
  const StatusOr<Hello> hello = DecodeHello(event.private_data);
  if (!hello.ok()) {
    // Another process may have had this port for a moment, so only the deadline ends the attempts.
    Retry(rank, StrCat("does not speak Weir: ", Message(hello.status())), now);
    return OkStatus();
  }
  WEIR_RETURN_IF_ERROR(roll_.CheckAnswer(rank, mesh::IntroductionOf(*hello)));
  std::optional<Challenged>& challenged = attempts_[rank].challenged;
  if (options_.job_key.has_value() && !challenged.has_value()) return StrangerAt(rank);
  const Window theirs = challenged.has_value() ? challenged->acceptor.window : hello->window;
  Peer& peer = mesh_->peers()[rank];
  const Status active = peer.pair->Activate(event.id);
  if (!active.ok() || Rdma().rdma_establish(event.id) != 0) {
    Retry(rank, active.ok() ? ErrorText(errno) : Message(active), now);
    return OkStatus();
  }
  peer.connected = true;
  mesh_->MakeStream(rank, roll_.AddressOf(rank), theirs,
                    challenged.has_value() ? std::move(challenged->channel) : FrameChannel());
  roll_[rank].state = State::kEstablished;
  return OkStatus();
}

// Handles a challenge, with which the peer rejects a hello if there is a key.
Status Rendezvous::OnChallenge(const ConnectionEvent& event, TimePoint now) {
  const int rank = event.rank;
  Attempt& attempt = attempts_[rank];
  const StatusOr<DecodedChallenge> decoded = DecodeChallenge(event.private_data);
  if (!decoded.ok()) {
    Retry(rank, StrCat("does not speak Weir: ", Message(decoded.status())), now);
    return OkStatus();
  }
  const Hello& acceptor = decoded->acceptor;
  const std::string why = mesh::KeysDiffer(options_, acceptor.protection, roll_.NameOf(rank));
  if (!why.empty()) return FailedPrecondition(why);
  if (!options_.job_key.has_value() || attempt.challenged.has_value()) {
    Retry(rank, "asks for a proof that is not due", now);
    return OkStatus();
  }
  WEIR_ASSIGN_OR_RETURN(attempt.challenged,
                        TakeChallenge(*options_.job_key, attempt.said, event.private_data));
  if (!attempt.challenged->is_stranger) {
    WEIR_RETURN_IF_ERROR(roll_.CheckAnswer(rank, mesh::IntroductionOf(acceptor)));
  }
  return Dial(rank, now);  // an id makes one request
}

Status Rendezvous::StrangerAt(int rank) const {
  return FailedPrecondition(
      StrCat(roll_.NameOf(rank), " does not hold the job's key of rank ", options_.rank));
}

Status Rendezvous::OnRejected(const ConnectionEvent& event, TimePoint now) {
  if (event.status == kRejectedByConsumer && IsChallenge(event.private_data)) {
    return OnChallenge(event, now);
  }
  std::span<const std::byte> text = event.private_data;
  while (!text.empty() && text.back() == std::byte{0}) text = text.first(text.size() - 1);
  if (event.status == kRejectedByConsumer && !text.empty()) {
    return FailedPrecondition(StrCat(roll_.NameOf(event.rank), " refused rank ", options_.rank,
                                     ": ", mesh::PrintableText(text)));
  }
  Retry(event.rank,
        event.status == kRejectedNobodyListens
            ? std::string("is not listening")
            : StrCat("rejects the connection (code ", event.status, ")"),
        now);
  return OkStatus();
}

// ---- answering higher ranks

void Rendezvous::OnRequest(const ConnectionEvent& event, TimePoint now) {
  if (pending_.has_value() && IsProof(event.private_data)) return OnProof(event, now);
  const StatusOr<Hello> hello = DecodeHello(event.private_data);
  const std::string why = hello.ok() ? Judge(event, *hello) : Message(hello.status());
  if (!why.empty()) return Refuse(event.id, why);
  if (pending_.has_value()) return Ask(event, *hello, now);
  Admit(event, *hello, {}, now);
}

// With a key, the caller is rejected for now, with the proof that this rank holds the key, and has
// to prove the same before it counts as the rank that it claims to be.
void Rendezvous::Ask(const ConnectionEvent& event, const Hello& hello, TimePoint now) {
  const StatusOr<Hello> own = OwnHello(mesh::kUnknownPeer);
  if (!own.ok()) return Refuse(event.id, Message(own.status()));
  const StatusOr<Challenge> challenge = pending_->Ask(hello, *own, PeerAddress(event.id), now);
  if (!challenge.ok()) return Refuse(event.id, Message(challenge.status()));
  Reject(event.id, *challenge);
}

void Rendezvous::OnProof(const ConnectionEvent& event, TimePoint now) {
  StatusOr<PendingPeers::Proven> proven = pending_->Check(event.private_data);
  // It came too late and may start again.
  if (proven.status().code() == StatusCode::kNotFound) return Reject(event.id, {});
  if (!proven.ok()) return Refuse(event.id, Message(proven.status()));
  const std::string why =
      Judge(event, proven->hello);  // again, because another may have come first
  if (!why.empty()) return Refuse(event.id, why);
  Admit(event, proven->hello, std::move(proven->channel), now);
}

// Returns why a request is refused; empty when it says that it comes from a rank that is awaited.
std::string Rendezvous::Judge(const ConnectionEvent& event, const Hello& hello) const {
  const std::string other = StrCat("rank ", hello.rank);
  if (std::string why = roll_.Judge(mesh::IntroductionOf(hello)); !why.empty()) return why;
  if (std::string why = mesh::KeysDiffer(options_, hello.protection, other); !why.empty()) {
    return why;
  }
  if (event.id->verbs == nullptr ||
      mesh_->device().name() != Rdma().ibv_get_device_name(event.id->verbs->device)) {
    return StrCat("device: expected ", mesh_->device().name(), ", found another");
  }
  const Peer& peer = mesh_->peers()[hello.rank];
  if (roll_[static_cast<int>(hello.rank)].state == State::kEstablished && !peer.lost) {
    return StrCat(other, " is already connected");
  }
  return "";
}

void Rendezvous::Admit(const ConnectionEvent& event, const Hello& hello, FrameChannel channel,
                       TimePoint now) {
  if (Answer(event, hello, std::move(channel)).ok()) return;
  // The id belongs to the mesh by now, and the caller will try again.
  Retry(static_cast<int>(hello.rank), "could not be answered", now);
}

// Replaces what that rank had before: an attempt that it gave up, or a connection that died.
Status Rendezvous::Answer(const ConnectionEvent& event, const Hello& hello, FrameChannel channel) {
  const auto rank = static_cast<int>(hello.rank);
  mesh_->TakeId(rank, event.id);
  roll_[rank].state = State::kAnswered;
  roll_[rank].last_failure = "asked to connect and then did not confirm it";
  WEIR_RETURN_IF_ERROR(mesh_->MakePair(rank));
  Peer& peer = mesh_->peers()[rank];
  WEIR_RETURN_IF_ERROR(peer.pair->Activate(event.id));
  // Messages may arrive before the confirmation.
  mesh_->MakeStream(rank, roll_.AddressOf(rank), hello.window, std::move(channel));
  WEIR_ASSIGN_OR_RETURN(const Hello own, OwnHello(mesh::kUnknownPeer));
  const auto reply = EncodeHello(own);
  rdma_conn_param parameters = Parameters(reply, peer.pair->number());
  if (Rdma().rdma_accept(event.id, &parameters) != 0) {
    return Unavailable(StrCat("rdma_accept: ", ErrorText(errno)));
  }
  peer.connected = true;
  return OkStatus();
}

void Rendezvous::Refuse(rdma_cm_id* id, const std::string& why) {
  roll_.NoteRefusal(StrCat(PeerAddress(id), ": ", why));
  const auto text = std::as_bytes(std::span(why));
  Reject(id, text.first(std::min(text.size(), kRefusalBytesMax)));
}

// Handles an established peer that is gone while others are still missing: it has failed, or it
// will connect again.
Status Rendezvous::CheckLost(TimePoint now) {
  bool any = false, progress = false;
  for (const Peer& peer : mesh_->peers()) any |= peer.lost;
  if (!any) return OkStatus();
  WEIR_RETURN_IF_ERROR(mesh_->TakeCompletions(now, &progress));
  for (int r = 0; r < options_.world; ++r) {
    if (mesh_->peers()[r].lost) Retry(r, "connected, then closed the connection", now);
  }
  return OkStatus();
}

}  // namespace weir::verbs
