#include "datapath/transport/builtin/tcp/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "datapath/base/log.h"
#include "datapath/transport/builtin/tcp/hello.h"

namespace weir::tcp {
namespace {
using std::chrono::milliseconds;
constexpr Duration kBackOffMin = milliseconds(10);
constexpr Duration kBackOffMax = milliseconds(500);
constexpr Duration kDialMax = milliseconds(5000);   // one attempt; lost SYNs back off for minutes
constexpr Duration kGuestMax = milliseconds(5000);  // an accepted connection that says nothing
constexpr Duration kPollMax = milliseconds(100);
constexpr size_t kGuestsBeyondWorld = 64;
constexpr uint32_t kUnknownPeer = UINT32_MAX;
constexpr short kHangUp = POLLRDHUP | POLLHUP | POLLERR;
}  // namespace

struct Rendezvous::Link {
  enum class State { kIdle, kDialing, kAwaitingReply, kEstablished };
  State state = State::kIdle;
  UniqueFd fd;
  SocketAddress address;
  TimePoint next_dial{}, dial_ends{};
  Duration back_off = kBackOffMin;
  HandshakeReader reader;
  std::string last_failure = "has not connected";
};

struct Rendezvous::Guest {
  UniqueFd fd;
  std::string endpoint;
  TimePoint ends;
  HandshakeReader reader;
};

Rendezvous::Rendezvous(const TransportOptions& options, int listener, int wake)
    : options_(options),
      listener_(listener),
      wake_(wake),
      random_(MixSeed(options.job, static_cast<uint64_t>(options.rank))) {}
Rendezvous::~Rendezvous() = default;

StatusOr<std::vector<UniqueFd>> Rendezvous::Run(const std::vector<TransportAddress>& addresses,
                                                TimePoint deadline) {
  addresses_ = addresses;
  links_.clear();
  links_.resize(addresses.size());
  for (int r = 0; r < options_.rank; ++r) {
    StatusOr<SocketAddress> address = ResolveAddress(addresses[r]);
    if (!address.ok()) return Annotate(address.status(), StrCat("rank ", r));
    links_[r].address = *address;
  }
  Status status = OkStatus();
  while (status.ok() && !Complete()) {
    const TimePoint now = RealClock().Now();
    status = now >= deadline ? Missing() : Round(now, deadline);
  }
  std::vector<UniqueFd> sockets;
  for (Link& link : links_) sockets.push_back(std::move(link.fd));
  if (status.ok()) return sockets;
  const std::string text = Message(status);
  const auto frame =
      EncodeFrame(FrameType::kAbort, options_.rank,
                  std::as_bytes(std::span(text)).first(std::min<size_t>(text.size(), 1024)));
  for (size_t r = 0; r < sockets.size(); ++r) {
    if (links_[r].state == Link::State::kEstablished) WriteFrame(sockets[r].get(), frame);
  }
  return status;
}

bool Rendezvous::Complete() const {
  for (int r = 0; r < options_.world; ++r) {
    if (r != options_.rank && links_[r].state != Link::State::kEstablished) return false;
  }
  return true;
}

Status Rendezvous::Missing() const {
  std::string missing;
  for (int r = 0; r < options_.world; ++r) {
    if (r == options_.rank || links_[r].state == Link::State::kEstablished) continue;
    missing += StrCat(missing.empty() ? "" : "; ", "rank ", r, " (", addresses_[r], ") ",
                      links_[r].last_failure);
  }
  if (refused_ > 0)
    missing += StrCat("; refused ", refused_, " connections, the last one: ", last_refusal_);
  return DeadlineExceeded(StrCat("rank ", options_.rank, " is missing ", missing));
}

// Waits for the next event of any socket and handles it.
Status Rendezvous::Round(TimePoint now, TimePoint deadline) {
  WEIR_RETURN_IF_ERROR(StartDue(now));
  std::vector<pollfd> polled = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
  std::vector<int> ranks;
  TimePoint wake_at = std::min(deadline, now + kPollMax);
  for (int r = 0; r < options_.world; ++r) {
    Link& link = links_[r];
    if (link.state == Link::State::kIdle) {
      if (r < options_.rank) wake_at = std::min(wake_at, link.next_dial);
      continue;
    }
    short events = POLLRDHUP;
    if (link.state == Link::State::kDialing) events = POLLOUT;
    if (link.state == Link::State::kAwaitingReply) events = POLLIN;
    polled.push_back({link.fd.get(), events, 0});
    ranks.push_back(r);
  }
  const size_t guests_at = polled.size();
  for (const Guest& guest : guests_) polled.push_back({guest.fd.get(), POLLIN, 0});
  const auto wait = std::max<int64_t>(0, (wake_at - now + milliseconds(1)) / milliseconds(1));
  if (poll(polled.data(), polled.size(), static_cast<int>(wait)) < 0 && errno != EINTR) {
    return Internal(StrCat("poll: ", ErrorText(errno)));
  }
  now = RealClock().Now();
  if (polled[0].revents != 0) return Aborted("connecting was interrupted");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (polled[2 + i].revents != 0)
      WEIR_RETURN_IF_ERROR(OnLink(ranks[i], polled[2 + i].revents, now));
  }
  for (size_t i = guests_.size(); i-- > 0;) {
    if (polled[guests_at + i].revents != 0) OnGuest(i);
    if (guests_[i].fd && now >= guests_[i].ends) Refuse(guests_[i], "no hello within 5 s");
  }
  std::erase_if(guests_, [](const Guest& guest) { return !guest.fd; });
  if (polled[1].revents != 0) Accept(now);
  return OkStatus();
}

