// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "datapath/base/log.h"

namespace weir::mesh {
namespace {
using std::chrono::milliseconds;
using State = RollCall::State;
constexpr Duration kDialMax = milliseconds(5000);     // for one attempt; the kernel takes minutes
constexpr Duration kPendingMax = milliseconds(5000);  // for the handshake of an accepted connection
constexpr size_t kPendingBeyondWorld = 64;
constexpr Duration kScarceMax = milliseconds(3000);
constexpr Duration kScarcePast = milliseconds(1000);  // longer than between two attempts
constexpr Duration kAcceptPause = milliseconds(50);   // while the system has no descriptor left
constexpr short kHangUp = POLLRDHUP | POLLHUP | POLLERR;
}  // namespace

struct Rendezvous::Link {
  UniqueFd fd;
  TimePoint dial_ends{};
  HandshakeReader reader;
  Hello said;            // what this rank sent, while it waits for the answer
  FrameChannel channel;  // set once the peer has proven itself, with a key
};

struct Rendezvous::PendingPeer {
  UniqueFd fd;
  std::string endpoint;
  TimePoint ends;
  HandshakeReader reader;
  bool answered = false;
  Hello hello = {};             // what it sent; not to be trusted before its proof
  ChannelSecrets secrets = {};  // set once it was answered, with a key
  FrameChannel channel = {};    // set once it has proven itself
};

Rendezvous::Rendezvous(const TransportOptions& options, int listener, int wake, Neighbourhood own)
    : options_(options), listener_(listener), wake_(wake), own_(std::move(own)), roll_(options) {}
Rendezvous::~Rendezvous() = default;

const Neighbourhood& Rendezvous::neighbour(int rank) const { return neighbours_[rank]; }

StatusOr<std::vector<Sockets>> Rendezvous::Run(const std::vector<TransportAddress>& addresses,
                                               TimePoint deadline) {
  neighbours_.assign(addresses.size(), {});
  channels_.clear();
  channels_.resize(addresses.size());
  memory_secrets_.assign(addresses.size(), {});
  std::vector<Sockets> all(addresses.size());
  for (connection_ = 0; connection_ < options_.connections; ++connection_) {
    WEIR_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, RunOne(addresses, deadline));
    for (size_t r = 0; r < sockets.size(); ++r) {
      if (sockets[r]) all[r].push_back(std::move(sockets[r]));
    }
  }
  return all;
}

StatusOr<std::vector<UniqueFd>> Rendezvous::RunOne(const std::vector<TransportAddress>& addresses,
                                                   TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(roll_.Begin(addresses));
  links_.clear();
  links_.resize(addresses.size());
  for (PendingPeer& pending : std::exchange(early_, {})) Admit(pending);
  Status status = OkStatus();
  while (status.ok() && !roll_.Complete()) {
    const TimePoint now = RealClock().Now();
    status = now >= deadline ? Missing() : Round(now, deadline);
  }
  std::vector<UniqueFd> sockets;
  for (int r = 0; r < options_.world; ++r) {
    Link& link = links_[r];
    if (!status.ok() && roll_[r].state == State::kEstablished) {
      FrameSealer* const sealer = link.channel.sealer.get();
      WriteFrame(link.fd.get(), EncodeAbort(options_.rank, Message(status), sealer));
    }
    sockets.push_back(std::move(link.fd));
    if (connection_ == 0) channels_[r] = std::move(link.channel);
  }
  if (!status.ok()) return status;
  return sockets;
}

Status Rendezvous::Missing() const {
  const Status missing = roll_.Missing();
  return scarcity_.empty() ? missing : DeadlineExceeded(StrCat(Message(missing), "; ", scarcity_));
}

// The shortage may pass, so the attempts go on. It is logged at once, because otherwise the user
// would not know what a rank is waiting for.
void Rendezvous::NoteScarcity(std::string what, TimePoint now) {
  if (scarcity_.empty()) {
    scarce_since_ = now;
    Log(LogLevel::kWarning, "transport", StrCat("rank ", options_.rank, ": ", what));
  }
  scarcity_ = std::move(what);
  scarce_seen_ = now;
}

