#include "datapath/transport/builtin/udp/rendezvous.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace weir::udp {
namespace {
using std::chrono::milliseconds;
using State = mesh::RollCall::State;
constexpr Duration kHelloIntervalMin = milliseconds(100);
constexpr Duration kHelloIntervalMax = milliseconds(1000);
constexpr Duration kDialMax = milliseconds(5000);
constexpr size_t kBufferBytesMin = 128 << 10;
constexpr size_t kBufferBytesMax = 2 << 20;
constexpr size_t kBufferBytesAll = 32 << 20;  // of all links together, each way

bool IsDialing(State state) { return state == State::kDialing || state == State::kAwaitingAnswer; }
}  // namespace

LinkBuffers BuffersOf(const TransportOptions& options) {
  const auto peers = static_cast<size_t>(std::max(options.world - 1, 1));
  const size_t share = std::clamp(kBufferBytesAll / peers, kBufferBytesMin, kBufferBytesMax);
  const auto size = [share](int asked) {
    return asked > 0 ? std::max(static_cast<size_t>(asked), kBufferBytesMin) : share;
  };
  return {size(options.send_buffer_bytes), size(options.receive_buffer_bytes)};
}

Status Peers::Drive(int rank, TimePoint now, bool* progress, std::atomic<uint64_t>* sent) {
  if (streams[rank]->TakeHangUp()) connections[rank]->OnEvents(EPOLLRDHUP);
  return connections[rank]->Drive(now, progress, sent);
}

Rendezvous::Rendezvous(const TransportOptions& options, const std::array<uint64_t, 2>& secret,
                       Endpoint* endpoint, Peers* peers, int wake)
    : options_(options),
      jar_(secret),
      random_(MixSeed(secret[0], secret[1])),
      endpoint_(endpoint),
      peers_(peers),
      wake_(wake),
      roll_(options) {}

Status Rendezvous::Run(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(roll_.Begin(addresses));
  for (int r = 0; r < options_.rank; ++r) {
    if (roll_[r].address.storage.ss_family == endpoint_->family()) continue;
    return InvalidArgument(StrCat("address '", addresses[r], "' of rank ", r,
                                  ": expected one of the same IP version as '", options_.listen,
                                  "'"));
  }
  peers_->streams.resize(addresses.size());
  peers_->connections.resize(addresses.size());
  dials_.resize(addresses.size());
  own_connections_.resize(addresses.size());
  while (!roll_.Complete()) {
    const TimePoint now = RealClock().Now();
    WEIR_RETURN_IF_ERROR(now >= deadline ? roll_.Missing() : Round(now, deadline));
  }
  return OkStatus();
}

// Waits for the next datagram or time and handles it.
Status Rendezvous::Round(TimePoint now, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(StartDue(now));
  TimePoint wake_at = std::min(roll_.WakeAt(now, deadline), endpoint_->NextTimer(now));
  for (int r = 0; r < options_.rank; ++r) {
    if (IsDialing(roll_[r].state)) wake_at = std::min(wake_at, dials_[r].next_hello);
  }
  pollfd polled[] = {{wake_, POLLIN, 0}, {endpoint_->fd(), POLLIN, 0}};
  if (poll(polled, std::size(polled), mesh::PollTimeout(wake_at - now)) < 0 && errno != EINTR) {
    return Internal(StrCat("poll: ", mesh::ErrorText(errno)));
  }
  now = RealClock().Now();
  if (polled[0].revents != 0) return Aborted("connecting was interrupted");
  endpoint_->Drive(now);
  for (const Unreachable& report : endpoint_->TakeUnreachable()) OnUnreachable(report, now);
  for (const Caller& caller : endpoint_->TakeCallers()) {
    WEIR_RETURN_IF_ERROR(OnCaller(caller, now));
  }
  WEIR_RETURN_IF_ERROR(CheckPeers(now));
  endpoint_->Flush(now);
  return OkStatus();
}

