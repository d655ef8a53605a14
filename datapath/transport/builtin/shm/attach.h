#pragma once
// Moves pairs of ranks from their TCP connection to shared memory. Being on one node is not
// believed but tried: the higher rank of a pair knocks at the lower one's door, hands over the
// memory, and tells over TCP what came of it, so both ends always agree. Then all of them tell each
// other whether every rank reaches every stage. Bytes: proto/WIRE.md section 1.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datapath/transport/builtin/shm/door.h"
#include "datapath/transport/builtin/shm/sealed_memory.h"
#include "datapath/transport/builtin/shm/segment.h"
#include "datapath/wire/frame_seal.h"

namespace weir::shm {

/// What a pair of ranks shares once attached.
struct Attachment {
  Segment segment;
  bool created = false;      // this rank made the segment and writes ring 0
  mesh::UniqueFd control;    // unix socket: its end is the peer's end
  pid_t peer = 0;            // 0: hidden from this process
  mesh::UniqueFd process;    // pidfd of the peer; may be none
  mesh::UniqueFd peer_bell;  // wakes the peer
  SealedMemory stage;        // the peer's, to be read; none when it has none
};

/// A peer that said it has the same node, reached by TCP.
struct Neighbour {
  int rank = -1;
  TransportAddress address;
  int socket = -1;                  // TCP, no data sent yet
  std::string door;                 // of lower ranks
  FrameChannel* channel = nullptr;  // of the socket; without sealer where the job has no key
  Secret secret = {};               // that of both ranks for shared memory, then
};

/// What came of one neighbour: an attachment, or why there is none.
struct AttachResult {
  std::unique_ptr<Attachment> attachment;
  std::string why_not;
};

struct AttachOptions {
  uint64_t job = 0;
  int rank = 0;
  int world = 1;
  size_t ring_bytes = 0;
  mesh::UniqueFd* door = nullptr;  // listening; closed where nobody more can be let in
  int bell = -1;                   // this rank's eventfd
  int wake = -1;                   // readable on Interrupt
  int stage = -1;                  // this rank's, of kStageBytes; -1: it has none
};

/// Size of a stage (Transport::stages): an N-th of one is still long for some tens of ranks. Memory
/// that nobody touches is none.
inline constexpr size_t kStageBytes = 8 << 20;

/// One run of attaching. Not thread-safe.
class Attacher {
 public:
  explicit Attacher(const AttachOptions& options);
  ~Attacher();

  /// Results in the order of `neighbours`. Both ends of a pair get an attachment or neither does.
  /// kUnavailable: a neighbour died or reported a failure; kDataLoss: one spoke nonsense over TCP;
  /// kDeadlineExceeded names those that did not finish; kAborted: interrupted.
  StatusOr<std::vector<AttachResult>> Run(std::vector<Neighbour> neighbours, TimePoint deadline);
  /// After Run: whether every rank of the world is attached to every other and has its stage. All
  /// attached ranks find the same.
  bool all_stages() const { return all_stages_; }

 private:
  struct Link;   // the way to one neighbour
  struct Guest;  // came to the door, has not said who it is

  void Knock(Link& link);
  Status Offer(Link& link);
  Status Tell(Link& link, bool attached, std::string why_not);
  Status SendTold(const Link& link, std::span<const std::byte> payload);
  Status OnAnswer(Link& link);
  Status TakeAnswer(Link& link, Letter letter);
  StatusOr<std::optional<std::span<const std::byte>>> ReadTold(Link& link);
  Status OnVerdict(Link& link);
  Status TellOfStages(Link& link, bool has_all);
  Status OnStages(Link& link);
  Status RunUntilDone(TimePoint deadline);
  void Admit();
  void OnGuest(Guest& guest);
  Status Welcome(Guest& guest, Letter letter);
  Status Round(TimePoint deadline);
  Status Unfinished() const;

  const AttachOptions options_;
  std::vector<Link> links_;
  std::vector<Guest> guests_;
  bool all_stages_ = false;
};

}  // namespace weir::shm