Status Rendezvous::CheckScarcity(TimePoint now) {
  if (now - scarce_seen_ > kScarcePast) scarcity_.clear();  // no attempt met it lately
  if (scarcity_.empty() || now - scarce_since_ < kScarceMax) return OkStatus();
  return ResourceExhausted(StrCat("rank ", options_.rank, " cannot connect: ", scarcity_));
}

// Waits for the next event of any socket and handles it.
Status Rendezvous::Round(TimePoint now, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(StartDue(now));
  WEIR_RETURN_IF_ERROR(CheckScarcity(now));
  std::vector<pollfd> polled = {{wake_, POLLIN, 0},
                                {listener_, static_cast<short>(now < accept_at_ ? 0 : POLLIN), 0}};
  std::vector<int> ranks;
  for (int r = 0; r < options_.world; ++r) {
    const State state = roll_[r].state;
    if (state == State::kIdle) continue;
    short events = POLLRDHUP;
    if (state == State::kDialing) events = POLLOUT;
    if (state == State::kAwaitingAnswer) events = POLLIN;
    polled.push_back({links_[r].fd.get(), events, 0});
    ranks.push_back(r);
  }
  const size_t pending_at = polled.size();
  for (const PendingPeer& pending : pending_) polled.push_back({pending.fd.get(), POLLIN, 0});
  const int wait = PollTimeout(roll_.WakeAt(now, deadline) - now);
  if (poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR) {
    return Internal(StrCat("poll: ", ErrorText(errno)));
  }
  now = RealClock().Now();
  if (polled[0].revents != 0) return Aborted("connecting was interrupted");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (polled[2 + i].revents != 0)
      WEIR_RETURN_IF_ERROR(OnLink(ranks[i], polled[2 + i].revents, now));
  }
  for (size_t i = pending_.size(); i-- > 0;) {
    if (polled[pending_at + i].revents != 0) OnPendingPeer(pending_[i]);
    if (pending_[i].fd && now >= pending_[i].ends) {
      Refuse(pending_[i], pending_[i].answered ? "no proof within 5 s" : "no hello within 5 s");
    }
  }
  std::erase_if(pending_, [](const PendingPeer& pending) { return !pending.fd; });
  if (polled[1].revents != 0) Accept(now);
  return OkStatus();
}

// ---- dialing lower ranks

Status Rendezvous::StartDue(TimePoint now) {
  for (int r = 0; r < options_.rank; ++r) {
    Link& link = links_[r];
    if (roll_[r].state == State::kDialing && now >= link.dial_ends) {
      Retry(r, "does not answer", now);
    }
    if (!roll_.IsDue(r, now)) continue;
    bool in_progress = false;
    StatusOr<UniqueFd> fd = StartDial(roll_[r].address, options_, &in_progress);
    if (!fd.ok()) {
      if (fd.status().code() == StatusCode::kInvalidArgument) return fd.status();
      if (fd.status().code() == StatusCode::kResourceExhausted) {
        NoteScarcity(Message(fd.status()), now);
      }
      Retry(r, Message(fd.status()), now);
      continue;
    }
    scarcity_.clear();
    link.fd = std::move(*fd);
    roll_[r].state = State::kDialing;
    link.dial_ends = now + kDialMax;
    if (!in_progress) WEIR_RETURN_IF_ERROR(OnLink(r, POLLOUT, now));
  }
  return OkStatus();
}

void Rendezvous::Retry(int rank, std::string why, TimePoint now) {
  links_[rank] = Link();
  roll_.Retry(rank, std::move(why), now);
}

// The hello has a fresh nonce if there is a key.
StatusOr<Hello> Rendezvous::OwnHello(uint32_t called, int connection,
                                     const std::string& rendezvous) const {
  const Introduction own = roll_.Own(called);
  Hello hello = {own.job,
                 own.rank,
                 own.world,
                 own.expected_peer,
                 own_.node,
                 rendezvous,
                 static_cast<uint16_t>(options_.connections),
                 static_cast<uint16_t>(connection),
                 ProtectionOf(options_)};
  if (options_.job_key.has_value()) {
    WEIR_ASSIGN_OR_RETURN(hello.nonce, NewNonce());
  }
  return hello;
}

