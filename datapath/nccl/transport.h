#pragma once
// The nccl transport: frames whose payloads are GPU memory and travel by NCCL's send and receive.
// README.md says how.

#include <functional>
#include <memory>

#include "datapath/nccl/device.h"
#include "datapath/transport/transport.h"

namespace weir::nccl {

/// Opens the device of a new transport. kUnavailable: there is none.
using OpenDevice = std::function<StatusOr<std::unique_ptr<Device>>()>;

/// The transport over `open`'s devices. It differs from others in three ways: buffers that are not
/// empty have to be memory of the device (else kInvalidArgument); what a buffer to send holds has
/// to be complete before PostSend (synchronise with the stream that writes it), and what was
/// received is complete for every stream after Wait; and a send with a payload ends only after the
/// peer has posted its receive, so two ranks must not both wait for a send before they post
/// receives.
std::unique_ptr<TransportFactory> MakeFactory(OpenDevice open);

/// The transport over the calling thread's current CUDA device. Only where the build has NCCL
/// (WEIR_HAVE_NCCL is 1). Create is kUnavailable, saying why, where there is no device.
std::unique_ptr<TransportFactory> MakeCudaFactory();

}  // namespace weir::nccl
