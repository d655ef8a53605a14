// The tcp transport: one connection per pair of ranks, no thread of its own. Wait drives every
// connection of the rank at once, so sends and receives in all directions progress together and a
// dead peer is noticed whoever is being waited for.

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "datapath/transport/builtin/tcp/connection.h"
#include "datapath/transport/builtin/tcp/operation.h"
#include "datapath/transport/builtin/tcp/rendezvous.h"
#include "datapath/transport/builtin/tcp/socket.h"

namespace weir {
namespace {
using std::chrono::milliseconds;
using tcp::Connection;
using tcp::Operation;
using tcp::UniqueFd;

constexpr Duration kFarewellMax = milliseconds(200);
constexpr Duration kLingerMax = milliseconds(1000);
constexpr int kWorldMax = 65535;  // FrameHeader::source_rank
constexpr uint32_t kWakeIndex = UINT32_MAX;

class TcpTransport : public Transport {
 public:
  TcpTransport(TransportOptions options, TransportAddress address, UniqueFd listener,
               UniqueFd poller, UniqueFd wake)
      : options_(std::move(options)),
        address_(std::move(address)),
        listener_(std::move(listener)),
        poller_(std::move(poller)),
        wake_(std::move(wake)) {}
  ~TcpTransport() override;

  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  const TransportAddress& address() const override { return address_; }
  uint64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }

  Status Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) override;
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override;
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override;
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override;
  void Abort(std::string_view reason) override;
  void Interrupt() override;
  std::vector<PathSample> Samples() const override;

 private:
  StatusOr<Operation*> NewOperation(int peer);
  Status Fail(Status status);
  Status DriveAll(TimePoint now, bool* progress);
  Status Poll(Duration timeout);
  void SendFarewell(std::string_view text);
  void Linger(Duration bound);
  void Disconnect();

  const TransportOptions options_;
  const TransportAddress address_;
  UniqueFd listener_;
  const UniqueFd poller_;
  const UniqueFd wake_;
  std::atomic<bool> interrupted_ = false;
  std::atomic<uint64_t> bytes_sent_ = 0;

  bool connected_ = false;
  bool said_farewell_ = false;
  Status failure_;
  tcp::OperationPool operations_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by rank; none for the own one

  mutable Mutex sockets_mutex_;  // guards the sockets' lifetime against Samples, nothing else
  std::vector<UniqueFd> sockets_ WEIR_GUARDED_BY(sockets_mutex_);
};

TcpTransport::~TcpTransport() {
  if (connected_) {
    const bool orderly = failure_.ok();
    if (!said_farewell_) SendFarewell(orderly ? "" : Message(failure_));
    Linger(orderly ? kLingerMax : kFarewellMax);
  }
  Disconnect();
}

// ---- connecting

Status TcpTransport::Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  if (connected_) return FailedPrecondition("the transport is already connected");
  if (addresses.size() != static_cast<size_t>(options_.world)) {
    return InvalidArgument(
        StrCat("addresses: expected ", options_.world, " (the world), found ", addresses.size()));
  }
  tcp::Rendezvous rendezvous(options_, listener_.get(), wake_.get());
  StatusOr<std::vector<UniqueFd>> sockets = rendezvous.Run(addresses, deadline);
  if (!sockets.ok()) return Fail(sockets.status());
  listener_ = UniqueFd();  // the mesh is complete: strangers find nobody
  for (int r = 0; r < options_.world; ++r) {
    const int fd = (*sockets)[r].get();
    connections_.push_back(r == rank() ? nullptr
                                       : std::make_unique<Connection>(rank(), r, addresses[r], fd));
    if (r == rank()) continue;
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u32 = static_cast<uint32_t>(r);
    if (epoll_ctl(poller_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return Fail(Internal(StrCat("epoll: ", tcp::ErrorText(errno))));
    }
  }
  connected_ = true;
  MutexLock lock(sockets_mutex_);
  sockets_ = std::move(*sockets);
  return OkStatus();
}

// ---- posting

Status TcpTransport::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

