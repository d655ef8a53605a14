// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communicator runs the classic operations between ranks (point-to-point, barrier, broadcast,
// reductions, gathers) exactly and uncompressed, with or without a Session. Collectives run one
// after another in the order of submission, on one thread and one transport. Point-to-point
// messages have another thread and another transport, so that they progress while a collective
// waits. A single transport is not enough, because a posted receive takes the next frame of its
// peer, so it must know the kind of that frame.

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
  std::string job;  // the same on all ranks; differs from other communicators'
  int rank = 0;
  int world = 1;                            // at most kPointToPointWorldMax
  std::string transport = "auto";           // with options, as ParseTransport takes them
  TransportAddress listen = "127.0.0.1:0";  // messages use any port of this host
  Duration operation_timeout = std::chrono::seconds(60);
  Duration connect_timeout = std::chrono::seconds(60);
  std::optional<JobKey> job_key;  // this and the following are as in TransportOptions
  bool encrypt = false, unauthenticated = false;
};

/// The most collectives that wait to run. kMessagesMax bounds messages.
inline constexpr size_t kCollectivesQueued = 1024;

/// One rank's end. Thread-safe except for Connect, during which only InterruptConnect is allowed.
/// Operations return when queued. kInvalidArgument and kFailedPrecondition say why an operation was
/// not queued, kResourceExhausted that too many wait; `done` is not called then. Buffers must stay
/// valid and unchanged until `done`, which is called once, on a thread of the communicator, and
/// must not wait for another operation. Where memory runs out, `done` may be destroyed without a
/// call.
/// Every rank must submit the same collectives in the same order with the same sizes: a collective
/// that meets a different one fails with kInternal, naming both. Each runs for at most
/// operation_timeout. A failed collective fails all later ones, and a failed message (its deadline,
/// a dead peer) all later messages. Messages of errors name the rank at fault, on every rank.
///
/// Algorithms: all-reduce uses recursive doubling up to 16 KiB, a circulant graph up to 512 KiB,
/// and then a ring; reduce-scatter and all-gather use a circulant graph; broadcast uses a tree, and
/// from 1 MiB on a chain; barrier uses dissemination. Results of reductions have the same bits on
/// every rank. Cost formulas: datapath/collective.
class Communicator {
 public:
  /// `peer` is the other rank of a message, or -1 for collectives.
  using Done = std::function<void(const Status& status, int peer)>;

  /// Listens. kNotFound lists the transports, or the options of the named one; kInvalidArgument: an
  /// option is wrong.
  static StatusOr<std::unique_ptr<Communicator>> Create(CommunicatorOptions options);
  ~Communicator();

  int rank() const { return options_.rank; }
  int world() const { return options_.world; }
  const CommunicatorOptions& options() const { return options_; }
  /// The address at which peers reach this rank: those of both transports, separated by a comma.
  const std::string& address() const { return address_; }

  /// Connects to all ranks; addresses[r] is that of rank r. Every rank calls it once. Errors as
  /// Transport::Connect.
  Status Connect(const std::vector<std::string>& addresses);
  /// Lets Connect, which runs or is still to be called, return kAborted soon. Not to be called at
  /// the same time as Close.
  void InterruptConnect();
  /// Ends running operations with kAborted and joins the threads, within 5 s. Later operations
  /// fail. A second call has no effect.
  void Close();

  /// Replaces every rank's data by the reduction over all ranks. Data consists of whole, aligned
  /// elements.
  Status AllReduce(std::span<std::byte> data, ElementType type, ReduceOperation operation,
                   Done done);
  /// The same for `root` only; the data of other ranks is not changed.
  Status Reduce(std::span<std::byte> data, ElementType type, ReduceOperation operation, int root,
                Done done);
  /// `all` has one part of own.size() bytes per rank. Sets `own` to the reduction of part `rank`.
  /// `all` is copied and so not changed.
  Status ReduceScatter(std::span<const std::byte> all, std::span<std::byte> own, ElementType type,
                       ReduceOperation operation, Done done);
  /// Sets part r of `all` (own.size() bytes each) to `own` of rank r. `own` may be at its place in
  /// `all`.
  Status AllGather(std::span<const std::byte> own, std::span<std::byte> all, Done done);
  Status Broadcast(std::span<std::byte> data, int root, Done done);
  /// Sends outgoing[r] to rank r and receives incoming[r] from it. Both have one entry per rank,
  /// and sizes must agree pairwise. Gather and scatter are special cases with empty entries.
  Status AllToAll(std::vector<std::span<const std::byte>> outgoing,
                  std::vector<std::span<std::byte>> incoming, Done done);
  Status Barrier(Done done);

  /// Sends a message to rank `peer`; done when its bytes have been sent. Errors:
  /// PointToPointMessage::done.
  Status Send(std::span<const std::byte> data, int peer, uint64_t tag, Done done);
  /// Receives the next message with `tag` from rank `peer` or kAnyRank, of exactly data.size()
  /// bytes.
  Status Receive(std::span<std::byte> data, int peer, uint64_t tag, Done done);

  /// Bytes passed to the network since Connect; 0 after Close.
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
    uint64_t identity = 0;  // sent in the place of a session's bucket key
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
  /// The status for the caller of a collective, given `failure`, which may be OK.
  Status Explain(Status failure, const Collective& failed, uint64_t sequence) const;
  void RunCollectives();
  void RunMessages();
  void ServeMessages();

  const CommunicatorOptions options_;
  const Status no_memory_;  // names this rank; made while there is enough memory
  std::unique_ptr<PointToPoint> point_to_point_;  // must outlive its transport
  mutable Mutex transports_mutex_;  // guards only the transports' lifetime against callers
  std::unique_ptr<Transport> collectives_, messages_;
  const std::string address_;
  bool connected_ = false;
  std::atomic<bool> open_ = false;
  std::atomic<bool> closing_ = false;
  BoundedQueue<Collective> queue_{kCollectivesQueued};
  std::vector<std::byte> work_;  // copies; outlives a failure that may leave it posted
  BoundedQueue<Order> orders_{kMessagesMax};
  std::thread collectives_thread_, messages_thread_;
};

}  // namespace weir