// Stores what a rank's first connection tells about it.
void Rendezvous::Keep(int rank, Neighbourhood said, const Secret& memory) {
  if (connection_ != 0) return;
  neighbours_[rank] = std::move(said);
  memory_secrets_[rank] = memory;
}

Status Rendezvous::OnLink(int rank, short events, TimePoint now) {
  Link& link = links_[rank];
  switch (roll_[rank].state) {
    case State::kIdle:
    case State::kAnswered:  // not used here, because an answer establishes the connection
      return OkStatus();
    case State::kDialing: {
      const int error = TakeSocketError(link.fd.get());
      if (error != 0 || IsSelfConnected(link.fd.get())) {
        Retry(rank, error != 0 ? ErrorText(error) : "is not listening", now);
        return OkStatus();
      }
      ConfigureConnection(link.fd.get(), options_);
      WEIR_ASSIGN_OR_RETURN(link.said, OwnHello(static_cast<uint32_t>(rank), connection_, ""));
      if (!WriteFrame(link.fd.get(), EncodeHello(link.said))) {
        Retry(rank, "closed the connection", now);
        return OkStatus();
      }
      roll_[rank].state = State::kAwaitingAnswer;
      roll_[rank].last_failure = "accepts connections but does not answer";
      return OkStatus();
    }
    case State::kAwaitingAnswer:
      return OnReply(rank, now);
    case State::kEstablished:
      return (events & kHangUp) ? CheckEstablished(rank) : OkStatus();
  }
  return OkStatus();
}

Status Rendezvous::OnReply(int rank, TimePoint now) {
  Link& link = links_[rank];
  const StatusOr<bool> complete = link.reader.Read(link.fd.get());
  if (!complete.ok()) {
    // Another program may have had this port for a moment, so only the deadline ends the attempts.
    Retry(rank,
          complete.status().code() == StatusCode::kDataLoss
              ? StrCat("does not speak Weir: ", Message(complete.status()))
              : Message(complete.status()),
          now);
    return OkStatus();
  }
  if (!*complete) return OkStatus();
  if (link.reader.header().type == FrameType::kAbort) {
    return FailedPrecondition(
        StrCat(roll_.NameOf(rank), " refused rank ", options_.rank, ": ", link.reader.text()));
  }
  if (!link.channel.sealer) return OnAnswer(rank, now);
  if (link.reader.header().type != FrameType::kProof) {
    return DataLoss(StrCat(roll_.NameOf(rank), " sent no welcome"));
  }
  roll_[rank].state = State::kEstablished;
  return OkStatus();
}

Status Rendezvous::OnAnswer(int rank, TimePoint now) {
  Link& link = links_[rank];
  const std::span<const std::byte> payload = link.reader.payload();
  const StatusOr<DecodedHello> decoded = DecodeHello(payload);
  if (!decoded.ok()) return Annotate(decoded.status(), roll_.NameOf(rank));
  const Hello& hello = decoded->hello;
  if (const std::string why = KeysDiffer(options_, hello.protection, roll_.NameOf(rank));
      !why.empty()) {
    return FailedPrecondition(why);
  }
  ChannelSecrets secrets;
  if (options_.job_key.has_value()) {
    const std::span<const std::byte> said = payload.first(payload.size() - decoded->proof.size());
    WEIR_ASSIGN_OR_RETURN(secrets, DeriveChannel(*options_.job_key, link.said.nonce, hello.nonce,
                                                 EncodeHelloPayload(link.said), said));
    if (!SameSecret(decoded->proof, secrets.acceptor_proof)) return OnStrangersAnswer(rank);
  }
  WEIR_RETURN_IF_ERROR(roll_.CheckAnswer(rank, IntroductionOf(hello)));
  if (hello.connections != options_.connections) {
    return FailedPrecondition(StrCat(roll_.NameOf(rank), " answered with ", hello.connections,
                                     " connections per pair of ranks; expected ",
                                     options_.connections));
  }
  Keep(rank, {hello.node, hello.rendezvous}, secrets.memory);
  if (!options_.job_key.has_value()) {
    roll_[rank].state = State::kEstablished;
    return OkStatus();
  }
  const auto proof = EncodeFrame(FrameType::kProof, options_.rank, secrets.dialer_proof);
  WEIR_ASSIGN_OR_RETURN(link.channel, MakeFrameChannel(secrets, true, ProtectionOf(options_)));
  link.reader = HandshakeReader(link.channel.opener.get());
  if (!WriteFrame(link.fd.get(), proof)) Retry(rank, "closed the connection", now);
  return OkStatus();
}