StatusOr<Operation*> TcpTransport::NewOperation(int peer) {
  if (!failure_.ok()) return failure_;
  if (!connected_) return FailedPrecondition("the transport is not connected");
  if (peer < 0 || peer >= world() || peer == rank()) {
    return InvalidArgument(
        StrCat("peer: expected another rank of 0..", world() - 1, ", found ", peer));
  }
  Operation* op = operations_.Take();
  if (op == nullptr)
    return ResourceExhausted(StrCat("more than ", kPostedMax, " posted operations"));
  op->peer = peer;
  return op;
}

StatusOr<Ticket> TcpTransport::PostSend(int peer, FrameHeader header,
                                        std::span<const std::byte> payload) {
  if (payload.size() > kFramePayloadBytesMax) {
    return InvalidArgument(StrCat("payload: expected at most ", kFramePayloadBytesMax,
                                  " bytes, found ", payload.size()));
  }
  WEIR_ASSIGN_OR_RETURN(Operation* const op, NewOperation(peer));
  Connection& connection = *connections_[peer];
  if (connection.departed()) {
    operations_.Return(op);
    return Unavailable(StrCat(connection.name(), " closed the connection"));
  }
  op->send = true;
  op->header = header;
  op->header.type = FrameType::kData;
  op->payload = payload;
  if (options_.frame_fault) {
    const FrameFault fault = options_.frame_fault(peer);
    op->corrupt = fault == FrameFault::kCorrupt;
    if (fault == FrameFault::kDisconnect) {
      Disconnect();
      return Fail(Unavailable(StrCat("rank ", rank(), " was cut off by fault injection")));
    }
  }
  const Ticket ticket = op->ticket;
  connection.PostSend(op);
  bool progress = false;
  if (connection.can_write()) {
    const Status status = connection.DriveSend(RealClock().Now(), &progress, &bytes_sent_);
    if (!status.ok()) return Fail(status);
  }
  return ticket;
}

StatusOr<Ticket> TcpTransport::PostReceive(int peer, std::span<std::byte> buffer) {
  WEIR_ASSIGN_OR_RETURN(Operation* const op, NewOperation(peer));
  op->buffer = buffer;
  connections_[peer]->PostReceive(op);
  return op->ticket;
}

// ---- waiting

StatusOr<FrameHeader> TcpTransport::Wait(Ticket ticket, TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  Operation* const op = operations_.Find(ticket);
  if (op == nullptr) return InvalidArgument(StrCat("ticket ", ticket, " is not posted"));
  Connection& connection = *connections_[op->peer];
  while (!op->done) {
    if (interrupted_.load(std::memory_order_relaxed))
      return Fail(Aborted("waiting was interrupted"));
    bool progress = false;
    const TimePoint now = RealClock().Now();
    if (const Status status = DriveAll(now, &progress); !status.ok()) return Fail(status);
    if (op->done) break;
    if (connection.CannotFinish(*op)) {
      return Fail(Unavailable(StrCat(connection.name(), " closed the connection")));
    }
    if (now >= deadline) return Fail(DeadlineExceeded(connection.DescribeWait(*op, now)));
    if (progress) continue;
    if (const Status status = Poll(deadline - now); !status.ok()) return Fail(status);
  }
  const FrameHeader header = op->header;
  operations_.Return(op);
  return header;
}

Status TcpTransport::DriveAll(TimePoint now, bool* progress) {
  for (const auto& connection : connections_) {
    if (connection) WEIR_RETURN_IF_ERROR(connection->Drive(now, progress, &bytes_sent_));
  }
  return OkStatus();
}

Status TcpTransport::Poll(Duration timeout) {
  epoll_event events[64];
  // Rounded up: a millisecond late beats a busy last millisecond.
  const int64_t ms = std::clamp<int64_t>(
      (timeout + milliseconds(1) - Duration(1)) / milliseconds(1), 0, int64_t{3600} * 1000);
  const int n = epoll_wait(poller_.get(), events, std::size(events), static_cast<int>(ms));
  if (n < 0 && errno != EINTR) return Internal(StrCat("epoll: ", tcp::ErrorText(errno)));
  for (int i = 0; i < n; ++i) {
    if (events[i].data.u32 == kWakeIndex) continue;  // interrupted_ says the rest
    connections_[events[i].data.u32]->OnEvents(events[i].events);
  }
  return OkStatus();
}

// ---- ending

