// SPDX-License-Identifier: Apache-2.0
#pragma once
// The RDMA device of one transport: found by the address to listen at, with everything that the
// connections share: protection domain, completion queue and one registered pool of buffers.

#include <memory>
#include <string>

#include "datapath/transport/builtin/verbs/hello.h"
#include "datapath/transport/builtin/verbs/rdma_core.h"
#include "datapath/transport/builtin/verbs/window.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::verbs {

template <auto kRelease>
struct Releaser {
  template <typename T>
  void operator()(T* object) const {
    (Rdma().*kRelease)(object);
  }
};
using ChannelPtr =
    std::unique_ptr<rdma_event_channel, Releaser<&RdmaCore::rdma_destroy_event_channel>>;
using CmIdPtr = std::unique_ptr<rdma_cm_id, Releaser<&RdmaCore::rdma_destroy_id>>;
using ContextPtr = std::unique_ptr<ibv_context, Releaser<&RdmaCore::ibv_close_device>>;
using DomainPtr = std::unique_ptr<ibv_pd, Releaser<&RdmaCore::ibv_dealloc_pd>>;
using CompletionChannelPtr =
    std::unique_ptr<ibv_comp_channel, Releaser<&RdmaCore::ibv_destroy_comp_channel>>;
using CompletionQueuePtr = std::unique_ptr<ibv_cq, Releaser<&RdmaCore::ibv_destroy_cq>>;
using RegionPtr = std::unique_ptr<ibv_mr, Releaser<&RdmaCore::ibv_dereg_mr>>;
using QueuePairPtr = std::unique_ptr<ibv_qp, Releaser<&RdmaCore::ibv_destroy_qp>>;

/// The channel of connection events, non-blocking. kUnavailable: this host has no RDMA device, or
/// its connection manager cannot be reached.
StatusOr<ChannelPtr> OpenEventChannel();

/// Binds to `listen` and listens: "host:port", the address of an RDMA device's interface, or
/// "device:port" or "device/gid-index:port" for the address that a RoCE device's GID stands for.
/// kInvalidArgument: malformed, a wildcard, an unknown index; kUnavailable: no device has the
/// address, or it cannot be bound. Either lists the devices.
StatusOr<CmIdPtr> ListenAt(const std::string& listen, int backlog, rdma_event_channel* channel);

/// "10.0.0.3:40000", or "[fd00::1]:40000": where `id` is bound.
std::string BoundAddress(rdma_cm_id* id);
/// Likewise: where its peer is.
std::string PeerAddress(rdma_cm_id* id);

/// Opened for one transport alone, which gets all its events.
class Device {
 public:
  /// Opens the device of a bound `id`, with a pool that PlanFlow sizes for options.world.
  /// kUnavailable: it cannot be opened, or is iWARP; kResourceExhausted: the pool may not be locked
  /// (says the limit and the bytes wanted), or the device has too few queue entries.
  static StatusOr<std::unique_ptr<Device>> Open(rdma_cm_id* id, const TransportOptions& options);
  ~Device();

  std::string name() const { return Rdma().ibv_get_device_name(context_->device); }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  ibv_cq* completions() const { return completions_.get(); }
  ibv_comp_channel* completion_channel() const { return completion_channel_.get(); }
  const FlowPlan& plan() const { return plan_; }
  uint32_t key() const { return region_->lkey; }
  /// The pool's part for the `index`-th peer, plan().PeerBytes() long.
  std::byte* PeerMemory(int index) const { return pool_ + plan_.PeerBytes() * index; }

 private:
  Device() = default;
  Status MakePool(int peers);

  FlowPlan plan_;
  ContextPtr context_;
  DomainPtr domain_;
  CompletionChannelPtr completion_channel_;
  CompletionQueuePtr completions_;
  std::byte* pool_ = nullptr;
  size_t pool_bytes_ = 0;
  RegionPtr region_;
};

/// kResourceExhausted about `what` when `error` may come from the limit of locked memory, else
/// kUnavailable.
Status ResourceError(const std::string& what, size_t bytes, int error);

}  // namespace weir::verbs
