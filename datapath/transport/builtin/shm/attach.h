// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moves pairs of ranks from their TCP connection to shared memory. Ranks do not trust the claim
// that they are on one node, they try it: the higher rank of a pair connects to the lower one's
// rendezvous socket, passes the memory over, and reports the outcome over TCP, so both ends always
// agree. Then all of them tell each other whether every rank maps every staging buffer. Bytes:
// proto/WIRE.md section 1.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datapath/transport/builtin/shm/rendezvous_socket.h"
#include "datapath/transport/builtin/shm/sealed_memory.h"
#include "datapath/transport/builtin/shm/segment.h"
#include "datapath/wire/frame_seal.h"

namespace weir::shm {

/// The objects that a pair of ranks shares once attached.
struct Attachment {
  Segment segment;
  bool created = false;          // this rank made the segment and writes ring 0
  mesh::UniqueFd control;        // unix socket: its end is the peer's end
  pid_t peer = 0;                // 0: hidden from this process
  mesh::UniqueFd process;        // pidfd of the peer; may be none
  mesh::UniqueFd peer_event_fd;  // wakes the peer
  SealedMemory staging;          // the peer's staging buffer, read-only; may be none
};

/// A peer that said it has the same node, reached by TCP.
struct Neighbour {
  int rank = -1;
  TransportAddress address;
  int socket = -1;                  // TCP, no data sent yet
  std::string rendezvous;           // the name of its socket, of lower ranks
  FrameChannel* channel = nullptr;  // of the socket; without sealer where the job has no key
  Secret secret = {};               // with a key: what both ranks hold for shared memory
};

/// The outcome for one neighbour: an attachment, or why there is none.
struct AttachResult {
  std::unique_ptr<Attachment> attachment;
  std::string why_not;
};

struct AttachOptions {
  uint64_t job = 0;
  int rank = 0;
  int world = 1;
  size_t ring_bytes = 0;
  mesh::UniqueFd* rendezvous = nullptr;  // listening; closed when no more descriptors can be had
  int event_fd = -1;                     // wakes this rank
  int wake = -1;                         // readable on Interrupt
  int staging = -1;                      // this rank's, of kStagingBytes; -1: it has none
};

/// Size of a staging buffer (Transport::staging). Large enough that an N-th of it is still long for
/// some tens of ranks; pages that nobody touches take no memory.
inline constexpr size_t kStagingBytes = 8 << 20;

/// One run of attaching. Not thread-safe.
class Attacher {
 public:
  explicit Attacher(const AttachOptions& options);
  ~Attacher();

  /// Results in the order of `neighbours`. Both ends of a pair get an attachment or neither does.
  /// kUnavailable: a neighbour died or reported a failure; kDataLoss: one sent malformed data over
  /// TCP; kDeadlineExceeded names those that did not finish; kAborted: interrupted.
  StatusOr<std::vector<AttachResult>> Run(std::vector<Neighbour> neighbours, TimePoint deadline);
  /// After Run: whether every rank of the world is attached to every other and has its staging
  /// buffer. All attached ranks get the same answer.
  bool all_staging() const { return all_staging_; }

 private:
  struct Link;         // the state of one neighbour
  struct PendingPeer;  // has connected to the rendezvous socket, has not said who it is

  void StartHandshake(Link& link);
  Status Offer(Link& link);
  Status Tell(Link& link, bool attached, std::string why_not);
  Status SendTold(const Link& link, std::span<const std::byte> payload);
  Status OnAnswer(Link& link);
  Status TakeAnswer(Link& link, HandshakeMessage message);
  StatusOr<std::optional<std::span<const std::byte>>> ReadTold(Link& link);
  Status OnVerdict(Link& link);
  Status TellOfStaging(Link& link, bool has_all);
  Status OnStaging(Link& link);
  Status RunUntilDone(TimePoint deadline);
  void Admit();
  void OnPendingPeer(PendingPeer& pending);
  Status Accept(PendingPeer& pending, HandshakeMessage message);
  Status Round(TimePoint deadline);
  Status Unfinished() const;

  const AttachOptions options_;
  std::vector<Link> links_;
  std::vector<PendingPeer> pending_;
  bool all_staging_ = false;
};

}  // namespace weir::shm
