// SPDX-License-Identifier: Apache-2.0
#pragma once
// One core's share of an aggregator: a socket, a thread, and the leases whose packets arrive there.

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/io/udp_port.h"
#include "datapath/base/mutex.h"
#include "datapath/base/random.h"

namespace weir::aggregation {

struct ShardOptions {
  int number = 0;  // used in messages and as the thread's name
  UdpPortOptions port;
  AggregatorLimits limits;
  /// For tests: each datagram is lost with this probability (0 to below 1), both when it arrives
  /// and when it is sent, drawn from `seed`.
  double drop = 0;
  uint64_t seed = 1;
};

/// Totals since the shard's start; they only increase.
struct ShardCounters {
  AggregatorCounters packets;
  UdpPortCounters port;
  uint64_t dropped = 0;    // injected losses
  Duration cpu_time = {};  // of the shard's thread
};

/// All packets are handled on the shard's own thread. Thread-safe.
class Shard : private ReplySink {
 public:
  /// As UdpPort::Bind.
  static StatusOr<std::unique_ptr<Shard>> Start(const ShardOptions& options);
  /// Ends the thread, within milliseconds.
  ~Shard() override;

  /// The address to which workers of its leases send.
  SourceAddress address() const { return port_->address(); }
  size_t packets_held() const { return port_->packets_held(); }

  /// The socket with that address, for programs that answer in the shard's name. It is closed with
  /// the shard.
  int socket() const { return port_->fd(); }

  /// Runs `work` on the shard's thread between two batches of packets and waits for it, usually
  /// some milliseconds. kDeadlineExceeded: it did not start within 5 s and never will.
  /// kUnavailable: the shard is ending.
  Status Call(const std::function<Status(Aggregator*)>& work);

  StatusOr<ShardCounters> Counters();

 private:
  struct Command {
    const std::function<Status(Aggregator*)>* work = nullptr;
    bool begun = false, done = false;
    Status result = {};
  };

  Shard(const ShardOptions& options, std::unique_ptr<UdpPort> port, mesh::UniqueFd wake);
  void Loop();
  void RunCommands() WEIR_EXCLUDES(mutex_);
  void Wake() const;
  bool Dropped();
  void Send(SourceAddress to, std::span<const std::byte> packet) override;
  void SendToAll(std::span<const SourceAddress> to, std::span<const std::byte> packet) override;

  const ShardOptions options_;
  const std::unique_ptr<UdpPort> port_;
  const mesh::UniqueFd wake_;  // an eventfd
  // Used by the shard's thread only.
  Aggregator aggregator_;
  Random random_;
  std::vector<SourceAddress> kept_;
  uint64_t dropped_ = 0;

  Mutex mutex_;
  CondVar answered_;
  std::vector<Command*> commands_ WEIR_GUARDED_BY(mutex_);  // one for each waiting caller
  std::atomic<bool> called_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // last, because it uses all of the above
};

}  // namespace weir::aggregation