// ---- dialing lower ranks

Status Rendezvous::StartDue(TimePoint now) {
  for (int r = 0; r < options_.rank; ++r) {
    Link& link = links_[r];
    if (link.state == Link::State::kDialing && now >= link.dial_ends)
      Retry(link, "does not answer", now);
    if (link.state != Link::State::kIdle || now < link.next_dial) continue;
    bool in_progress = false;
    StatusOr<UniqueFd> fd = StartDial(link.address, options_, &in_progress);
    if (!fd.ok()) {
      if (fd.status().code() == StatusCode::kInvalidArgument) return fd.status();
      Retry(link, Message(fd.status()), now);
      continue;
    }
    link.fd = std::move(*fd);
    link.state = Link::State::kDialing;
    link.dial_ends = now + kDialMax;
    if (!in_progress) WEIR_RETURN_IF_ERROR(OnLink(r, POLLOUT, now));
  }
  return OkStatus();
}

void Rendezvous::Retry(Link& link, std::string why, TimePoint now) {
  link.fd = UniqueFd();
  link.state = Link::State::kIdle;
  link.reader = HandshakeReader();
  link.last_failure = std::move(why);
  // Spread, so that a whole job does not knock in step.
  link.next_dial = now + FromSeconds(ToSeconds(link.back_off) * (0.5 + 0.5 * random_.Uniform()));
  link.back_off = std::min(link.back_off * 2, kBackOffMax);
}

Status Rendezvous::OnLink(int rank, short events, TimePoint now) {
  Link& link = links_[rank];
  switch (link.state) {
    case Link::State::kIdle:
      return OkStatus();
    case Link::State::kDialing: {
      const int error = TakeSocketError(link.fd.get());
      if (error != 0 || IsSelfConnected(link.fd.get())) {
        Retry(link, error != 0 ? ErrorText(error) : "is not listening", now);
        return OkStatus();
      }
      ConfigureConnection(link.fd.get());
      const Hello hello = {options_.job, static_cast<uint32_t>(options_.rank),
                           static_cast<uint32_t>(options_.world), static_cast<uint32_t>(rank)};
      if (!WriteFrame(link.fd.get(), EncodeHello(hello))) {
        Retry(link, "closed the connection", now);
        return OkStatus();
      }
      link.state = Link::State::kAwaitingReply;
      link.last_failure = "accepts connections but does not answer";
      return OkStatus();
    }
    case Link::State::kAwaitingReply:
      return OnReply(rank, now);
    case Link::State::kEstablished:
      return (events & kHangUp) ? CheckEstablished(rank) : OkStatus();
  }
  return OkStatus();
}

