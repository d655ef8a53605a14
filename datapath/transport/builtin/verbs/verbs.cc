// SPDX-License-Identifier: Apache-2.0
// The verbs transport: a mesh of one reliable connection per pair of ranks over RDMA.

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "datapath/transport/builtin/verbs/rendezvous.h"
#include "datapath/transport/mesh/mesh_transport.h"
#include "datapath/transport/options.h"

namespace weir {
namespace {
using std::chrono::milliseconds;
using verbs::Mesh;
using verbs::Peer;

// Longer than the 2.1 s after which devices send again what was lost.
constexpr Duration kLingerMax = milliseconds(3000);
// How often the kernel is asked for other events while data flows.
constexpr Duration kEventCheckInterval = milliseconds(1);
// An idle connection does not report that the peer's host died. After this long without a sign of
// life the peer's device is asked for one, which fails after some 20 s more of the device's
// retries.
constexpr Duration kSilenceMax = std::chrono::seconds(10);

enum class Source : uint64_t { kWake = mesh::kWakeIndex, kCompletion = 0, kConnection, kDevice };

bool IsLoopbackAddress(const TransportAddress& address) {
  const StatusOr<mesh::SocketAddress> resolved = mesh::ResolveAddress(address);
  return resolved.ok() && mesh::IsLoopback(*resolved);
}

class VerbsTransport : public mesh::MeshTransport {
 public:
  VerbsTransport(mesh::MeshParts parts, std::unique_ptr<Mesh> mesh)
      : MeshTransport(std::move(parts)), mesh_(std::move(mesh)) {}
  ~VerbsTransport() override {
    Leave(kLingerMax);
    Disconnect();
  }

  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override {
    busy_until_ = RealClock().Now() + options().busy_poll;
    return MeshTransport::Wait(ticket, deadline);
  }
  std::vector<PathSample> Samples() const override;

 private:
  Status Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) override;
  mesh::Peer* peer(int rank) override { return mesh_->peers()[rank].stream.get(); }
  Status DriveAll(TimePoint now, bool* progress) override;
  Status Rest(const mesh::Operation* awaited, TimePoint now, TimePoint deadline,
              bool progress) override;
  void DriveShutdownNotice(TimePoint now, bool* progress) override;
  Status RestInShutdownNotice(Duration timeout) override;
  void EndSending() override;
  void Disconnect() override;
  Status CheckLost();
  Status Poll(Duration timeout);
  Status TakeConnectionEvents();

  TimePoint next_event_check_{};
  TimePoint busy_until_{};

  mutable Mutex samples_mutex_;  // only keeps the streams alive during Samples
  bool sampled_ WEIR_GUARDED_BY(samples_mutex_) = false;
  std::unique_ptr<Mesh> mesh_;  // none after a disconnect
};

Status VerbsTransport::Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  verbs::Rendezvous rendezvous(options(), address(), mesh_.get(), wake());
  const Status status = rendezvous.Run(addresses, deadline);
  mesh_->StopListening();  // the mesh is complete, or never will be
  if (!status.ok()) {
    SendShutdownNotice(Message(status), mesh::kShutdownNoticeMax);
    Disconnect();
    return status;
  }
  const bool trusted = options().job_key.has_value() || IsLoopbackAddress(address());
  NoteUnauthenticated(trusted ? 0 : world() - 1);
  MutexLock lock(samples_mutex_);
  sampled_ = true;
  return OkStatus();
}

// ---- waiting

Status VerbsTransport::DriveAll(TimePoint now, bool* progress) {
  WEIR_RETURN_IF_ERROR(mesh_->TakeCompletions(now, progress));
  // Comes after the completions, because a shutdown notice among them explains why its sender is
  // gone.
  WEIR_RETURN_IF_ERROR(CheckLost());
  for (const Peer& peer : mesh_->peers()) {
    if (peer.stream) WEIR_RETURN_IF_ERROR(peer.stream->Drive(now, progress, sent()));
  }
  return OkStatus();
}

Status VerbsTransport::CheckLost() {
  for (Peer& peer : mesh_->peers()) {
    if (!peer.lost || !peer.stream) continue;
    peer.lost = false;
    WEIR_RETURN_IF_ERROR(peer.stream->OnEnd(peer.lost_because));
  }
  return OkStatus();
}

// Waits until something may have happened: not at all after progress, else polling for as long as
// the options say, then asleep.
Status VerbsTransport::Rest(const mesh::Operation*, TimePoint now, TimePoint deadline,
                            bool progress) {
  if (progress) busy_until_ = now + options().busy_poll;
  if (progress || now < busy_until_) {
    if (now < next_event_check_) return OkStatus();
    next_event_check_ = now + kEventCheckInterval;
    return Poll(Duration::zero());
  }
  for (const Peer& peer : mesh_->peers()) {
    if (peer.stream) WEIR_RETURN_IF_ERROR(peer.stream->ProbeIfSilent(now, kSilenceMax));
  }
  WEIR_RETURN_IF_ERROR(mesh_->Arm());
  // Completions from before the queue was armed do not wake this rank, so they are taken here.
  bool found = false;
  WEIR_RETURN_IF_ERROR(mesh_->TakeCompletions(now, &found));
  return Poll(found ? Duration::zero() : std::min<Duration>(deadline - now, kSilenceMax));
}

