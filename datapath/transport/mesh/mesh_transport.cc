// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/mesh_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "datapath/base/log.h"

namespace weir::mesh {
namespace {
using std::chrono::milliseconds;
constexpr int kWorldMax = 65535;  // FrameHeader::source_rank
}  // namespace

StatusOr<MeshParts> MakeMeshParts(const TransportOptions& options) {
  if (options.world < 1 || options.world > kWorldMax) {
    return InvalidArgument(StrCat("world: expected 1..", kWorldMax, ", found ", options.world));
  }
  if (options.rank < 0 || options.rank >= options.world) {
    return InvalidArgument(
        StrCat("rank: expected 0..", options.world - 1, ", found ", options.rank));
  }
  if (options.encrypt && !options.job_key.has_value()) {
    return InvalidArgument("encrypt: needs a job key");
  }
  if (options.unauthenticated && options.job_key.has_value()) {
    return InvalidArgument("unauthenticated: expected no job key beside it");
  }
  MeshParts parts;
  parts.options = options;
  parts.wake = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!parts.wake) return Unavailable(StrCat("eventfd: ", ErrorText(errno)));
  WEIR_ASSIGN_OR_RETURN(parts.events, MakeEventSet());
  // The counter is never read: with EPOLLET every write wakes once.
  WEIR_RETURN_IF_ERROR(parts.events->Add(parts.wake.get(), EPOLLIN | EPOLLET, kWakeIndex));
  return parts;
}

MeshTransport::MeshTransport(MeshParts parts)
    : options_(std::move(parts.options)),
      address_(std::move(parts.address)),
      wake_(std::move(parts.wake)),
      events_(std::move(parts.events)) {}

Status MeshTransport::Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  if (connected_) return FailedPrecondition("the transport is already connected");
  if (addresses.size() != static_cast<size_t>(world())) {
    return InvalidArgument(
        StrCat("addresses: expected ", world(), " (the world), found ", addresses.size()));
  }
  if (const Status status = Join(addresses, deadline); !status.ok()) return Fail(status);
  connected_ = true;
  return OkStatus();
}

void MeshTransport::NoteUnauthenticated(int peers) {
  unauthenticated_peers_.store(peers, std::memory_order_relaxed);
  if (peers == 0) return;
  Log(LogLevel::kWarning, "transport",
      StrCat("rank ", rank(), " runs unauthenticated: whoever reaches the network of ", peers,
             " of its peers can take part in the job and change what it computes"));
}

Status MeshTransport::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

// ---- posting

StatusOr<Operation*> MeshTransport::NewOperation(int peer) {
  if (!failure_.ok()) return failure_;
  if (!connected_) return FailedPrecondition("the transport is not connected");
  if (peer < 0 || peer >= world() || peer == rank()) {
    return InvalidArgument(
        StrCat("peer: expected another rank of 0..", world() - 1, ", found ", peer));
  }
  Operation* const op = operations_.Take();
  if (op == nullptr) {
    return ResourceExhausted(StrCat("more than ", kPostedMax, " posted operations"));
  }
  op->peer = peer;
  return op;
}

StatusOr<Ticket> MeshTransport::PostSend(int to, FrameHeader header,
                                         std::span<const std::byte> payload) {
  if (payload.size() > kFramePayloadBytesMax) {
    return InvalidArgument(StrCat("payload: expected at most ", kFramePayloadBytesMax,
                                  " bytes, found ", payload.size()));
  }
  WEIR_ASSIGN_OR_RETURN(Operation* const op, NewOperation(to));
  Peer& receiver = *peer(to);
  if (receiver.departed()) {
    operations_.Return(op);
    return receiver.Closed();
  }
  op->send = true;
  op->header = header;
  op->header.type = FrameType::kData;
  op->payload = payload;
  if (options_.frame_fault) {
    const FrameFault fault = options_.frame_fault(to);
    op->corrupt = fault == FrameFault::kCorrupt;
    if (fault == FrameFault::kDisconnect) {
      connected_ = false;
      Disconnect();
      return Fail(Unavailable(StrCat("rank ", rank(), " was cut off by fault injection")));
    }
  }
  const Ticket ticket = op->ticket;
  receiver.PostSend(op);
  bool progress = false;
  const Status status = receiver.DriveSend(RealClock().Now(), &progress, &bytes_sent_);
  if (!status.ok()) return Fail(status);
  return ticket;
}

StatusOr<Ticket> MeshTransport::PostReceive(int from, std::span<std::byte> buffer) {
  WEIR_ASSIGN_OR_RETURN(Operation* const op, NewOperation(from));
  op->buffer = buffer;
  peer(from)->PostReceive(op);
  return op->ticket;
}

// ---- waiting

