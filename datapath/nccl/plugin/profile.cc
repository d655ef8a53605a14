// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/profile.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "datapath/base/clock.h"
#include "datapath/base/random.h"

namespace weir::nccl::plugin {
namespace {

// NCCL has at most 8 transfers of each direction, channel and peer under way.
constexpr size_t kTransfers = 2048;
constexpr size_t kProbes = 8;
constexpr int kNothing = -1;

// Handles of operations are addresses of cells and directions, which live as long as the profile.
// NCCL may start proxy operations of a collective after it has stopped the collective, so a handle
// with a life of its own would need counting. The low bits tell the kinds of handles apart.
constexpr uintptr_t kKindMask = 7;
constexpr uintptr_t kCellKind = 1;
constexpr uintptr_t kSendKind = 2;
constexpr uintptr_t kReceiveKind = 3;

uintptr_t KindOf(const void* handle) { return reinterpret_cast<uintptr_t>(handle) & kKindMask; }

template <typename T>
void* Tagged(T* pointer, uintptr_t kind) {
  return reinterpret_cast<char*>(pointer) + kind;
}
template <typename T>
T* Untagged(void* handle) {
  return reinterpret_cast<T*>(static_cast<char*>(handle) - KindOf(handle));
}

uint64_t NowNanoseconds() {
  return static_cast<uint64_t>(RealClock().Now().time_since_epoch().count());
}

Function FunctionOf(const char* name) {
  if (name == nullptr) return Function::kOther;
  static constexpr const char* kNames[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                           "AllReduce"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (std::strcmp(name, kNames[i]) == 0) return static_cast<Function>(i);
  }
  return Function::kOther;
}

// "ncclFloat16", "ncclInt8", "ncclFloat8e4m3": the first digits are the bits.
uint64_t BytesOf(const char* type) {
  if (type == nullptr) return 1;
  const char* digit = type + std::strcspn(type, "0123456789");
  uint64_t bits = 0;
  for (; *digit >= '0' && *digit <= '9' && bits < 1024; ++digit) bits = 10 * bits + (*digit - '0');
  return std::max<uint64_t>(bits / 8, 1);
}

int WaitOf(EventState state) {
  switch (state) {
    case kStepSendGpuWait:
    case kStepReceiveFlush:
    case kStepReceiveGpuWait:
      return static_cast<int>(Wait::kOwnGpu);
    case kStepSendPeerWait:
      return static_cast<int>(Wait::kPeer);
    case kStepSendWait:
      return static_cast<int>(Wait::kWire);
    case kStepReceiveWait:
      return static_cast<int>(Wait::kArrival);
  }
  return kNothing;  // a state of a later version
}

}  // namespace

const char* Name(Function function) {
  static constexpr const char* kNames[kFunctions] = {
      "broadcast",  "reduce",         "all_gather", "reduce_scatter",
      "all_reduce", "point_to_point", "other"};
  return kNames[static_cast<size_t>(function)];
}

const char* Name(Wait wait) {
  static constexpr const char* kNames[kWaits] = {"own_gpu", "peer", "wire", "arrival"};
  return kNames[static_cast<size_t>(wait)];
}

size_t SizeClassOf(uint64_t bytes) {
  const auto bits = static_cast<size_t>(std::bit_width(bytes));
  return std::min(bits == 0 ? 0 : bits - 1, kSizeClasses - 1);
}

struct alignas(64) Profile::Direction {
  std::atomic<uint64_t> transfers{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> wait_ns[kWaits] = {};

  TransferSums Read() const {
    TransferSums sums;
    sums.transfers = transfers.load(std::memory_order_relaxed);
    sums.bytes = bytes.load(std::memory_order_relaxed);
    for (size_t i = 0; i < kWaits; ++i) {
      sums.wait_s[i] = static_cast<double>(wait_ns[i].load(std::memory_order_relaxed)) * 1e-9;
    }
    return sums;
  }
};

struct alignas(64) Profile::Cell {
  std::atomic<uint64_t> operations{0};
  Direction sent, received;
};

// Between Start and Stop a transfer belongs to one thread of NCCL.
struct alignas(64) Profile::Transfer {
  std::atomic<bool> taken{false};
  Direction* direction = nullptr;
  int waits_for = kNothing;
  uint64_t since_ns = 0;
  uint64_t bytes = 0;
};

Profile::Profile(ProfileOptions options)
    : options_(std::move(options)),
      process_(getpid()),
      cells_(std::make_unique<Cell[]>(kFunctions * kSizeClasses)),
      transfers_(std::make_unique<Transfer[]>(kTransfers)) {}

Profile::~Profile() = default;

// By a hash, not every n-th: a job repeats the same calls in every step, and a period that divides
// their number would always see the same ones.
bool Profile::InSample() {
  const uint64_t number = operations_.fetch_add(1, std::memory_order_relaxed);
  return options_.sample_every <= 1 || MixSeed(number, 0) % options_.sample_every == 0;
}

void* Profile::CellOf(Function function, uint64_t bytes) {
  Cell& cell = cells_[static_cast<size_t>(function) * kSizeClasses + SizeClassOf(bytes)];
  cell.operations.fetch_add(1, std::memory_order_relaxed);
  return Tagged(&cell, kCellKind);
}

// The size as the tuner is told it: of the larger one of the two buffers.
void* Profile::StartCollective(const CollectiveDescriptor& collective) {
  const Function function = FunctionOf(collective.function);
  uint64_t bytes = collective.count * BytesOf(collective.type);
  if (function == Function::kAllGather || function == Function::kReduceScatter) {
    bytes *= static_cast<uint64_t>(std::max(options_.ranks, 1));
  }
  return CellOf(function, bytes);
}

void* Profile::StartPointToPoint(const PointToPointDescriptor& operation) {
  return CellOf(Function::kPointToPoint, operation.count * BytesOf(operation.type));
}

// With PXN a proxy works for a rank of another process, whose handles mean nothing here.
void* Profile::StartProxyOperation(void* parent, const ProxyOperationDescriptor& operation) {
  if (operation.process != process_ || KindOf(parent) != kCellKind) return nullptr;
  Cell* const cell = Untagged<Cell>(parent);
  return operation.is_send != 0 ? Tagged(&cell->sent, kSendKind)
                                : Tagged(&cell->received, kReceiveKind);
}

void* Profile::StartTransfer(void* parent) {
  const uintptr_t kind = KindOf(parent);
  if (kind != kSendKind && kind != kReceiveKind) return nullptr;
  // The search begins where few others look: threads and directions differ in both numbers.
  static thread_local uint32_t turn = 0;
  const size_t first = MixSeed(reinterpret_cast<uintptr_t>(parent), 0) + 37 * turn++;
  for (size_t i = 0; i < kProbes; ++i) {
    Transfer& transfer = transfers_[(first + i) % kTransfers];
    bool taken = false;
    if (!transfer.taken.compare_exchange_strong(taken, true, std::memory_order_acquire)) continue;
    transfer.direction = Untagged<Direction>(parent);
    transfer.waits_for = kNothing;
    transfer.bytes = 0;
    return &transfer;
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void Profile::Record(void* event, EventState state, const EventStateArguments* arguments) {
  if (event == nullptr || KindOf(event) != 0) return;
  auto& transfer = *static_cast<Transfer*>(event);
  if (arguments != nullptr && (state == kStepSendWait || state == kStepReceiveFlush)) {
    transfer.bytes = arguments->proxy_step.bytes;
  }
  // While the peer has no room, NCCL tries again and again and reports every time.
  const int waits_for = WaitOf(state);
  if (waits_for == transfer.waits_for || waits_for == kNothing) return;
  const uint64_t now_ns = NowNanoseconds();
  if (transfer.waits_for != kNothing) {
    transfer.direction->wait_ns[transfer.waits_for].fetch_add(now_ns - transfer.since_ns,
                                                              std::memory_order_relaxed);
  }
  transfer.waits_for = waits_for;
  transfer.since_ns = now_ns;
}

void Profile::Stop(void* event) {
  if (event == nullptr || KindOf(event) != 0) return;
  auto& transfer = *static_cast<Transfer*>(event);
  Direction& direction = *transfer.direction;
  if (transfer.waits_for != kNothing) {
    direction.wait_ns[transfer.waits_for].fetch_add(NowNanoseconds() - transfer.since_ns,
                                                    std::memory_order_relaxed);
  }
  direction.transfers.fetch_add(1, std::memory_order_relaxed);
  direction.bytes.fetch_add(transfer.bytes, std::memory_order_relaxed);
  transfer.taken.store(false, std::memory_order_release);
}

std::vector<OperationSums> Profile::Sums() const {
  std::vector<OperationSums> sums;
  for (size_t i = 0; i < kFunctions * kSizeClasses; ++i) {
    const Cell& cell = cells_[i];
    const uint64_t operations = cell.operations.load(std::memory_order_relaxed);
    if (operations == 0) continue;
    sums.push_back({static_cast<Function>(i / kSizeClasses), i % kSizeClasses, operations,
                    cell.sent.Read(), cell.received.Read()});
  }
  return sums;
}

}  // namespace weir::nccl::plugin