// The answer does not prove that its sender holds the key, so nothing in it is used. The sender is
// told why, for its log.
Status Rendezvous::OnStrangersAnswer(int rank) {
  const std::string why = "does not hold the job's key";
  WriteFrame(links_[rank].fd.get(),
             EncodeAbort(options_.rank, StrCat(roll_.NameOf(rank), " ", why)));
  return FailedPrecondition(StrCat(roll_.NameOf(rank), " ", why, " of rank ", options_.rank));
}

// ---- accepting higher ranks

void Rendezvous::Accept(TimePoint now) {
  const size_t pending_max = static_cast<size_t>(options_.world) + kPendingBeyondWorld;
  for (;;) {
    UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      // Other errors mean that no connection is waiting, or that it is gone already.
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      NoteScarcity(StrCat("accepting connections: ", ErrorText(errno)), now);
      accept_at_ = now + kAcceptPause;  // new connections wait in the backlog
      return;
    }
    scarcity_.clear();
    if (pending_.size() >= pending_max)
      pending_.erase(pending_.begin());  // the one that has waited longest
    ConfigureConnection(fd.get(), options_);
    std::string endpoint = RemoteEndpoint(fd.get());
    pending_.push_back({std::move(fd), std::move(endpoint), now + kPendingMax, HandshakeReader()});
  }
}

void Rendezvous::OnPendingPeer(PendingPeer& pending) {
  const StatusOr<bool> complete = pending.reader.Read(pending.fd.get());
  if (complete.ok() && !*complete) return;
  std::string why = Message(complete.status());
  if (complete.ok()) why = pending.answered ? OnProof(pending) : OnHello(pending);
  if (!why.empty()) return Refuse(pending, why);
  if (pending.channel.sealer || !options_.job_key.has_value()) Admit(pending);
}

// OnHello, OnProof and Answer return why a pending peer is refused; empty: it is not.
std::string Rendezvous::OnHello(PendingPeer& pending) {
  if (pending.reader.header().type != FrameType::kHello) return "expected a hello";
  const StatusOr<DecodedHello> decoded = DecodeHello(pending.reader.payload());
  if (!decoded.ok()) return Message(decoded.status());
  if (!decoded->proof.empty() || !decoded->hello.rendezvous.empty())
    return "expected a dialer's hello";
  pending.hello = decoded->hello;
  if (std::string why = Judge(pending.hello); !why.empty()) return why;
  return Answer(pending);
}

// With a key the answer proves that this rank holds it, and the pending peer has to prove the same
// before it counts as the rank that it claims to be.
std::string Rendezvous::Answer(PendingPeer& pending) {
  const bool neighbours =
      pending.hello.connection == 0 && own_.node != 0 && pending.hello.node == own_.node;
  const StatusOr<Hello> reply =
      OwnHello(kUnknownPeer, pending.hello.connection, neighbours ? own_.rendezvous : "");
  if (!reply.ok()) return Message(reply.status());
  const Secret* proof = nullptr;
  if (options_.job_key.has_value()) {
    const StatusOr<ChannelSecrets> secrets =
        DeriveChannel(*options_.job_key, pending.hello.nonce, reply->nonce,
                      pending.reader.payload(), EncodeHelloPayload(*reply));
    if (!secrets.ok()) return Message(secrets.status());
    pending.secrets = *secrets;
    proof = &pending.secrets.acceptor_proof;
  }
  pending.answered = true;
  pending.reader = HandshakeReader();
  return WriteFrame(pending.fd.get(), EncodeHello(*reply, proof)) ? "" : "closed the connection";
}

