#pragma once
// A communicator runs the classic operations between ranks (point-to-point, barrier, broadcast,
// reductions, gathers) exactly and uncompressed, beside a Session or without one. Collectives run
// one after another in the order submitted, on one thread and one transport; point-to-point
// messages have a thread and a transport of their own, so that they progress whatever a collective
// waits for. Two transports and not one, because a posted receive takes the next frame of its peer,
// whose kind its poster must know.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/bounded_queue.h"
#include "datapath/collective/group.h"
#include "datapath/communicator/point_to_point.h"
#include "datapath/communicator/reduction.h"
#include "datapath/transport/transport.h"

namespace weir {

struct CommunicatorOptions {
  std::string job;  // equal on all ranks, unlike that of any other communicator between them
  int rank = 0;
  int world = 1;                            // at most kPointToPointWorldMax
  std::string transport = "auto";           // and its options, as ParseTransport takes them
  TransportAddress listen = "127.0.0.1:0";  // messages take any port of the same host
  Duration operation_timeout = std::chrono::seconds(60);
  Duration connect_timeout = std::chrono::seconds(60);
  std::optional<JobKey> job_key;  // this and the following as in TransportOptions
  bool encrypt = false, unauthenticated = false;
};

/// Collectives that wait to run; messages are bounded by kMessagesMax.
inline constexpr size_t kCollectivesQueued = 1024;

/// One rank's end. Thread-safe but for Connect, which comes alone. Operations return when
/// queued: kInvalidArgument and kFailedPrecondition say why one was not, kResourceExhausted that
/// too many wait; then nothing will call `done`. Buffers stay alive and untouched until `done`,
/// which is called once, on a thread of the communicator, and must not wait for another operation;
/// where memory runs out it may be destroyed without a call instead.
/// Every rank submits the same collectives in the same order with the same sizes: an operation that
/// meets an unlike one fails with kInternal naming both. Each runs at most operation_timeout long.
/// A failed collective fails all later ones, a failed message (its deadline, a dead peer) all later
/// messages; texts name the rank at fault on every rank.
///
/// What runs: all-reduce by recursive doubling up to 16 KiB, on a circulant graph up to 512 KiB,
/// then around a ring; reduce-scatter and all-gather on a circulant graph; broadcast along a tree,
/// from 1 MiB along a chain; barrier by dissemination. Results of reductions have the same bits on
/// every rank. Cost formulas: datapath/collective.
class Communicator {
 public:
  /// The other rank of a message; -1 for collectives.
  using Done = std::function<void(const Status& status, int peer)>;

  /// Listens. kNotFound lists the transports, or the options of the one named; kInvalidArgument.
  static StatusOr<std::unique_ptr<Communicator>> Create(CommunicatorOptions options);
  ~Communicator();

  int rank() const { return options_.rank; }
  int world() const { return options_.world; }
  const CommunicatorOptions& options() const { return options_; }
  /// Where peers reach this rank: both transports' addresses, with a comma between.
  const std::string& address() const { return address_; }

  /// Connects to all ranks; addresses[r] is rank r's. Every rank calls it once. Errors as
  /// Transport::Connect.
  Status Connect(const std::vector<std::string>& addresses);
  /// Ends what is under way with kAborted and joins the threads, within 5 s; operations fail from
  /// then on. A second call does nothing.
  void Close();

  /// Every rank's data becomes the reduction over all ranks. Whole elements, aligned.
  Status AllReduce(std::span<std::byte> data, ElementType type, ReduceOperation operation,
                   Done done);
  /// The same for `root` only; the data of the others stay.
  Status Reduce(std::span<std::byte> data, ElementType type, ReduceOperation operation, int root,
                Done done);
  /// `all` holds one run of own.size() bytes per rank; `own` becomes the reduction of run `rank`. A
  /// copy of `all` is made, so it stays.
  Status ReduceScatter(std::span<const std::byte> all, std::span<std::byte> own, ElementType type,
                       ReduceOperation operation, Done done);
  /// Run r of `all` (own.size() bytes each) becomes rank r's `own`, which may be its place in
  /// `all`.
  Status AllGather(std::span<const std::byte> own, std::span<std::byte> all, Done done);
  Status Broadcast(std::span<std::byte> data, int root, Done done);
  /// outgoing[r] goes to rank r, incoming[r] comes from it; sizes must agree pairwise, world
  /// entries each. Gather and scatter are cases of it with empty entries.
  Status AllToAll(std::vector<std::span<const std::byte>> outgoing,
                  std::vector<std::span<std::byte>> incoming, Done done);
  Status Barrier(Done done);

  /// A message to rank `peer`; done when its bytes have left. Errors: PointToPointMessage::done.
  Status Send(std::span<const std::byte> data, int peer, uint64_t tag, Done done);
  /// The next message with `tag` from rank `peer` or kAnyRank, of exactly data.size() bytes.
  Status Receive(std::span<std::byte> data, int peer, uint64_t tag, Done done);

  /// Bytes handed to the network since Connect; 0 after Close.
  uint64_t bytes_sent() const;

 private:
  enum class Kind : uint64_t {
    kAllReduce = 1,
    kReduce,
    kReduceScatter,
    kAllGather,
    kBroadcast,
    kAllToAll,
    kBarrier
  };
  struct Collective {
    const char* name = "";
    uint64_t identity = 0;  // travels where a session's frames carry the bucket
    std::function<Status(Group&)> run;
    Done done;
  };
  struct Order {
    bool sends;
    PointToPointMessage message;
  };

  Communicator(CommunicatorOptions options, std::unique_ptr<Transport> collectives,
               std::unique_ptr<Transport> messages);
  Status Submit(Collective collective);
  Status SubmitMessage(bool sends, PointToPointMessage message);
  Status CheckRank(int rank, const char* name) const;
  /// What the caller of a collective is told of `failure`, which may be OK.
  Status Explain(Status failure, const Collective& failed, uint64_t sequence) const;
  void RunCollectives();
  void RunMessages();
  void ServeMessages();

  const CommunicatorOptions options_;
  const Status no_memory_;  // names this rank; made while there is memory for it
  std::unique_ptr<PointToPoint> point_to_point_;  // outlives its transport
  mutable Mutex transports_mutex_;  // guards their lifetime against callers, nothing else
  std::unique_ptr<Transport> collectives_, messages_;
  const std::string address_;
  bool connected_ = false;
  std::atomic<bool> open_ = false;
  std::atomic<bool> closing_ = false;
  BoundedQueue<Collective> queue_{kCollectivesQueued};
  std::vector<std::byte> work_;  // copies; lives past the failure that may leave it posted
  BoundedQueue<Order> orders_{kMessagesMax};
  std::thread collectives_thread_, messages_thread_;
};

}  // namespace weir
