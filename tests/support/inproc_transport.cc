// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "datapath/base/mutex.h"

namespace weir::testing {
namespace {

struct Frame {
  FrameHeader header;
  Ticket ticket = 0;                        // of the sender; 0 once the send is done
  std::span<const std::byte> sender_bytes;  // the sender's memory, until accepted
  std::vector<std::byte> owned;             // once accepted
  std::span<const std::byte> bytes() const { return ticket != 0 ? sender_bytes : std::span(owned); }
};

struct Receive {
  Ticket ticket = 0;
  std::span<std::byte> buffer;
};

// The frames in transit of one directed pair of ranks.
struct Lane {
  std::deque<Frame> frames;
  std::deque<Receive> receives;
  size_t buffered = 0;
};

struct Node {
  bool arrived = false;   // called Connect and has not given up
  bool seen = false;      // called Connect at least once
  bool departed = false;  // closed in order
  bool crashed = false;
  std::string abort_text;
  bool interrupted = false;
  bool woken = false;
  Status failure;
  std::map<Ticket, std::optional<FrameHeader>> posted;  // the header once done
  TimePoint last_sent{};
};

// All ranks of one job. There is one lock, because these worlds are small and their tests check
// order, not speed.
struct Mesh {
  explicit Mesh(uint64_t job_, int world) : job(job_), nodes(world), lanes(world * world) {}
  Lane& lane(int from, int to) WEIR_REQUIRES(mutex) {
    return lanes[static_cast<size_t>(from) * nodes.size() + static_cast<size_t>(to)];
  }
  std::string Name(int rank) const {
    return StrCat("rank ", rank, " (inproc:", job, "/", rank, ")");
  }

  const uint64_t job;
  Mutex mutex;
  CondVar changed;
  std::vector<Node> nodes WEIR_GUARDED_BY(mutex);
  std::vector<Lane> lanes WEIR_GUARDED_BY(mutex);
};

class InprocTransport : public Transport {
 public:
  InprocTransport(TransportOptions options, const InprocOptions& more, std::shared_ptr<Mesh> mesh)
      : options_(std::move(options)),
        buffer_bytes_(more.buffer_bytes),
        nodes_(more.nodes),
        address_(StrCat("inproc:", options_.job, "/", options_.rank)),
        mesh_(std::move(mesh)) {}
  ~InprocTransport() override;

  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  const TransportAddress& address() const override { return address_; }
  uint64_t bytes_sent() const override { return bytes_sent_; }

  Status Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) override;
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override;
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override;
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override;
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override;
  void Wake() override;
  void Abort(std::string_view reason) override;
  void Abandon(std::string_view reason) override { Abort(reason); }  // which touches no buffer
  void Interrupt() override;
  std::vector<PathSample> Samples() const override;

 private:
  Node& self() WEIR_REQUIRES(mesh_->mutex) { return mesh_->nodes[options_.rank]; }
  // Returns false when the job has another world size than this transport; Connect then refuses.
  bool Belongs() const WEIR_REQUIRES(mesh_->mutex) {
    return mesh_->nodes.size() == static_cast<size_t>(options_.world);
  }
  Status Fail(Status status) WEIR_REQUIRES(mesh_->mutex);
  Status CheckPost(int peer) WEIR_REQUIRES(mesh_->mutex);
  Status CheckPeers() WEIR_REQUIRES(mesh_->mutex);
  void Pump(int from, int to) WEIR_REQUIRES(mesh_->mutex);
  void FinishSend(Frame& frame, int from) WEIR_REQUIRES(mesh_->mutex) {
    mesh_->nodes[from].posted[frame.ticket] = frame.header;
    frame.ticket = 0;
  }
  Status Deliver(const Frame& frame, const Receive& receive, int from, int to)
      WEIR_REQUIRES(mesh_->mutex);
  void Leave() WEIR_REQUIRES(mesh_->mutex);

