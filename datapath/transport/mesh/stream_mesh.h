// SPDX-License-Identifier: Apache-2.0
#pragma once
// A transport over one stream of bytes per peer, of whatever medium.

#include <memory>
#include <vector>

#include "datapath/transport/mesh/connection.h"
#include "datapath/transport/mesh/mesh_transport.h"
#include "datapath/transport/mesh/spin_budget.h"

namespace weir::mesh {

/// The parts of a mesh of streams that exist before it is connected.
struct StreamMeshParts {
  MeshParts mesh;
  UniqueFd listener;  // the listening TCP socket
};

/// Checks the options and listens. Errors are those of MakeMeshParts and Listen.
StatusOr<StreamMeshParts> MakeStreamMeshParts(const TransportOptions& options);

/// The stream to one peer; empty for this rank.
struct PeerStream {
  std::unique_ptr<ByteStream> stream;
  FrameChannel channel;  // empty without a job key, and for shared memory
};
using Streams = std::vector<PeerStream>;  // by rank

/// How many of `ranks` on this host there are for each core that this process may use, rounded up.
int RanksPerCore(size_t ranks);

class StreamMesh : public MeshTransport {
 public:
  explicit StreamMesh(StreamMeshParts parts);
  ~StreamMesh() override;

  std::vector<ArrivalSample> TakeArrivals() override;
  std::vector<PathSample> Samples() const override;

 protected:
  /// Connects to every peer. addresses.size() is the world.
  virtual StatusOr<Streams> MakeStreams(const std::vector<TransportAddress>& addresses,
                                        TimePoint deadline) = 0;
  int listener() const { return listener_.get(); }
  /// Adds a descriptor whose events only end a sleep.
  Status AddEventFd(int fd);

 private:
  Status Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) override;
  Peer* peer(int rank) override { return connections_[rank].get(); }
  Status DriveAll(TimePoint now, bool* progress) override;
  Status Rest(const Operation* awaited, TimePoint now, TimePoint deadline, bool progress) override;
  void DriveShutdownNotice(TimePoint now, bool* progress) override;
  Status RestInShutdownNotice(Duration timeout) override {
    return Poll({.receives = false}, timeout);
  }
  void EndSending() override;
  void Disconnect() override;
  Status CheckAuthenticated(const std::vector<TransportAddress>& addresses, const Streams& streams);
  Status LookForSilence(TimePoint now);
  StatusOr<bool> Spin(const Operation& awaited, TimePoint now);
  StatusOr<bool> Look(const Operation& awaited, TimePoint now, unsigned turn);
  StatusOr<int> TakeEvents(Duration timeout);
  Status Poll(const Connection::Interest& interest, Duration timeout);
  void Linger(Duration bound);

  UniqueFd listener_;
  SpinBudget spin_;
  bool crowded_ = true;                                   // more ranks than cores on this host
  TimePoint next_look_{};                                 // the next check for silent hosts
  std::vector<std::unique_ptr<Connection>> connections_;  // by rank; null for this rank
  std::vector<Connection*> shared_;                       // those over shared memory

  mutable Mutex streams_mutex_;  // only keeps the streams alive during Samples
  std::vector<std::unique_ptr<ByteStream>> streams_ WEIR_GUARDED_BY(streams_mutex_);
};

}  // namespace weir::mesh
