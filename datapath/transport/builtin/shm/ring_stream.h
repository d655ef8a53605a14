#pragma once
// An attached pair of ranks as a stream of bytes.

#include <memory>

#include "datapath/transport/builtin/shm/attach.h"
#include "datapath/transport/mesh/byte_stream.h"

namespace weir::shm {

std::unique_ptr<mesh::ByteStream> MakeRingStream(Attachment attachment);

}  // namespace weir::shm
