// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/shm.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "datapath/base/log.h"
#include "datapath/transport/builtin/shm/attach.h"
#include "datapath/transport/builtin/shm/ring_stream.h"
#include "datapath/transport/builtin/tcp/socket_stream.h"
#include "datapath/transport/mesh/hello.h"
#include "datapath/transport/mesh/rendezvous.h"
#include "datapath/transport/mesh/stream_mesh.h"
#include "datapath/transport/options.h"

namespace weir::shm {
namespace {

using mesh::UniqueFd;

// A ring fits in the second-level cache and holds two segments of the collectives. Where ranks
// outnumber the cores it is larger: a rank that can write all its data before the reader gets a
// core saves context switches. The rings of one rank have a common bound.
constexpr size_t kRingBytesDefault = 512 << 10, kRingBytesCrowded = 2 << 20;
constexpr size_t kRingBytesAtWorldMax = 64 << 10;
constexpr size_t kRankBytesMax = 16 << 20;

bool Crowded(size_t neighbours) { return mesh::RanksPerCore(neighbours + 1) > 1; }

/// The size of each ring of a rank that has `neighbours` on its node.
size_t RingBytes(const TransportOptions& options, size_t neighbours) {
  if (options.send_buffer_bytes > 0) {
    const auto wanted = static_cast<size_t>(options.send_buffer_bytes);
    return std::bit_ceil(std::clamp(wanted, kRingBytesMin, kRingBytesMax));
  }
  const size_t most = Crowded(neighbours) ? kRingBytesCrowded : kRingBytesDefault;
  const size_t share = kRankBytesMax / (neighbours + 1);
  return std::clamp(std::bit_floor(share), kRingBytesAtWorldMax, most);
}

class ShmMesh : public mesh::StreamMesh {
 public:
  ShmMesh(mesh::StreamMeshParts parts, Otherwise otherwise)
      : StreamMesh(std::move(parts)), otherwise_(otherwise) {}

  const StagingBuffers* staging() const override {
    return staging_.own.empty() ? nullptr : &staging_;
  }

 protected:
  StatusOr<mesh::Streams> MakeStreams(const std::vector<TransportAddress>& addresses,
                                      TimePoint deadline) override;

 private:
  Status OpenRendezvous(mesh::Neighbourhood* own);
  StatusOr<mesh::Streams> Attach(const std::vector<TransportAddress>& addresses, TimePoint deadline,
                                 mesh::Rendezvous& rendezvous, std::vector<mesh::Sockets>& sockets);
  Status Demand(const std::vector<TransportAddress>& addresses,
                std::vector<AttachResult>& results) const;
  UniqueFd MakeOwnStaging();
  void SetStaging(std::vector<AttachResult>& results);

