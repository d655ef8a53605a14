#pragma once
// An attached pair of ranks as a stream of bytes.

#include <memory>

#include "datapath/transport/builtin/shm/attach.h"
#include "datapath/transport/mesh/byte_stream.h"

namespace weir::shm {

/// Payloads from `loan_bytes_min` on are lent where that works.
std::unique_ptr<mesh::ByteStream> MakeRingStream(Attachment attachment,
                                                 size_t loan_bytes_min = kLoanBytesMin);

}  // namespace weir::shm
