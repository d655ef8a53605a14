// SPDX-License-Identifier: Apache-2.0
#pragma once
// The connections of one rank to all others, and all sources of their events: completions, the
// connection manager and the device.

#include <optional>
#include <vector>

#include "datapath/transport/builtin/verbs/queue_pair.h"

namespace weir::verbs {

/// The connection to one rank. Members are in the order in which they are made, so that the last
/// one is destroyed first.
struct Peer {
  CmIdPtr id;
  std::unique_ptr<QueuePair> pair;
  std::unique_ptr<Stream> stream;
  bool connected = false;    // a disconnect would mean something to the peer
  bool lost = false;         // disconnected, or its queue pair failed
  std::string lost_because;  // empty: disconnected
};

/// A copy of an event of the connection manager, so that the original can be acknowledged at once.
struct ConnectionEvent {
  rdma_cm_event_type type;
  rdma_cm_id* id = nullptr;
  int rank = -1;  // of the peer whose id it is; -1 for requests
  int status = 0;
  std::vector<std::byte> private_data;
};

/// Not thread-safe.
class Mesh {
 public:
  Mesh(int rank, int world, ChannelPtr channel, CmIdPtr listener, std::unique_ptr<Device> device);
  ~Mesh();

  rdma_event_channel* channel() const { return channel_.get(); }
  Device& device() { return *device_; }
  std::vector<Peer>& peers() { return peers_; }

  /// A fresh id for dialing `rank`, kept in its Peer.
  Status NewId(int rank);
  /// Keeps the id of a request from `rank`.
  void TakeId(int rank, rdma_cm_id* id);
  /// The queue pair of peers()[rank].id, which is bound to this device.
  Status MakePair(int rank);
  /// The stream over that pair; `address` is for messages; `channel` as of Stream.
  void MakeStream(int rank, const std::string& address, const Window& theirs, FrameChannel channel);
  /// Ends the connection without a shutdown notice and forgets it.
  void Drop(int rank);
  void StopListening() { listener_.reset(); }

  /// The next event of the connection manager, if there is one. It concerns a present id.
  StatusOr<std::optional<ConnectionEvent>> NextEvent();
  /// Marks the peers that the device reports as failed. kUnavailable: the device itself failed.
  Status TakeDeviceEvents();
  /// Gives every completion to its stream and marks lost peers. Streams' errors; all completions
  /// are handled even then.
  Status TakeCompletions(TimePoint now, bool* progress);
  /// Makes the next completion wake the completion channel.
  Status Arm();
  /// Reads off the completion channel.
  void TakeWakeUps();

 private:
  Status OnCompletion(const ibv_wc& completion, TimePoint now);

  const int rank_;
  const ChannelPtr channel_;
  CmIdPtr listener_;
  const std::unique_ptr<Device> device_;
  std::vector<Peer> peers_;  // by rank; an empty one for the own
  std::vector<uint16_t> generations_;
  bool armed_ = false;
};

}  // namespace weir::verbs