void TcpTransport::Abort(std::string_view reason) {
  if (connected_ && !said_farewell_) {
    SendFarewell(reason.empty() ? "aborted without a reason" : reason);
  }
  (void)Fail(Aborted(StrCat("rank ", rank(), " aborted: ", reason)));
}

// An empty text says goodbye. Best effort, bounded; afterwards nothing more can be sent.
void TcpTransport::SendFarewell(std::string_view text) {
  said_farewell_ = true;
  for (const auto& connection : connections_) {
    if (connection) connection->QueueFarewell(text);
  }
  const TimePoint deadline = RealClock().Now() + kFarewellMax;
  for (;;) {
    bool flushed = true, progress = false;
    const TimePoint now = RealClock().Now();
    for (const auto& connection : connections_) {
      if (!connection || connection->flushed()) continue;
      // An error here means that this peer needs no farewell any more.
      const Status status = connection->DriveSend(now, &progress, &bytes_sent_);
      flushed &= connection->flushed() || !status.ok();
    }
    if (flushed || now >= deadline) break;
    if (!progress && !Poll(std::min<Duration>(deadline - now, milliseconds(10))).ok()) break;
  }
  for (const auto& connection : connections_) {
    if (connection) shutdown(connection->socket(), SHUT_WR);
  }
}

// Closing a socket with unread input resets the connection, which would destroy what the peer has
// not acknowledged yet: so input is read off until everything of ours has arrived.
void TcpTransport::Linger(Duration bound) {
  std::vector<char> sink(64 << 10);
  std::vector<pollfd> open;
  for (const auto& connection : connections_) {
    if (connection) open.push_back({connection->socket(), POLLIN, 0});
  }
  const TimePoint deadline = RealClock().Now() + bound;
  while (!open.empty() && RealClock().Now() < deadline) {
    std::erase_if(open, [&](const pollfd& entry) {
      ssize_t n;
      int rounds = 64;
      do {
        n = recv(entry.fd, sink.data(), sink.size(), MSG_DONTWAIT);
      } while ((n > 0 || (n < 0 && errno == EINTR)) && --rounds > 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return true;
      int unacknowledged = 0;
      return n < 0 && ioctl(entry.fd, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
    });
    if (!open.empty()) poll(open.data(), open.size(), 2);
  }
}

void TcpTransport::Disconnect() {
  connected_ = false;
  connections_.clear();
  MutexLock lock(sockets_mutex_);
  sockets_.clear();
}

void TcpTransport::Interrupt() {
  interrupted_.store(true, std::memory_order_relaxed);
  const uint64_t one = 1;
  // Cannot fail but by overflow, and then the counter is readable already.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
}

std::vector<PathSample> TcpTransport::Samples() const {
  std::vector<PathSample> samples;
  MutexLock lock(sockets_mutex_);
  for (size_t r = 0; r < sockets_.size(); ++r) {
    if (sockets_[r]) samples.push_back(tcp::ReadPathSample(sockets_[r].get(), static_cast<int>(r)));
  }
  return samples;
}

// ---- making one

class TcpFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }

  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    if (options.world < 1 || options.world > kWorldMax) {
      return InvalidArgument(StrCat("world: expected 1..", kWorldMax, ", found ", options.world));
    }
    if (options.rank < 0 || options.rank >= options.world) {
      return InvalidArgument(
          StrCat("rank: expected 0..", options.world - 1, ", found ", options.rank));
    }
    TransportAddress address;
    WEIR_ASSIGN_OR_RETURN(UniqueFd listener, tcp::Listen(options, options.world + 64, &address));
    UniqueFd poller(epoll_create1(EPOLL_CLOEXEC));
    UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLET;  // never drained: one wake-up, then interrupted_ tells
    event.data.u32 = kWakeIndex;
    if (!poller || !wake || epoll_ctl(poller.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
      return Unavailable(StrCat("epoll: ", tcp::ErrorText(errno)));
    }
    return std::make_unique<TcpTransport>(options, std::move(address), std::move(listener),
                                          std::move(poller), std::move(wake));
  }

 private:
  const TransportTraits traits_ = {.name = "tcp", .lossless = true, .crosses_hosts = true};
};

}  // namespace

void RegisterTcp(Registry<TransportFactory>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<TcpFactory>());
}

}  // namespace weir