Handshake Rendezvous::Own(DatagramType type, uint64_t connection, uint32_t called) const {
  const mesh::Introduction own = roll_.Own(called);
  Handshake handshake;
  handshake.type = type;
  handshake.connection = connection;
  handshake.job = own.job;
  handshake.rank = own.rank;
  handshake.world = own.world;
  handshake.expected_peer = own.expected_peer;
  handshake.datagram_bytes = kDatagramBytesMax;
  handshake.window = BuffersOf(options_).receive;
  return handshake;
}

void Rendezvous::AddPeer(int rank, const Caller& caller, uint64_t own_connection) {
  const LinkBuffers buffers = BuffersOf(options_);
  Link::Options options;
  options.own_connection = own_connection;
  options.peer_connection = caller.handshake.own_connection;
  options.send_bytes = buffers.send;
  options.receive_bytes = buffers.receive;
  options.peer_window = caller.handshake.window;
  options.datagram_bytes =
      std::min<size_t>(endpoint_->PathBytes(caller.from), caller.handshake.datagram_bytes);
  own_connections_[rank] = own_connection;
  peers_->connections[rank].reset();
  endpoint_->AddLink(rank, caller.from, options);
  peers_->streams[rank] = std::make_unique<LinkStream>(*endpoint_, rank);
  peers_->connections[rank] = std::make_unique<mesh::Connection>(
      options_.rank, rank, roll_.AddressOf(rank), *peers_->streams[rank]);
}

void Rendezvous::Retry(int rank, std::string why, TimePoint now) {
  peers_->connections[rank].reset();
  peers_->streams[rank].reset();
  endpoint_->DropLink(rank);
  dials_[rank] = {};
  roll_.Retry(rank, std::move(why), now);
}

// ---- asking lower ranks

Status Rendezvous::StartDue(TimePoint now) {
  for (int r = 0; r < options_.rank; ++r) {
    Dial& dial = dials_[r];
    if (roll_.IsDue(r, now)) {
      dial = {};
      dial.connection = MakeConnection(r, random_.Next());
      dial.ends = now + kDialMax;
      dial.interval = kHelloIntervalMin;
      roll_[r].state = State::kDialing;
      SayHello(r, now);
    } else if (IsDialing(roll_[r].state) && now >= dial.ends) {
      Retry(r, dial.cookie == 0 ? "does not answer" : "was asked and does not answer", now);
    } else if (IsDialing(roll_[r].state) && now >= dial.next_hello) {
      dial.interval = std::min(2 * dial.interval, kHelloIntervalMax);
      SayHello(r, now);
    }
  }
  return OkStatus();
}

void Rendezvous::SayHello(int rank, TimePoint now) {
  Dial& dial = dials_[rank];
  dial.next_hello = now + dial.interval;
  Handshake hello = Own(DatagramType::kHello, 0, static_cast<uint32_t>(rank));
  hello.own_connection = dial.connection;
  hello.cookie = dial.cookie;
  endpoint_->Send(roll_[rank].address, EncodeHandshake(hello));
}

Status Rendezvous::OnCaller(const Caller& caller, TimePoint now) {
  if (caller.handshake.type != DatagramType::kHello) return OnReply(caller, now);
  OnHello(caller, now);
  return OkStatus();
}