StatusOr<FrameHeader> MeshTransport::Wait(Ticket ticket, TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  Operation* const op = operations_.Find(ticket);
  if (op == nullptr) return InvalidArgument(StrCat("ticket ", ticket, " is not posted"));
  const Peer& awaited = *peer(op->peer);
  while (!op->done) {
    if (interrupted_.load(std::memory_order_relaxed)) {
      return Fail(Aborted("waiting was interrupted"));
    }
    bool progress = false;
    const TimePoint now = RealClock().Now();
    if (const Status status = DriveAll(now, &progress); !status.ok()) return Fail(status);
    if (op->done) break;
    if (awaited.CannotFinish(*op)) return Fail(awaited.Closed());
    if (now >= deadline) return Fail(DeadlineExceeded(awaited.DescribeWait(*op, now)));
    const Status status = Rest(op, now, deadline, progress);
    if (!status.ok()) return Fail(status);
  }
  const FrameHeader header = op->header;
  operations_.Return(op);
  return header;
}

// Returns the index of the first ticket that is done; nullopt if none is.
StatusOr<std::optional<size_t>> MeshTransport::FirstDone(std::span<const Ticket> tickets) {
  for (size_t i = 0; i < tickets.size(); ++i) {
    const Operation* const op = operations_.Find(tickets[i]);
    if (op == nullptr) return InvalidArgument(StrCat("ticket ", tickets[i], " is not posted"));
    if (op->done) return std::optional(i);
  }
  return std::optional<size_t>();
}

StatusOr<std::optional<size_t>> MeshTransport::WaitAny(std::span<const Ticket> tickets,
                                                       TimePoint deadline) {
  // Checks once even if the deadline has passed, for callers that do not want to wait.
  for (bool looked = false;; looked = true) {
    if (!failure_.ok()) return failure_;
    if (!connected_) return FailedPrecondition("the transport is not connected");
    if (interrupted_.load(std::memory_order_relaxed)) {
      return Fail(Aborted("waiting was interrupted"));
    }
    bool progress = false;
    const TimePoint now = RealClock().Now();
    if (const Status status = DriveAll(now, &progress); !status.ok()) return Fail(status);
    WEIR_ASSIGN_OR_RETURN(const std::optional<size_t> first, FirstDone(tickets));
    if (first.has_value()) return first;
    if (woken_.exchange(false) || (looked && now >= deadline)) return first;
    const Status status = Rest(nullptr, now, deadline, progress);
    if (!status.ok()) return Fail(status);
  }
}

void MeshTransport::Interrupt() {
  interrupted_.store(true, std::memory_order_relaxed);
  Ring();
}

void MeshTransport::Wake() {
  woken_.store(true);
  Ring();
}

void MeshTransport::Ring() {
  const uint64_t one = 1;
  // This fails only if the counter would overflow, and then it is readable already.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof one);
}

// ---- ending

void MeshTransport::Abort(std::string_view reason) {
  if (connected_ && !sent_shutdown_notice_) {
    SendShutdownNotice(reason.empty() ? "aborted without a reason" : reason, kShutdownNoticeMax);
  }
  (void)Fail(Aborted(StrCat("rank ", rank(), " aborted: ", reason)));
}

void MeshTransport::Abandon(std::string_view reason) {
  bool cut = false;
  for (int r = 0; connected_ && r < world(); ++r) {
    cut = cut || (peer(r) != nullptr && peer(r)->ReadsBuffers());
  }
  if (!cut) return Abort(reason);
  for (int r = 0; r < world(); ++r) {
    if (peer(r) != nullptr) peer(r)->Cut();
  }
  connected_ = false;
  Disconnect();
  (void)Fail(Aborted(StrCat("rank ", rank(), " aborted: ", reason)));
}

void MeshTransport::SendShutdownNotice(std::string_view text, Duration bound) {
  sent_shutdown_notice_ = true;
  const TimePoint deadline = RealClock().Now() + bound;
  for (int r = 0; r < world(); ++r) {
    // An error means that this peer needs no shutdown notice any more.
    if (peer(r) != nullptr) (void)peer(r)->QueueShutdownNotice(text);
  }
  for (;;) {
    const TimePoint now = RealClock().Now();
    bool flushed = true, progress = false;
    DriveShutdownNotice(now, &progress);
    for (int r = 0; r < world(); ++r) flushed &= peer(r) == nullptr || peer(r)->flushed();
    if (flushed || now >= deadline) break;
    if (progress) continue;
    if (!RestInShutdownNotice(std::min<Duration>(deadline - now, milliseconds(10))).ok()) break;
  }
  EndSending();
}

bool MeshTransport::Leave(Duration orderly_max) {
  if (!connected_) return false;
  if (!sent_shutdown_notice_) {
    SendShutdownNotice(orderly() ? "" : Message(failure_),
                       orderly() ? orderly_max : kShutdownNoticeMax);
  }
  return true;
}

}  // namespace weir::mesh
