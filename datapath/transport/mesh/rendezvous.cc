#include "datapath/transport/mesh/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace weir::mesh {
namespace {
using std::chrono::milliseconds;
using State = RollCall::State;
constexpr Duration kDialMax = milliseconds(5000);     // one attempt; lost SYNs back off for minutes
constexpr Duration kPendingMax = milliseconds(5000);  // an accepted connection that says nothing
constexpr size_t kPendingBeyondWorld = 64;
constexpr Duration kAcceptPause = milliseconds(50);  // while the system has no descriptor to give
constexpr short kHangUp = POLLRDHUP | POLLHUP | POLLERR;
}  // namespace

struct Rendezvous::Link {
  UniqueFd fd;
  TimePoint dial_ends{};
  HandshakeReader reader;
};

struct Rendezvous::PendingPeer {
  UniqueFd fd;
  std::string endpoint;
  TimePoint ends;
  HandshakeReader reader;
  uint32_t rank = 0;  // once it said so
};

Rendezvous::Rendezvous(const TransportOptions& options, int listener, int wake, Neighbourhood own)
    : options_(options), listener_(listener), wake_(wake), own_(std::move(own)), roll_(options) {}
Rendezvous::~Rendezvous() = default;

const Neighbourhood& Rendezvous::neighbour(int rank) const { return neighbours_[rank]; }

StatusOr<std::vector<Sockets>> Rendezvous::Run(const std::vector<TransportAddress>& addresses,
                                               TimePoint deadline) {
  neighbours_.assign(addresses.size(), {});
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
  for (Link& link : links_) sockets.push_back(std::move(link.fd));
  if (status.ok()) return sockets;
  const std::vector<std::byte> frame = EncodeAbort(options_.rank, Message(status));
  for (int r = 0; r < options_.world; ++r) {
    if (roll_[r].state == State::kEstablished) WriteFrame(sockets[r].get(), frame);
  }
  return status;
}

Status Rendezvous::Missing() const {
  const Status missing = roll_.Missing();
  if (accept_failure_ == 0) return missing;
  return DeadlineExceeded(
      StrCat(Message(missing), "; accepting connections: ", ErrorText(accept_failure_)));
}

// Waits for the next event of any socket and handles it.
Status Rendezvous::Round(TimePoint now, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(StartDue(now));
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
    if (polled[pending_at + i].revents != 0) OnPendingPeer(i);
    if (pending_[i].fd && now >= pending_[i].ends) Refuse(pending_[i], "no hello within 5 s");
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
      Retry(r, Message(fd.status()), now);
      continue;
    }
    link.fd = std::move(*fd);
    roll_[r].state = State::kDialing;
    link.dial_ends = now + kDialMax;
    if (!in_progress) WEIR_RETURN_IF_ERROR(OnLink(r, POLLOUT, now));
  }
  return OkStatus();
}

void Rendezvous::Retry(int rank, std::string why, TimePoint now) {
  links_[rank].fd = UniqueFd();
  links_[rank].reader = HandshakeReader();
  roll_.Retry(rank, std::move(why), now);
}

Hello Rendezvous::OwnHello(uint32_t called, const std::string& rendezvous) const {
  const Introduction own = roll_.Own(called);
  return {own.job,
          own.rank,
          own.world,
          own.expected_peer,
          own_.node,
          rendezvous,
          static_cast<uint16_t>(options_.connections),
          static_cast<uint16_t>(connection_)};
}

