// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/sum_worker.h"

#include <algorithm>

#include "datapath/aggregation/quantise.h"
#include "datapath/base/check.h"

namespace weir::aggregation {

SumWorker::SumWorker(const Lease& lease, const TimeoutLimits& limits, int rank)
    : ChunkWorker(lease, limits, rank), bits_(LaneBits(WorldOf(lease))), lanes_(lease.lanes) {
  WEIR_CHECK(lease.mode == PacketMode::kSum);
}

Status SumWorker::Begin(std::span<const float> data, std::span<float> sums, uint32_t operation,
                        TimePoint deadline) {
  if (data.size() != sums.size()) {
    return InvalidArgument(StrCat("operation ", operation, ": expected room for ", data.size(),
                                  " sums, found ", sums.size()));
  }
  const uint64_t chunks = (data.size() + lease().lanes - 1) / lease().lanes;
  const uint64_t lead = std::min<uint64_t>(chunks, lease().slots);
  WEIR_RETURN_IF_ERROR(StartChunks(
      {.operation = operation, .packets = chunks + lead, .lag = lead, .deadline = deadline}));
  data_ = data;
  sums_ = sums;
  chunks_ = chunks;
  lead_ = lead;
  exponents_.assign(chunks, kExponentZero);
  non_finite_chunks_ = 0;
  return OkStatus();
}

template <typename Float>
std::span<Float> SumWorker::Chunk(std::span<Float> all, uint64_t chunk) const {
  const size_t at = chunk * lease().lanes;
  return all.subspan(at, std::min<size_t>(lease().lanes, all.size() - at));
}

// This works in place, too: chunk c is overwritten by the reply to packet c + lead. After that,
// neither packet c + lead nor packet c, which came before it, is built again.
void SumWorker::Build(uint64_t index, PacketHeader* header, std::span<std::byte> payload) {
  if (index < chunks_) {
    exponents_[index] = ExponentCode(Chunk(data_, index));
    header->exponent = exponents_[index];
  }
  if (index < lead_) {
    header->flags |= kPacketLead;
    return;
  }
  Quantise(Chunk(data_, index - lead_), exponents_[index - lead_], bits_, lanes_);
  StoreLanes(lanes_, lease().little_endian, payload);
}

Status SumWorker::AcceptChunk(uint64_t index, const Packet& packet) {
  const PacketHeader& h = packet.header;
  const bool lead = (h.flags & kPacketLead) != 0;
  if (lead != (index < lead_) || h.contributions != WorldOf(lease())) {
    return DataLoss(StrCat("rank ", rank(), ": reply to ", Describe(h), ": expected ",
                           index < lead_ ? "no lanes" : "lanes", " of ", WorldOf(lease()),
                           " workers, found ", lead ? "none" : "some", " of ", h.contributions));
  }
  if ((h.flags & kPacketOverflow) != 0) {
    return DataLoss(
        StrCat("rank ", rank(), ": some worker's lanes exceed their share in ", Describe(h)));
  }
  if (index < chunks_) {
    // An exponent below this worker's own would make its lanes overflow.
    if (h.exponent < exponents_[index]) {
      return DataLoss(StrCat("rank ", rank(), ": exponent in ", Describe(h), ": expected at least ",
                             exponents_[index], ", found ", h.exponent));
    }
    exponents_[index] = h.exponent;
  }
  if (lead) return OkStatus();
  const uint16_t code = exponents_[index - lead_];
  if (code == kExponentNonFinite) ++non_finite_chunks_;
  LoadLanes(packet.payload, lease().little_endian, lanes_);
  Dequantise(lanes_, code, bits_, Chunk(sums_, index - lead_));
  return OkStatus();
}

}  // namespace weir::aggregation