  const TransportOptions options_;
  const size_t buffer_bytes_;
  const std::vector<int> nodes_;
  const TransportAddress address_;
  const std::shared_ptr<Mesh> mesh_;
  std::atomic<uint64_t> bytes_sent_ = 0;
  std::atomic<bool> connected_ = false;
  Ticket issued_ = 0;
  std::map<Ticket, std::pair<int, bool>> peers_;  // posted ticket -> peer, is a send
};

InprocTransport::~InprocTransport() {
  MutexLock lock(mesh_->mutex);
  if (!connected_) return;
  if (!self().failure.ok() && self().abort_text.empty())
    self().abort_text = Message(self().failure);
  self().departed = true;
  Leave();
}

// Frames that were accepted stay for their receiver; memory of the caller is not touched any more.
void InprocTransport::Leave() {
  for (int r = 0; r < world(); ++r) {
    std::erase_if(mesh_->lane(rank(), r).frames,
                  [](const Frame& frame) { return frame.ticket != 0; });
    mesh_->lane(r, rank()).receives.clear();
  }
  mesh_->changed.NotifyAll();
}

Status InprocTransport::Fail(Status status) {
  if (self().failure.ok()) self().failure = std::move(status);
  Leave();  // the buffers of a failed operation may be freed at once
  return self().failure;
}

Status InprocTransport::Connect(const std::vector<TransportAddress>& addresses,
                                TimePoint deadline) {
  if (addresses.size() != static_cast<size_t>(world())) {
    return InvalidArgument(
        StrCat("addresses: expected ", world(), " (the world), found ", addresses.size()));
  }
  MutexLock lock(mesh_->mutex);
  if (connected_) return FailedPrecondition("the transport is already connected");
  if (!Belongs()) {
    return FailedPrecondition(StrCat("rank 0 refused rank ", rank(), ": world: expected ",
                                     mesh_->nodes.size(), ", found ", world()));
  }
  for (int r = 0; r < world(); ++r) {
    const TransportAddress expected = StrCat("inproc:", options_.job, "/", r);
    if (r != rank() && addresses[r] != expected) {
      return FailedPrecondition(StrCat("rank ", r, " refused rank ", rank(), ": job: address ",
                                       addresses[r], ", expected ", expected));
    }
  }
  if (self().arrived) {
    return FailedPrecondition(StrCat("rank ", rank(), " is already connected from ", address_));
  }
  self().arrived = true;
  self().seen = true;
  mesh_->changed.NotifyAll();
  for (;;) {
    // A rank that gave up a moment ago was there; a rank that never came is to blame.
    std::string never_came, missing;
    for (int r = 0; r < world(); ++r) {
      const auto add = [&](std::string* names) {
        *names += StrCat(names->empty() ? "" : "; ", mesh_->Name(r));
      };
      if (!mesh_->nodes[r].seen) add(&never_came);
      if (!mesh_->nodes[r].arrived) add(&missing);
    }
    if (missing.empty()) break;
    if (!never_came.empty()) missing = never_came;
    if (self().interrupted) return Fail(Aborted("connecting was interrupted"));
    if (!mesh_->changed.WaitUntil(mesh_->mutex, deadline) && RealClock().Now() >= deadline) {
      self().arrived = false;
      return Fail(DeadlineExceeded(StrCat("rank ", rank(), " is missing ", missing)));
    }
  }
  connected_ = true;
  return OkStatus();
}

Status InprocTransport::CheckPost(int peer) {
  if (!connected_) return FailedPrecondition("the transport is not connected");
  if (!self().failure.ok()) return self().failure;
  if (peer < 0 || peer >= world() || peer == rank()) {
    return InvalidArgument(
        StrCat("peer: expected another rank of 0..", world() - 1, ", found ", peer));
  }
  if (peers_.size() >= kPostedMax)
    return ResourceExhausted(StrCat("more than ", kPostedMax, " posted operations"));
  return OkStatus();
}

StatusOr<Ticket> InprocTransport::PostSend(int peer, FrameHeader header,
                                           std::span<const std::byte> payload) {
  FrameFault fault = FrameFault::kNone;
  if (options_.frame_fault) fault = options_.frame_fault(peer);
  MutexLock lock(mesh_->mutex);
  WEIR_RETURN_IF_ERROR(CheckPost(peer));
  if (fault == FrameFault::kDisconnect) {
    self().crashed = true;
    Leave();
    return Fail(Unavailable(StrCat("rank ", rank(), " was cut off by fault injection")));
  }
  if (mesh_->nodes[peer].departed)
    return Unavailable(StrCat(mesh_->Name(peer), " closed the connection"));
  header.type = FrameType::kData;
  header.source_rank = static_cast<uint16_t>(rank());
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.payload_checksum = Checksum(payload) ^ (fault == FrameFault::kCorrupt ? 1u : 0u);
  const Ticket ticket = ++issued_;
  self().posted[ticket] = std::nullopt;
  self().last_sent = RealClock().Now();
  peers_[ticket] = {peer, true};
  bytes_sent_ += kFrameHeaderBytes + payload.size();
  mesh_->lane(rank(), peer).frames.push_back({header, ticket, payload, {}});
  Pump(rank(), peer);
  return ticket;
}

StatusOr<Ticket> InprocTransport::PostReceive(int peer, std::span<std::byte> buffer) {
  MutexLock lock(mesh_->mutex);
  WEIR_RETURN_IF_ERROR(CheckPost(peer));
  const Ticket ticket = ++issued_;
  self().posted[ticket] = std::nullopt;
  peers_[ticket] = {peer, false};
  mesh_->lane(peer, rank()).receives.push_back({ticket, buffer});
  Pump(peer, rank());
  return ticket;
}

// Matches frames with receives, then accepts what the freed buffer has room for.
void InprocTransport::Pump(int from, int to) {
  Lane& lane = mesh_->lane(from, to);
  while (!lane.frames.empty() && !lane.receives.empty()) {
    Frame& frame = lane.frames.front();
    const Status status = Deliver(frame, lane.receives.front(), from, to);
    if (frame.ticket == 0) lane.buffered -= frame.owned.size();
    if (frame.ticket != 0) FinishSend(frame, from);
    lane.frames.pop_front();
    lane.receives.pop_front();
    if (!status.ok() && mesh_->nodes[to].failure.ok()) mesh_->nodes[to].failure = status;
  }
  for (Frame& frame : lane.frames) {
    if (frame.ticket == 0) continue;
    if (lane.buffered + frame.sender_bytes.size() > buffer_bytes_) break;
    frame.owned.assign(frame.sender_bytes.begin(), frame.sender_bytes.end());
    lane.buffered += frame.owned.size();
    FinishSend(frame, from);
  }
  mesh_->changed.NotifyAll();
}

Status InprocTransport::Deliver(const Frame& frame, const Receive& receive, int from, int to) {
  const std::span<const std::byte> bytes = frame.bytes();
  if (bytes.size() > receive.buffer.size()) {
    return DataLoss(StrCat(mesh_->Name(from), " sent ", bytes.size(), " bytes (",
                           Describe(frame.header), ") where at most ", receive.buffer.size(),
                           " were expected"));
  }
  if (!bytes.empty()) std::memcpy(receive.buffer.data(), bytes.data(), bytes.size());
  const uint32_t found = Checksum(receive.buffer.first(bytes.size()));
  if (found != frame.header.payload_checksum) {
    return DataLoss(StrCat(mesh_->Name(from), " sent a corrupt payload (", Describe(frame.header),
                           "): expected checksum ", frame.header.payload_checksum, ", found ",
                           found));
  }
  mesh_->nodes[to].posted[receive.ticket] = frame.header;
  return OkStatus();
}

// The death or abort of any rank ends every wait; an orderly departure does not.
Status InprocTransport::CheckPeers() {
  for (int r = 0; r < world(); ++r) {
    if (r == rank()) continue;
    const Node& node = mesh_->nodes[r];
    if (!node.abort_text.empty())
      return Unavailable(StrCat("rank ", r, " reported: ", node.abort_text));
    if (node.crashed) return Unavailable(StrCat(mesh_->Name(r), " closed the connection"));
  }
  return OkStatus();
}

StatusOr<FrameHeader> InprocTransport::Wait(Ticket ticket, TimePoint deadline) {
  MutexLock lock(mesh_->mutex);
  if (!connected_) return FailedPrecondition("the transport is not connected");
  if (!self().failure.ok()) return self().failure;
  const auto found = peers_.find(ticket);
  if (found == peers_.end()) return InvalidArgument(StrCat("ticket ", ticket, " is not posted"));
  const auto [peer, sends] = found->second;
  while (!self().posted[ticket].has_value()) {
    if (!self().failure.ok()) return self().failure;
    if (self().interrupted) return Fail(Aborted("waiting was interrupted"));
    if (const Status status = CheckPeers(); !status.ok()) return Fail(status);
    if (mesh_->nodes[peer].departed)
      return Fail(Unavailable(StrCat(mesh_->Name(peer), " closed the connection")));
    const TimePoint now = RealClock().Now();
    if (now >= deadline) {
      const double silent_s = ToSeconds(now - mesh_->nodes[peer].last_sent);
      return Fail(DeadlineExceeded(sends
                                       ? StrCat(mesh_->Name(peer), " takes no more data")
                                       : StrCat("no answer from ", mesh_->Name(peer),
                                                ": last received anything ", silent_s, " s ago")));
    }
    mesh_->changed.WaitUntil(mesh_->mutex, deadline);
  }
  const FrameHeader header = *self().posted[ticket];
  self().posted.erase(ticket);
  peers_.erase(found);
  return header;
}

StatusOr<std::optional<size_t>> InprocTransport::WaitAny(std::span<const Ticket> tickets,
                                                         TimePoint deadline) {
  MutexLock lock(mesh_->mutex);
  if (!connected_) return FailedPrecondition("the transport is not connected");
  for (;;) {
    if (!self().failure.ok()) return self().failure;
    if (self().interrupted) return Fail(Aborted("waiting was interrupted"));
    if (const Status status = CheckPeers(); !status.ok()) return Fail(status);
    for (size_t i = 0; i < tickets.size(); ++i) {
      const auto found = self().posted.find(tickets[i]);
      if (found == self().posted.end()) {
        return InvalidArgument(StrCat("ticket ", tickets[i], " is not posted"));
      }
      if (found->second.has_value()) return std::optional(i);
    }
    if (std::exchange(self().woken, false)) return std::optional<size_t>();
    if (RealClock().Now() >= deadline) return std::optional<size_t>();
    mesh_->changed.WaitUntil(mesh_->mutex, deadline);
  }
}

void InprocTransport::Wake() {
  MutexLock lock(mesh_->mutex);
  if (!Belongs()) return;
  self().woken = true;
  mesh_->changed.NotifyAll();
}

void InprocTransport::Abort(std::string_view reason) {
  MutexLock lock(mesh_->mutex);
  if (!Belongs()) return;
  if (self().abort_text.empty()) {
    self().abort_text = reason.empty() ? "aborted without a reason" : std::string(reason);
  }
  (void)Fail(Aborted(StrCat("rank ", rank(), " aborted: ", reason)));
  mesh_->changed.NotifyAll();
}

void InprocTransport::Interrupt() {
  MutexLock lock(mesh_->mutex);
  if (!Belongs()) return;
  self().interrupted = true;
  mesh_->changed.NotifyAll();
}

std::vector<PathSample> InprocTransport::Samples() const {
  std::vector<PathSample> samples;
  for (int r = 0; connected_ && r < options_.world; ++r) {
    if (r == options_.rank) continue;
    samples.emplace_back();
    samples.back().peer = r;
    if (!nodes_.empty() && nodes_[r] == nodes_[options_.rank]) samples.back().medium = "shm";
  }
  return samples;
}

class InprocFactory : public TransportFactory {
 public:
  explicit InprocFactory(const InprocOptions& options) : options_(options) {}
  const TransportTraits& Traits() const override { return traits_; }

  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    if (options.world < 1)
      return InvalidArgument(StrCat("world: expected at least 1, found ", options.world));
    if (options.rank < 0 || options.rank >= options.world) {
      return InvalidArgument(
          StrCat("rank: expected 0..", options.world - 1, ", found ", options.rank));
    }
    MutexLock lock(mutex_);
    std::shared_ptr<Mesh> mesh = meshes_[options.job].lock();
    if (!mesh) {
      mesh = std::make_shared<Mesh>(options.job, options.world);
      meshes_[options.job] = mesh;
    }
    return std::make_unique<InprocTransport>(options, options_, std::move(mesh));
  }

 private:
  const InprocOptions options_;
  const TransportTraits traits_ = {.name = "inproc", .lossless = true, .crosses_hosts = false};
  mutable Mutex mutex_;
  mutable std::map<uint64_t, std::weak_ptr<Mesh>> meshes_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<TransportFactory> MakeInprocFactory(const InprocOptions& options) {
  return std::make_unique<InprocFactory>(options);
}

}  // namespace weir::testing