Status Rendezvous::OnLink(int rank, short events, TimePoint now) {
  Link& link = links_[rank];
  switch (roll_[rank].state) {
    case State::kIdle:
    case State::kAnswered:  // an answer establishes at once
      return OkStatus();
    case State::kDialing: {
      const int error = TakeSocketError(link.fd.get());
      if (error != 0 || IsSelfConnected(link.fd.get())) {
        Retry(rank, error != 0 ? ErrorText(error) : "is not listening", now);
        return OkStatus();
      }
      ConfigureConnection(link.fd.get(), options_);
      const Hello hello = OwnHello(static_cast<uint32_t>(rank), "");
      if (!WriteFrame(link.fd.get(), EncodeHello(hello))) {
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
    // Something else may have had this port for a moment: only the deadline ends the attempts.
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
  const StatusOr<Hello> hello = DecodeHello(link.reader.payload());
  if (!hello.ok()) return Annotate(hello.status(), roll_.NameOf(rank));
  WEIR_RETURN_IF_ERROR(roll_.CheckAnswer(rank, IntroductionOf(*hello)));
  if (hello->connections != options_.connections) {
    return FailedPrecondition(StrCat(roll_.NameOf(rank), " answered with ", hello->connections,
                                     " connections per pair of ranks; expected ",
                                     options_.connections));
  }
  if (connection_ == 0) neighbours_[rank] = {hello->node, hello->rendezvous};
  roll_[rank].state = State::kEstablished;
  return OkStatus();
}

// ---- accepting higher ranks

void Rendezvous::Accept(TimePoint now) {
  const size_t pending_max = static_cast<size_t>(options_.world) + kPendingBeyondWorld;
  for (;;) {
    UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      // Otherwise none is left, or it is gone already.
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      accept_failure_ = errno;
      accept_at_ = now + kAcceptPause;  // new connections stay in the backlog, and readable
      return;
    }
    if (pending_.size() >= pending_max)
      pending_.erase(pending_.begin());  // the one that waits longest
    ConfigureConnection(fd.get(), options_);
    std::string endpoint = RemoteEndpoint(fd.get());
    pending_.push_back({std::move(fd), std::move(endpoint), now + kPendingMax, HandshakeReader()});
  }
}

void Rendezvous::OnPendingPeer(size_t index) {
  PendingPeer& pending = pending_[index];
  const StatusOr<bool> complete = pending.reader.Read(pending.fd.get());
  if (complete.ok() && !*complete) return;
  if (!complete.ok()) return Refuse(pending, Message(complete.status()));
  Admit(pending);
}

// Takes the socket of a pending peer that said hello, or refuses it.
void Rendezvous::Admit(PendingPeer& pending) {
  Hello hello;
  const std::string why = Judge(pending, &hello);
  if (!why.empty()) return Refuse(pending, why);
  const auto rank = static_cast<int>(hello.rank);
  if (hello.connection > connection_) {  // its pairs are complete, this rank's are not yet
    pending.rank = hello.rank;
    std::erase_if(early_, [&](const PendingPeer& other) { return other.rank == hello.rank; });
    early_.push_back(std::move(pending));
    return;
  }
  if (connection_ == 0) neighbours_[rank] = {hello.node, ""};
  const bool neighbours = own_.node != 0 && neighbours_[rank].node == own_.node;
  const Hello reply = OwnHello(kUnknownPeer, neighbours ? own_.rendezvous : "");
  if (!WriteFrame(pending.fd.get(), EncodeHello(reply))) {
    return Refuse(pending, "closed the connection");
  }
  links_[rank].fd = std::move(pending.fd);
  roll_[rank].state = State::kEstablished;
  pending.fd = UniqueFd();
}

// Returns why a pending peer is refused; empty when it is the rank that it claims to be and that
// rank is awaited.
std::string Rendezvous::Judge(const PendingPeer& pending, Hello* said) {
  if (pending.reader.header().type != FrameType::kHello) return "expected a hello";
  const StatusOr<Hello> hello = DecodeHello(pending.reader.payload());
  if (!hello.ok()) return Message(hello.status());
  if (std::string why = roll_.Judge(IntroductionOf(*hello)); !why.empty()) return why;
  if (hello->connections != options_.connections) {
    return StrCat("connections per pair of ranks: expected ", options_.connections, ", found ",
                  hello->connections);
  }
  *said = *hello;
  if (hello->connection > connection_) return "";
  const auto rank = static_cast<int>(hello->rank);
  // The dead connection of a rank that restarted is gone by now: CheckEstablished comes first.
  if (hello->connection < connection_ || roll_[rank].state == State::kEstablished) {
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

// An established peer hung up while others are still missing: it failed, or it will come again.
Status Rendezvous::CheckEstablished(int rank) {
  Link& link = links_[rank];
  HandshakeReader reader;
  const StatusOr<bool> complete = reader.Read(link.fd.get());
  if (complete.ok() && *complete && reader.header().type == FrameType::kAbort &&
      !reader.text().empty()) {
    return Unavailable(StrCat("rank ", rank, " reported: ", reader.text()));
  }
  Retry(rank, "connected, then closed the connection", RealClock().Now());
  return OkStatus();
}

}  // namespace weir::mesh
