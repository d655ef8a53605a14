// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/stream_mesh.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "datapath/base/caught.h"

namespace weir::mesh {
namespace {
constexpr Duration kLingerMax = std::chrono::milliseconds(1000);
constexpr Duration kLookMin = std::chrono::milliseconds(50);
}  // namespace

StatusOr<StreamMeshParts> MakeStreamMeshParts(const TransportOptions& options) {
  if (options.connections < 1 || options.connections > kConnectionsMax) {
    return InvalidArgument(
        StrCat("connections: expected 1..", kConnectionsMax, ", found ", options.connections));
  }
  StreamMeshParts parts;
  WEIR_ASSIGN_OR_RETURN(parts.mesh, MakeMeshParts(options));
  WEIR_ASSIGN_OR_RETURN(parts.listener, Listen(options, options.world + 64, &parts.mesh.address));
  return parts;
}

StreamMesh::StreamMesh(StreamMeshParts parts)
    : MeshTransport(std::move(parts.mesh)), listener_(std::move(parts.listener)) {}

StreamMesh::~StreamMesh() {
  // Without memory for the notice none is sent, and the peers only see the connections end.
  (void)Caught([this] {
    if (Leave(kShutdownNoticeMax)) Linger(orderly() ? kLingerMax : kShutdownNoticeMax);
  });
  Disconnect();
}

int RanksPerCore(size_t ranks) {
  // The number of cores that this process may use; the system returns 0 if it does not know.
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>((ranks + cores - 1) / cores);
}

Status StreamMesh::Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  WEIR_ASSIGN_OR_RETURN(Streams streams, MakeStreams(addresses, deadline));
  listener_ = UniqueFd();  // the mesh is complete, so nothing listens any more
  WEIR_RETURN_IF_ERROR(CheckAuthenticated(addresses, streams));
  size_t neighbours = 0;
  std::vector<std::unique_ptr<ByteStream>> kept(streams.size());
  for (int r = 0; r < world(); ++r) {
    connections_.emplace_back();
    if (r == rank()) continue;
    ByteStream& stream = *streams[r].stream;
    kept[r] = std::move(streams[r].stream);
    connections_[r] = std::make_unique<Connection>(rank(), r, addresses[r], stream,
                                                   std::move(streams[r].channel));
    if (stream.shares_memory()) shared_.push_back(connections_[r].get());
    if (stream.within_host()) ++neighbours;
    WEIR_RETURN_IF_ERROR(stream.Register(events(), static_cast<uint32_t>(r)));
  }
  const int share = RanksPerCore(neighbours + 1);
  crowded_ = share > 1;
  if (neighbours > 0) spin_.ShareHost(share);
  MutexLock lock(streams_mutex_);
  streams_ = std::move(kept);
  return OkStatus();
}

// Both ends of a pair come to the same result.
Status StreamMesh::CheckAuthenticated(const std::vector<TransportAddress>& addresses,
                                      const Streams& streams) {
  int unknown = 0;
  for (int r = 0; r < world(); ++r) {
    const PeerStream& peer = streams[r];
    if (!peer.stream || peer.channel.sealer || !peer.stream->crosses_network()) continue;
    ++unknown;
    if (options().unauthenticated) continue;
    return FailedPrecondition(
        StrCat("rank ", r, " (", addresses[r],
               ") is reached over a network and has proven nothing: ", kKeyAdvice));
  }
  NoteUnauthenticated(unknown);
  return OkStatus();
}

// The counter is never read: with EPOLLET every write wakes once.
Status StreamMesh::AddEventFd(int fd) { return events().Add(fd, EPOLLIN | EPOLLET, kWakeIndex); }

// ---- waiting

Status StreamMesh::DriveAll(TimePoint now, bool* progress) {
  for (const auto& connection : connections_) {
    if (connection) WEIR_RETURN_IF_ERROR(connection->Drive(now, progress, sent()));
  }
  return OkStatus();
}

Status StreamMesh::Rest(const Operation* awaited, TimePoint now, TimePoint deadline,
                        bool progress) {
  if (now >= next_look_) WEIR_RETURN_IF_ERROR(LookForSilence(now));
  if (progress) return OkStatus();
  deadline = std::min(deadline, next_look_);
  if (awaited == nullptr) return Poll({}, deadline - now);
  const Connection::Interest interest = {.sends = awaited->send};
  WEIR_ASSIGN_OR_RETURN(const bool news, Spin(*awaited, now));
  if (!news) WEIR_RETURN_IF_ERROR(Poll(interest, deadline - now));
  spin_.Learn(now, RealClock().Now());
  return OkStatus();
}

Status StreamMesh::LookForSilence(TimePoint now) {
  const Duration least = options().host_silence_min;
  if (least <= Duration(0)) {
    next_look_ = TimePoint::max();
    return OkStatus();
  }
  next_look_ = now + std::max(least / 8, kLookMin);
  for (const auto& connection : connections_) {
    if (connection) WEIR_RETURN_IF_ERROR(connection->CheckHost(least));
  }
  return OkStatus();
}

