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

namespace weir::shm {
namespace {

using mesh::UniqueFd;

// A ring stays in the second-level cache and holds two segments of the collectives. Where ranks
// outnumber the cores it is larger: a rank that can hand over all it has for another before that
// one gets a core saves both some switches. All rings of a rank have a bound.
constexpr size_t kRingBytesDefault = 512 << 10, kRingBytesCrowded = 2 << 20;
constexpr size_t kRingBytesAtWorldMax = 64 << 10;
constexpr size_t kRankBytesMax = 16 << 20;

bool Crowded(size_t neighbours) { return mesh::RanksPerCore(neighbours + 1) > 1; }

/// Of a rank with so many neighbours on its node.
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

  const Stages* stages() const override { return stages_.own.empty() ? nullptr : &stages_; }

 protected:
  StatusOr<mesh::Streams> MakeStreams(const std::vector<TransportAddress>& addresses,
                                      TimePoint deadline) override;

 private:
  Status OpenOwnDoor(mesh::Neighbourhood* own);
  StatusOr<mesh::Streams> Attach(const std::vector<TransportAddress>& addresses, TimePoint deadline,
                                 mesh::Rendezvous& rendezvous, std::vector<mesh::Sockets>& sockets);
  Status Demand(const std::vector<TransportAddress>& addresses,
                std::vector<AttachResult>& results) const;
  UniqueFd MakeOwnStage();
  void SetStages(std::vector<AttachResult>& results);

  const Otherwise otherwise_;
  uint32_t node_ = 0;  // as told to peers; 0: this rank shares no memory
  UniqueFd door_;
  UniqueFd bell_;
  std::string no_memory_;  // why this rank cannot share any; empty: it can
  SealedMemory own_stage_;
  std::vector<SealedMemory> peer_stages_;
  Stages stages_;  // views of these; empty: some rank lacks some
};

// Makes what neighbours need to reach this rank. Done in Connect, by the process that will run: a
// Unix socket names the process that listened.
Status ShmMesh::OpenOwnDoor(mesh::Neighbourhood* own) {
  const uint32_t node = NodeIdentity();
  const std::string name = NewDoor();
  if (node == 0 || name.empty()) return Unavailable("the system does not tell the node's identity");
  bell_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_) return Unavailable(StrCat("eventfd: ", mesh::ErrorText(errno)));
  WEIR_ASSIGN_OR_RETURN(door_, OpenDoor(name, options().world + 64));
  WEIR_RETURN_IF_ERROR(AddDoorbell(bell_.get()));
  *own = {node, name};
  node_ = node;
  return OkStatus();
}

StatusOr<mesh::Streams> ShmMesh::MakeStreams(const std::vector<TransportAddress>& addresses,
                                             TimePoint deadline) {
  mesh::Neighbourhood own;
  if (options().world > 1) no_memory_ = weir::Message(OpenOwnDoor(&own));
  mesh::Rendezvous rendezvous(options(), listener(), wake(), own);
  WEIR_ASSIGN_OR_RETURN(std::vector<mesh::Sockets> sockets, rendezvous.Run(addresses, deadline));
  StatusOr<mesh::Streams> streams = Attach(addresses, deadline, rendezvous, sockets);
  door_ = UniqueFd();
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
    if (node_ != 0 && peer.node == node_ && (r > rank() || !peer.door.empty())) {
      neighbours.push_back({r, addresses[r], sockets[r].front().get(), peer.door,
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
  UniqueFd own_stage;
  if (world() > 1 && neighbours.size() + 1 == results.size()) own_stage = MakeOwnStage();
  Attacher attacher({.job = options().job,
                     .rank = rank(),
                     .world = world(),
                     .ring_bytes = RingBytes(options(), neighbours.size()),
                     .door = &door_,
                     .bell = bell_.get(),
                     .wake = wake(),
                     .stage = own_stage.get()});
  WEIR_ASSIGN_OR_RETURN(std::vector<AttachResult> attached,
                        attacher.Run(std::move(neighbours), deadline));
  for (size_t i = 0; i < ranks.size(); ++i) results[ranks[i]] = std::move(attached[i]);
  WEIR_RETURN_IF_ERROR(Demand(addresses, results));
  if (attacher.all_stages()) {
    SetStages(results);
  } else {
    own_stage_ = SealedMemory();
  }
  mesh::Streams streams(sockets.size());
  for (int r = 0; r < world(); ++r) {
    if (results[r].attachment != nullptr) {
      streams[r].stream =
          MakeRingStream(std::move(*results[r].attachment),
                         Crowded(ranks.size()) ? kLoanBytesMin : kLoanBytesMinApart);
    } else if (r != rank()) {
      // The higher rank speaks for the pair, and only where memory was expected.
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

// None where the system does not permit it: sums then go by messages alone.
UniqueFd ShmMesh::MakeOwnStage() {
  UniqueFd fd;
  StatusOr<SealedMemory> memory =
      SealedMemory::Create(kStageBytes, SealedMemory::Peers::kRead, &fd);
  if (memory.ok()) {
    own_stage_ = std::move(*memory);
    return fd;
  }
  Log(LogLevel::kWarning, "transport",
      StrCat("rank ", rank(), " has no stage: ", weir::Message(memory.status())));
  return UniqueFd();
}

void ShmMesh::SetStages(std::vector<AttachResult>& results) {
  stages_.own = own_stage_.bytes();
  for (int r = 0; r < world(); ++r) {
    if (r != rank()) peer_stages_.push_back(std::move(results[r].attachment->stage));
    stages_.of.push_back(r == rank() ? stages_.own : peer_stages_.back().bytes());
  }
}

// Where memory is demanded of every pair: those who have it learn why this rank leaves all the
// same.
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
    stream->Write(std::span(&part, 1));  // best effort; its end says the rest
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
  const TransportTraits traits_ = {.name = "shm", .lossless = true, .crosses_hosts = false};
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
