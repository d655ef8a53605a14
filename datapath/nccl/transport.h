// SPDX-License-Identifier: Apache-2.0
#pragma once
// The nccl transport: frames whose payloads are GPU memory and are moved by NCCL's send and
// receive. README.md explains the protocol.

#include <functional>
#include <memory>

#include "datapath/nccl/device.h"
#include "datapath/transport/transport.h"

namespace weir::nccl {

/// Opens the device of a new transport. kUnavailable: there is none.
using OpenDevice = std::function<StatusOr<std::unique_ptr<Device>>()>;

/// The transport over the devices of `open`. It differs from others in three ways. Buffers that are
/// not empty must be memory of the device (else kInvalidArgument). The content of a buffer to send
/// must be complete before PostSend (synchronise with the stream that writes it), and received data
/// is complete for every stream after Wait. A send with a payload ends only after the peer has
/// posted its receive, so two ranks must not both wait for a send before they post receives.
std::unique_ptr<TransportFactory> MakeFactory(OpenDevice open);

/// The transport over the calling thread's current CUDA device. It exists only where the build has
/// NCCL (WEIR_HAVE_NCCL is 1). Create returns kUnavailable with the cause where there is no device.
std::unique_ptr<TransportFactory> MakeCudaFactory();

}  // namespace weir::nccl