  const Otherwise otherwise_;
  uint32_t node_ = 0;  // as told to peers; 0: this rank shares no memory
  UniqueFd rendezvous_;
  UniqueFd event_fd_;
  std::string no_memory_;  // why this rank cannot share memory; empty: it can
  SealedMemory own_staging_;
  std::vector<SealedMemory> peer_staging_;
  StagingBuffers staging_;  // views of the two above; empty: some rank lacks a buffer
};

// Makes what neighbours need to reach this rank. This happens in Connect and not in Create, because
// peers take the process that listens at a Unix socket for the rank, and the caller may fork
// between.
Status ShmMesh::OpenRendezvous(mesh::Neighbourhood* own) {
  const uint32_t node = NodeIdentity();
  const std::string name = NewRendezvousName();
  if (node == 0 || name.empty()) return Unavailable("the system does not tell the node's identity");
  event_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_fd_) return Unavailable(StrCat("eventfd: ", mesh::ErrorText(errno)));
  WEIR_ASSIGN_OR_RETURN(rendezvous_, ListenAtRendezvous(name, options().world + 64));
  WEIR_RETURN_IF_ERROR(AddEventFd(event_fd_.get()));
  *own = {node, name};
  node_ = node;
  return OkStatus();
}

StatusOr<mesh::Streams> ShmMesh::MakeStreams(const std::vector<TransportAddress>& addresses,
                                             TimePoint deadline) {
  mesh::Neighbourhood own;
  if (options().world > 1) no_memory_ = weir::Message(OpenRendezvous(&own));
  mesh::Rendezvous rendezvous(options(), listener(), wake(), own);
  WEIR_ASSIGN_OR_RETURN(std::vector<mesh::Sockets> sockets, rendezvous.Run(addresses, deadline));
  StatusOr<mesh::Streams> streams = Attach(addresses, deadline, rendezvous, sockets);
  rendezvous_ = UniqueFd();
  if (streams.ok()) return streams;
  for (int r = 0; r < world(); ++r) {
    if (sockets[r].empty()) continue;
    FrameSealer* const sealer = rendezvous.channel(r).sealer.get();
    mesh::WriteFrame(sockets[r].front().get(),
                     mesh::EncodeAbort(rank(), weir::Message(streams.status()), sealer));
  }
  return streams;
}

StatusOr<mesh::Streams> ShmMesh::Attach(const std::vector<TransportAddress>& addresses,
                                        TimePoint deadline, mesh::Rendezvous& rendezvous,
                                        std::vector<mesh::Sockets>& sockets) {
  std::vector<AttachResult> results(sockets.size());
  std::vector<Neighbour> neighbours;
  for (int r = 0; r < world(); ++r) {
    if (r == rank()) continue;
    const mesh::Neighbourhood& peer = rendezvous.neighbour(r);
    if (node_ != 0 && peer.node == node_ && (r > rank() || !peer.rendezvous.empty())) {
      neighbours.push_back({r, addresses[r], sockets[r].front().get(), peer.rendezvous,
                            &rendezvous.channel(r), rendezvous.memory_secret(r)});
    } else if (!no_memory_.empty()) {
      results[r].why_not = StrCat("this rank cannot share memory: ", no_memory_);
    } else {
      results[r].why_not =
          peer.node == 0 ? "it shares none" : "it has another node, user or network namespace";
    }
  }
  std::vector<int> ranks;
  for (const Neighbour& neighbour : neighbours) ranks.push_back(neighbour.rank);
  UniqueFd own_staging;
  if (world() > 1 && neighbours.size() + 1 == results.size()) own_staging = MakeOwnStaging();
  Attacher attacher({.job = options().job,
                     .rank = rank(),
                     .world = world(),
                     .ring_bytes = RingBytes(options(), neighbours.size()),
                     .rendezvous = &rendezvous_,
                     .event_fd = event_fd_.get(),
                     .wake = wake(),
                     .staging = own_staging.get()});
  WEIR_ASSIGN_OR_RETURN(std::vector<AttachResult> attached,
                        attacher.Run(std::move(neighbours), deadline));
  for (size_t i = 0; i < ranks.size(); ++i) results[ranks[i]] = std::move(attached[i]);
  WEIR_RETURN_IF_ERROR(Demand(addresses, results));
  if (attacher.all_staging()) {
    SetStaging(results);
  } else {
    own_staging_ = SealedMemory();
  }
  mesh::Streams streams(sockets.size());
  for (int r = 0; r < world(); ++r) {
    if (results[r].attachment != nullptr) {
      streams[r].stream =
          MakeRingStream(std::move(*results[r].attachment),
                         Crowded(ranks.size()) ? kDirectReadBytesMin : kDirectReadBytesMinApart);
    } else if (r != rank()) {
      // The higher rank logs for the pair, as a warning only where shared memory was expected.
      const bool tried = r < rank() && std::find(ranks.begin(), ranks.end(), r) != ranks.end();
      Log(tried ? LogLevel::kWarning : LogLevel::kDebug, "transport",
          StrCat("rank ", rank(), " reaches rank ", r, " (", addresses[r],
                 ") by tcp: ", results[r].why_not));
      streams[r] = {tcp::MakeStream(std::move(sockets[r]), options()),
                    std::move(rendezvous.channel(r))};
    }
  }
  return streams;
}

// Returns none where the system does not permit it; then sums use messages alone.
UniqueFd ShmMesh::MakeOwnStaging() {
  UniqueFd fd;
  StatusOr<SealedMemory> memory =
      SealedMemory::Create(kStagingBytes, SealedMemory::Peers::kRead, &fd);
  if (memory.ok()) {
    own_staging_ = std::move(*memory);
    return fd;
  }
  Log(LogLevel::kWarning, "transport",
      StrCat("rank ", rank(), " has no staging buffer: ", weir::Message(memory.status())));
  return UniqueFd();
}

void ShmMesh::SetStaging(std::vector<AttachResult>& results) {
  staging_.own = own_staging_.bytes();
  for (int r = 0; r < world(); ++r) {
    if (r != rank()) peer_staging_.push_back(std::move(results[r].attachment->staging));
    staging_.of.push_back(r == rank() ? staging_.own : peer_staging_.back().bytes());
  }
}

// For the transport shm, which requires shared memory for every pair. If a pair lacks it, the ranks
// that are attached are told why this rank leaves.
Status ShmMesh::Demand(const std::vector<TransportAddress>& addresses,
                       std::vector<AttachResult>& results) const {
  if (otherwise_ == Otherwise::kTcp) return OkStatus();
  Status lacking = OkStatus();
  for (int r = 0; r < world() && lacking.ok(); ++r) {
    if (r == rank() || results[r].attachment != nullptr) continue;
    lacking = FailedPrecondition(StrCat("rank ", rank(), " has no shared memory with rank ", r,
                                        " (", addresses[r], "): ", results[r].why_not,
                                        "; transport auto would use tcp"));
  }
  if (lacking.ok()) return lacking;
  std::vector<std::byte> frame = mesh::EncodeAbort(rank(), weir::Message(lacking));
  for (AttachResult& result : results) {
    if (result.attachment == nullptr) continue;
    const auto stream = MakeRingStream(std::move(*result.attachment));
    const iovec part = {frame.data(), frame.size()};
    stream->Write(std::span(&part, 1));  // an error does not matter: the end of the stream follows
    stream->CloseWrite();
  }
  return lacking;
}

class ShmFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }
  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    return MakeMesh(options, Otherwise::kFail);
  }

 private:
  const TransportTraits traits_ = {
      .name = "shm", .lossless = true, .crosses_hosts = false, .options = {&kBusyPollOption, 1}};
};

}  // namespace

StatusOr<std::unique_ptr<Transport>> MakeMesh(const TransportOptions& options,
                                              Otherwise otherwise) {
  WEIR_ASSIGN_OR_RETURN(mesh::StreamMeshParts parts, mesh::MakeStreamMeshParts(options));
  return std::make_unique<ShmMesh>(std::move(parts), otherwise);
}

}  // namespace weir::shm

namespace weir {

void RegisterShm(Registry<TransportFactory>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<shm::ShmFactory>());
}

}  // namespace weir