Status VerbsTransport::Poll(Duration timeout) {
  WEIR_ASSIGN_OR_RETURN(const std::span<const mesh::Event> news, events().Wait(timeout));
  for (const mesh::Event& event : news) {
    switch (static_cast<Source>(event.data)) {
      case Source::kWake:
        break;  // Wait finds the reason
      case Source::kCompletion:
        mesh_->TakeWakeUps();
        break;
      case Source::kConnection:
        WEIR_RETURN_IF_ERROR(TakeConnectionEvents());
        break;
      case Source::kDevice:
        WEIR_RETURN_IF_ERROR(mesh_->TakeDeviceEvents());
        break;
    }
  }
  return OkStatus();
}

Status VerbsTransport::TakeConnectionEvents() {
  for (;;) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<verbs::ConnectionEvent> event, mesh_->NextEvent());
    if (!event) return OkStatus();
    if (event->type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      return Unavailable(StrCat("RDMA device ", mesh_->device().name(), " was removed"));
    }
    if (event->type == RDMA_CM_EVENT_CONNECT_REQUEST) {  // it was under way when listening ended
      verbs::Rdma().rdma_destroy_id(event->id);
      continue;
    }
    if (event->rank < 0 || event->rank >= world() || event->type != RDMA_CM_EVENT_DISCONNECTED) {
      continue;
    }
    Peer& peer = mesh_->peers()[event->rank];
    if (peer.connected) verbs::Rdma().rdma_disconnect(event->id);  // acknowledges the peer's
    peer.connected = false;
    peer.lost = true;
  }
}

// ---- ending

void VerbsTransport::DriveShutdownNotice(TimePoint now, bool* progress) {
  // An error means that a peer needs no shutdown notice any more.
  (void)mesh_->TakeCompletions(now, progress);
  (void)CheckLost();
}

Status VerbsTransport::RestInShutdownNotice(Duration timeout) {
  WEIR_RETURN_IF_ERROR(mesh_->Arm());
  bool found = false;
  (void)mesh_->TakeCompletions(RealClock().Now(), &found);
  return Poll(found ? Duration::zero() : timeout);
}

// A disconnect also wakes peers that still connect to others and read no messages.
void VerbsTransport::EndSending() {
  for (Peer& peer : mesh_->peers()) {
    if (peer.connected) verbs::Rdma().rdma_disconnect(peer.id.get());
    peer.connected = false;
  }
}

void VerbsTransport::Disconnect() {
  MutexLock lock(samples_mutex_);
  sampled_ = false;
  mesh_.reset();
}

std::vector<PathSample> VerbsTransport::Samples() const {
  std::vector<PathSample> samples;
  MutexLock lock(samples_mutex_);
  if (!sampled_) return samples;
  for (int r = 0; r < world(); ++r) {
    if (r == rank()) continue;
    const verbs::Stream& stream = *mesh_->peers()[r].stream;
    PathSample sample;  // devices measure no round-trip time
    sample.peer = r;
    sample.medium = "verbs";
    sample.bytes_acked = stream.bytes_acked();
    sample.bytes_received = stream.bytes_received();
    samples.push_back(sample);
  }
  return samples;
}

// ---- making one

Status RequireKey(const TransportOptions& options) {
  if (options.job_key.has_value() || options.unauthenticated || options.world <= 1 ||
      IsLoopbackAddress(options.listen)) {
    return OkStatus();
  }
  return FailedPrecondition(StrCat("transport verbs at ", options.listen,
                                   " reaches its peers over a network: ", mesh::kKeyAdvice));
}

class VerbsFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }

  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    WEIR_ASSIGN_OR_RETURN(mesh::MeshParts parts, mesh::MakeMeshParts(options));
    WEIR_RETURN_IF_ERROR(RequireKey(options));
    WEIR_ASSIGN_OR_RETURN(verbs::ChannelPtr channel, verbs::OpenEventChannel());
    WEIR_ASSIGN_OR_RETURN(verbs::CmIdPtr listener,
                          verbs::ListenAt(options.listen, options.world + 64, channel.get()));
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                          verbs::Device::Open(listener.get(), options));
    const std::pair<int, Source> watched[] = {
        {device->completion_channel()->fd, Source::kCompletion},
        {channel->fd, Source::kConnection},
        {device->context()->async_fd, Source::kDevice}};
    for (const auto& [fd, source] : watched) {
      WEIR_RETURN_IF_ERROR(parts.events->Add(fd, EPOLLIN, static_cast<uint64_t>(source)));
    }
    parts.address = verbs::BoundAddress(listener.get());
    auto mesh = std::make_unique<Mesh>(options.rank, options.world, std::move(channel),
                                       std::move(listener), std::move(device));
    return std::make_unique<VerbsTransport>(std::move(parts), std::move(mesh));
  }

 private:
  const TransportTraits traits_ = {.name = "verbs",
                                   .lossless = true,
                                   .crosses_hosts = true,
                                   .needs_device = true,
                                   .options = {&kBusyPollOption, 1}};
};

}  // namespace

void RegisterVerbs(Registry<TransportFactory>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<VerbsFactory>());
}

}  // namespace weir