// Whoever knows the connection's id has read the hello, wherever the reply comes from: a rank that
// listens at all addresses of its host answers from any.
Status Rendezvous::OnReply(const Caller& caller, TimePoint now) {
  const Handshake& reply = caller.handshake;
  const int rank = RankOf(reply.connection);
  if (rank >= options_.rank || !IsDialing(roll_[rank].state) ||
      dials_[rank].connection != reply.connection) {
    return OkStatus();
  }
  Dial& dial = dials_[rank];
  if (reply.type == DatagramType::kRetry) {
    if (reply.cookie == dial.cookie || reply.cookie == 0) return OkStatus();
    dial.cookie = reply.cookie;
    roll_[rank].state = State::kAwaitingAnswer;
    roll_[rank].last_failure = "was asked and does not answer";
    SayHello(rank, now);
    return OkStatus();
  }
  if (reply.type == DatagramType::kRefusal) {
    return FailedPrecondition(
        StrCat(roll_.NameOf(rank), " refused rank ", options_.rank, ": ", reply.text));
  }
  WEIR_RETURN_IF_ERROR(roll_.CheckAnswer(rank, mesh::IntroductionOf(reply)));
  AddPeer(rank, caller, dial.connection);
  roll_[rank].state = State::kEstablished;
  return OkStatus();
}

void Rendezvous::OnUnreachable(const Unreachable& report, TimePoint now) {
  for (int r = 0; r < options_.rank; ++r) {
    if (IsDialing(roll_[r].state) && SameAddress(report.to, roll_[r].address)) {
      Retry(r, mesh::ErrorText(report.error), now);
    }
  }
}

// ---- answering higher ranks

void Rendezvous::OnHello(const Caller& caller, TimePoint now) {
  const Handshake& hello = caller.handshake;
  if (!jar_.Recognise(caller.from, hello, now)) {
    Handshake retry = Own(DatagramType::kRetry, hello.own_connection, mesh::kUnknownPeer);
    retry.cookie = jar_.Bake(caller.from, hello, now);
    endpoint_->Send(caller.from, EncodeHandshake(retry));
    return;
  }
  if (std::string why = roll_.Judge(mesh::IntroductionOf(hello)); !why.empty()) {
    return Refuse(caller, std::move(why));
  }
  const auto rank = static_cast<int>(hello.rank);
  const bool again = endpoint_->PeerConnection(rank) == hello.own_connection;
  if (!again && roll_[rank].state == State::kEstablished && !endpoint_->Cut(rank)) {
    return Refuse(caller,
                  StrCat("rank ", rank, " is already connected from ", endpoint_->AddressOf(rank)));
  }
  if (!again) {  // or a new attempt takes the place of one that was given up
    AddPeer(rank, caller, MakeConnection(rank, random_.Next()));
    roll_[rank].state = State::kAnswered;
    roll_[rank].last_failure = "asked to connect and then did not confirm it";
  }
  Answer(rank, caller);
}

void Rendezvous::Answer(int rank, const Caller& caller) {
  Handshake answer =
      Own(DatagramType::kAnswer, caller.handshake.own_connection, mesh::kUnknownPeer);
  answer.own_connection = own_connections_[rank];
  endpoint_->Send(caller.from, EncodeHandshake(answer));
}

void Rendezvous::Refuse(const Caller& caller, std::string why) {
  roll_.NoteRefusal(StrCat(mesh::Endpoint(caller.from.get(), caller.from.size), ": ", why));
  Handshake refusal =
      Own(DatagramType::kRefusal, caller.handshake.own_connection, mesh::kUnknownPeer);
  refusal.text = std::move(why);
  endpoint_->Send(caller.from, EncodeHandshake(refusal));
}

// A peer that is there may fail, or go and come again, while others are still missing.
Status Rendezvous::CheckPeers(TimePoint now) {
  for (int r = 0; r < options_.world; ++r) {
    if (!peers_->connections[r]) continue;
    if (roll_[r].state == State::kAnswered && endpoint_->Confirmed(r)) {
      roll_[r].state = State::kEstablished;
    }
    bool progress = false;
    std::atomic<uint64_t> sent = 0;
    const bool cut = endpoint_->Cut(r);
    const Status status = peers_->Drive(r, now, &progress, &sent);
    if (!status.ok() && !cut) return status;
    if (cut || peers_->connections[r]->departed()) {
      Retry(r, "connected, then closed the connection", now);
    }
  }
  return OkStatus();
}

}  // namespace weir::udp