Status Rendezvous::OnReply(int rank, TimePoint now) {
  Link& link = links_[rank];
  const std::string name = StrCat("rank ", rank, " (", addresses_[rank], ")");
  const StatusOr<bool> complete = link.reader.Read(link.fd.get());
  if (!complete.ok()) {
    // Something else may have had this port for a moment: only the deadline ends the attempts.
    Retry(link,
          complete.status().code() == StatusCode::kDataLoss
              ? StrCat("does not speak Weir: ", Message(complete.status()))
              : Message(complete.status()),
          now);
    return OkStatus();
  }
  if (!*complete) return OkStatus();
  if (link.reader.header().type == FrameType::kAbort) {
    return FailedPrecondition(
        StrCat(name, " refused rank ", options_.rank, ": ", link.reader.text()));
  }
  const StatusOr<Hello> hello = DecodeHello(link.reader.payload());
  if (!hello.ok()) return Annotate(hello.status(), name);
  if (hello->job != options_.job || hello->rank != static_cast<uint32_t>(rank) ||
      hello->world != static_cast<uint32_t>(options_.world)) {
    return FailedPrecondition(StrCat(name, " answered as rank ", hello->rank, " of ", hello->world,
                                     "; expected rank ", rank, " of ", options_.world));
  }
  link.state = Link::State::kEstablished;
  return OkStatus();
}

// ---- accepting higher ranks

void Rendezvous::Accept(TimePoint now) {
  const size_t guests_max = static_cast<size_t>(options_.world) + kGuestsBeyondWorld;
  for (;;) {
    UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;  // none left, or it is gone already; other failures show as missing ranks
    if (guests_.size() >= guests_max) guests_.erase(guests_.begin());  // the one that waits longest
    ConfigureConnection(fd.get());
    std::string endpoint = RemoteEndpoint(fd.get());
    guests_.push_back({std::move(fd), std::move(endpoint), now + kGuestMax, HandshakeReader()});
  }
}

void Rendezvous::OnGuest(size_t index) {
  Guest& guest = guests_[index];
  const StatusOr<bool> complete = guest.reader.Read(guest.fd.get());
  if (complete.ok() && !*complete) return;
  if (!complete.ok()) return Refuse(guest, Message(complete.status()));
  int rank = -1;
  const std::string why = Judge(guest, &rank);
  if (!why.empty()) return Refuse(guest, why);
  const Hello reply = {options_.job, static_cast<uint32_t>(options_.rank),
                       static_cast<uint32_t>(options_.world), kUnknownPeer};
  if (!WriteFrame(guest.fd.get(), EncodeHello(reply)))
    return Refuse(guest, "closed the connection");
  links_[rank].fd = std::move(guest.fd);
  links_[rank].state = Link::State::kEstablished;
  guest.fd = UniqueFd();
}

// Empty when the guest is the rank that it says and that rank is awaited.
std::string Rendezvous::Judge(const Guest& guest, int* rank) {
  if (guest.reader.header().type != FrameType::kHello) return "expected a hello";
  const StatusOr<Hello> hello = DecodeHello(guest.reader.payload());
  if (!hello.ok()) return Message(hello.status());
  const auto differs = [](std::string_view what, auto expected, auto found) {
    return StrCat(what, ": expected ", expected, ", found ", found);
  };
  if (hello->job != options_.job) return differs("job", options_.job, hello->job);
  if (hello->world != static_cast<uint32_t>(options_.world)) {
    return differs("world", options_.world, hello->world);
  }
  if (hello->expected_peer != static_cast<uint32_t>(options_.rank)) {
    return differs("called rank", options_.rank, hello->expected_peer);
  }
  if (hello->rank >= hello->world || hello->rank <= static_cast<uint32_t>(options_.rank)) {
    return StrCat("rank: expected ", options_.rank + 1, "..", options_.world - 1, " to dial rank ",
                  options_.rank, ", found ", hello->rank);
  }
  *rank = static_cast<int>(hello->rank);
  // The dead connection of a rank that restarted is gone by now: CheckEstablished comes first.
  if (links_[*rank].state == Link::State::kEstablished) {
    return StrCat("rank ", *rank, " is already connected from ",
                  RemoteEndpoint(links_[*rank].fd.get()));
  }
  return "";
}

void Rendezvous::Refuse(Guest& guest, const std::string& why) {
  ++refused_;
  last_refusal_ = StrCat(guest.endpoint, ": ", why);
  Log(LogLevel::kWarning, "transport", StrCat("rank ", options_.rank, " refused ", last_refusal_));
  WriteFrame(guest.fd.get(),
             EncodeFrame(FrameType::kAbort, options_.rank, std::as_bytes(std::span(why))));
  // Unread bytes would turn the close into a reset, which may overtake the reason.
  shutdown(guest.fd.get(), SHUT_WR);
  char rest[4096];
  while (recv(guest.fd.get(), rest, sizeof rest, MSG_DONTWAIT) > 0) {
  }
  guest.fd = UniqueFd();
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
  Retry(link, "connected, then closed the connection", RealClock().Now());
  return OkStatus();
}

}  // namespace weir::tcp
