// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the time of NCCL's network transfers goes. NCCL reports for every transfer ("proxy step")
// when it begins to wait for what; this file adds the waits up, by function and size, for a sample
// of operations. NCCL's threads only do a few atomic additions: no lock, no allocation, and for
// operations outside of the sample one comparison.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "datapath/nccl/plugin/interface.h"

namespace weir::nccl::plugin {

enum class Function : uint8_t {
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kPointToPoint,
  kOther,
};
inline constexpr size_t kFunctions = 7;
/// "broadcast" ... "all_reduce", "point_to_point", "other".
const char* Name(Function function);

/// Class c has the sizes from 2^c bytes up to 2^(c+1), and the last one also all larger ones.
inline constexpr size_t kSizeClasses = 40;
size_t SizeClassOf(uint64_t bytes);

/// The causes for which a transfer can wait.
enum class Wait : uint8_t {
  kOwnGpu,   // sender: the GPU has not filled the buffer; receiver: it has not used the last data
  kPeer,     // sender: the receiver has no room
  kWire,     // sender: handed to the network and not yet gone
  kArrival,  // receiver: no data; whether the sender or the wire is late, only the sender knows
};
inline constexpr size_t kWaits = 4;
const char* Name(Wait wait);

/// Sums over the transfers in one direction of the operations of one function and size class.
/// Transfers overlap, so the seconds of an operation may exceed its duration.
struct TransferSums {
  uint64_t transfers = 0, bytes = 0;
  double wait_s[kWaits] = {};
};
struct OperationSums {
  Function function = Function::kOther;
  size_t size_class = 0;
  uint64_t operations = 0;  // in the sample
  TransferSums sent, received;
};

struct ProfileOptions {
  uint64_t communicator = 0;
  std::string name;  // that the program gave the communicator; may be empty
  int nodes = 1, ranks = 1, rank = 0;
  uint32_t sample_every = 16;  // on average; at least 1
};

/// The measurements of one communicator on one rank. Every function may be called on any thread.
class Profile {
 public:
  explicit Profile(ProfileOptions options);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// NCCL's calls, see interface.h. Handles stay valid as long as the profile, whatever the order
  /// of the calls, except those of transfers, which end with Stop. Null: not in the sample.
  template <typename Descriptor>
  void* Start(const Descriptor& descriptor) {
    switch (static_cast<uint64_t>(descriptor.type)) {
      case kEventCollective:
        return InSample() ? StartCollective(descriptor.collective) : nullptr;
      case kEventPointToPoint:
        return InSample() ? StartPointToPoint(descriptor.point_to_point) : nullptr;
      case kEventProxyOperation:
        return descriptor.parent == nullptr
                   ? nullptr
                   : StartProxyOperation(descriptor.parent, descriptor.proxy_operation);
      case kEventProxyStep:
        return descriptor.parent == nullptr ? nullptr : StartTransfer(descriptor.parent);
      default:
        return nullptr;
    }
  }
  static void Record(void* event, EventState state, const EventStateArguments* arguments);
  static void Stop(void* event);

  const ProfileOptions& options() const { return options_; }
  /// All operations so far, and those transfers of the sample that found no free slot.
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  /// The sums that are not zero.
  std::vector<OperationSums> Sums() const;

 private:
  struct Direction;
  struct Cell;
  struct Transfer;

  bool InSample();
  void* StartCollective(const CollectiveDescriptor& collective);
  void* StartPointToPoint(const PointToPointDescriptor& operation);
  void* StartProxyOperation(void* parent, const ProxyOperationDescriptor& operation);
  void* StartTransfer(void* parent);
  void* CellOf(Function function, uint64_t bytes);

  const ProfileOptions options_;
  const int process_;
  std::unique_ptr<Cell[]> cells_;
  std::unique_ptr<Transfer[]> transfers_;
  std::atomic<uint64_t> operations_{0};
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace weir::nccl::plugin