// Polls for news and returns whether there is any. Where ranks outnumber the cores it yields at
// every turn, because the awaited rank may need this core. Elsewhere it yields only after a while,
// because a yield takes as long as a message, or at once where the last yield brought the news:
// then two ranks share a core though another one is free. If another process ran in the meantime
// and brought no news, the rank sleeps, because a sleeper is woken on an idle core.
StatusOr<bool> StreamMesh::Spin(const Operation& awaited, TimePoint now) {
  const TimePoint asked = now + options().busy_poll;
  const TimePoint end = std::max(now + spin_.limit(now), asked);
  if (!crowded_ && asked <= now && spin_.MovesAway()) return false;
  TimePoint polite = crowded_ || spin_.yields_first() ? now : now + SpinBudget::kAlone;
  bool yielded = false, given = false;
  for (unsigned turn = 0;; ++turn) {
    const TimePoint before = RealClock().Now();
    WEIR_ASSIGN_OR_RETURN(const bool news, Look(awaited, before, turn));
    spin_.OnLook(news, yielded);
    if (news) return true;
    if (before >= end) return false;
    if (yielded && !crowded_) {
      if (given && before >= asked) return false;
      polite = before + SpinBudget::kAlone;
    }
    yielded = before >= polite;
    if (!yielded) continue;
    sched_yield();
    const TimePoint after = RealClock().Now();
    spin_.OnYield(after, after - before);
    given = after - before > SpinBudget::kGiven;
  }
}

StatusOr<bool> StreamMesh::Look(const Operation& awaited, TimePoint now, unsigned turn) {
  const Connection::Interest interest = {.sends = awaited.send};
  for (Connection* connection : shared_) {
    if (connection->HasNews(interest)) return true;
  }
  Connection& connection = *connections_[awaited.peer];
  if (connection.shares_memory()) return false;
  // A read that finds nothing costs about as much as asking epoll, and one that succeeds saves the
  // question. Epoll is still asked from time to time, because other peers may have news.
  constexpr unsigned kReadsPerQuestion = 15;
  const bool ask = turn % (kReadsPerQuestion + 1) == kReadsPerQuestion;
  if (!awaited.send && !ask) {
    bool progress = false;
    WEIR_RETURN_IF_ERROR(connection.TryReceive(now, &progress));
    return progress;
  }
  WEIR_ASSIGN_OR_RETURN(const int events, TakeEvents(Duration(0)));
  return events > 0;
}

// Returns the number of events that came within `timeout`.
StatusOr<int> StreamMesh::TakeEvents(Duration timeout) {
  WEIR_ASSIGN_OR_RETURN(const std::span<const Event> news, events().Wait(timeout));
  for (const auto& [bits, data] : news) {
    if (data == kWakeIndex) continue;  // Wait or a ring finds the reason
    const bool hang_up = (data & ByteStream::kHangUpBit) != 0;
    connections_[static_cast<uint32_t>(data)]->OnEvents(hang_up ? uint32_t{EPOLLHUP} : bits);
  }
  return static_cast<int>(news.size());
}

Status StreamMesh::Poll(const Connection::Interest& interest, Duration timeout) {
  bool news = false;
  for (Connection* connection : shared_) news |= !connection->PrepareSleep(interest);
  if (news) timeout = Duration(0);
  const Status status = TakeEvents(timeout).status();
  for (Connection* connection : shared_) connection->Awake();
  return status;
}

// ---- ending

void StreamMesh::DriveShutdownNotice(TimePoint now, bool* progress) {
  for (const auto& connection : connections_) {
    // An error means that this peer needs no shutdown notice any more.
    if (connection && !connection->flushed()) (void)connection->DriveSend(now, progress, sent());
  }
}

void StreamMesh::EndSending() {
  for (const auto& connection : connections_) {
    if (connection) connection->stream().CloseWrite();
  }
}

// Closing a socket with unread input resets the connection, which would destroy data that the peer
// has not acknowledged yet. So input is read until the peer has acknowledged everything.
void StreamMesh::Linger(Duration bound) {
  std::vector<char> sink(64 << 10);
  std::vector<int> sockets;
  for (const auto& connection : connections_) {
    if (connection) connection->stream().AppendSockets(&sockets);
  }
  std::vector<pollfd> open;
  for (const int socket : sockets) open.push_back({socket, POLLIN, 0});
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

void StreamMesh::Disconnect() {
  events().Clear();
  shared_.clear();
  connections_.clear();
  MutexLock lock(streams_mutex_);
  streams_.clear();
}

std::vector<PathSample> StreamMesh::Samples() const {
  std::vector<PathSample> samples;
  MutexLock lock(streams_mutex_);
  for (size_t r = 0; r < streams_.size(); ++r) {
    if (streams_[r]) samples.push_back(streams_[r]->Sample(static_cast<int>(r)));
  }
  return samples;
}

std::vector<ArrivalSample> StreamMesh::TakeArrivals() {
  std::vector<PeerArrivals> arrivals;
  {
    MutexLock lock(streams_mutex_);
    for (size_t r = 0; r < streams_.size(); ++r) {
      ArrivalLog* const log = streams_[r] ? streams_[r]->arrivals() : nullptr;
      if (log != nullptr) arrivals.push_back({static_cast<int>(r), log->Take()});
    }
  }
  return MeasureArrivals(arrivals);
}

}  // namespace weir::mesh