std::string Rendezvous::OnProof(PendingPeer& pending) {
  const std::string claim = StrCat(" (it claims to be rank ", pending.hello.rank, ")");
  if (pending.reader.header().type == FrameType::kAbort) {
    return StrCat("it says: ", pending.reader.text(), claim);
  }
  if (pending.reader.header().type != FrameType::kProof ||
      !SameSecret(pending.reader.payload(), pending.secrets.dialer_proof)) {
    return StrCat("does not hold the job's key", claim);
  }
  StatusOr<FrameChannel> channel = MakeFrameChannel(pending.secrets, false, ProtectionOf(options_));
  if (!channel.ok()) return Message(channel.status());
  if (std::string why = JudgePlace(pending.hello); !why.empty())
    return why;  // another peer came first
  pending.channel = std::move(*channel);
  const auto welcome =
      EncodeFrame(FrameType::kProof, options_.rank, {}, pending.channel.sealer.get());
  return WriteFrame(pending.fd.get(), welcome) ? "" : "closed the connection";
}

// Takes the socket of a pending peer that is the rank that it claims to be.
void Rendezvous::Admit(PendingPeer& pending) {
  const auto rank = static_cast<int>(pending.hello.rank);
  if (pending.hello.connection > connection_) {  // its rank is ahead of this one
    std::erase_if(early_,
                  [&](const PendingPeer& other) { return other.hello.rank == pending.hello.rank; });
    early_.push_back(std::move(pending));
    return;
  }
  Keep(rank, {pending.hello.node, ""}, pending.secrets.memory);
  links_[rank].fd = std::move(pending.fd);
  links_[rank].channel = std::move(pending.channel);
  roll_[rank].state = State::kEstablished;
  pending.fd = UniqueFd();
}

// Returns why a pending peer with this hello is refused; empty: it is not.
std::string Rendezvous::Judge(const Hello& hello) const {
  const std::string other = StrCat("rank ", hello.rank);
  if (std::string why = roll_.Judge(IntroductionOf(hello)); !why.empty()) return why;
  if (std::string why = KeysDiffer(options_, hello.protection, other); !why.empty()) return why;
  if (hello.connections != options_.connections) {
    return StrCat("connections per pair of ranks: expected ", options_.connections, ", found ",
                  hello.connections);
  }
  return JudgePlace(hello);
}

// Returns why this rank does not wait for the sender of `hello`; empty: it does.
std::string Rendezvous::JudgePlace(const Hello& hello) const {
  if (hello.connection > connection_) return "";
  const auto rank = static_cast<int>(hello.rank);
  // CheckEstablished runs earlier and has removed the dead connection of a rank that restarted.
  if (hello.connection < connection_ || roll_[rank].state == State::kEstablished) {
    return StrCat("rank ", rank, " is already connected from ",
                  RemoteEndpoint(links_[rank].fd.get()));
  }
  return "";
}

void Rendezvous::Refuse(PendingPeer& pending, const std::string& why) {
  roll_.NoteRefusal(StrCat(pending.endpoint, ": ", why));
  WriteFrame(pending.fd.get(), EncodeAbort(options_.rank, why));
  // Unread bytes would turn the close into a reset, which may overtake the reason.
  shutdown(pending.fd.get(), SHUT_WR);
  char rest[4096];
  while (recv(pending.fd.get(), rest, sizeof rest, MSG_DONTWAIT) > 0) {
  }
  pending.fd = UniqueFd();
}

// Handles an established peer that hung up while others are still missing: it failed, or it will
// connect again.
Status Rendezvous::CheckEstablished(int rank) {
  Link& link = links_[rank];
  HandshakeReader reader(link.channel.opener.get());
  const StatusOr<bool> complete = reader.Read(link.fd.get());
  if (complete.ok() && *complete && reader.header().type == FrameType::kAbort &&
      !reader.text().empty()) {
    return Unavailable(StrCat("rank ", rank, " reported: ", reader.text()));
  }
  Retry(rank, "connected, then closed the connection", RealClock().Now());
  return OkStatus();
}

}  // namespace weir::mesh
