// SPDX-License-Identifier: Apache-2.0
#pragma once
// An attached pair of ranks as a stream of bytes.

#include <memory>

#include "datapath/transport/builtin/shm/attach.h"
#include "datapath/transport/mesh/byte_stream.h"

namespace weir::shm {

/// Payloads of at least `direct_bytes_min` bytes are read directly where the system permits it.
std::unique_ptr<mesh::ByteStream> MakeRingStream(Attachment attachment,
                                                 size_t direct_bytes_min = kDirectReadBytesMin);

}  // namespace weir::shm
