// SPDX-License-Identifier: Apache-2.0
// Block mesh all-reduce: the mesh without blocks of zeros. Lanes are cut into blocks of about 1
// KiB. Rank r sends rank j only the blocks of chunk j that are not zero. Rank j sums them and sends
// all ranks the blocks that are not zero on any rank. It serves gradients that are zero in large
// parts (embeddings, frozen layers) and needs no sparse codec.
//
// Blocks are sent as OmniReduce streams them. Every message holds the blocks of a segment, a bit
// for each block that tells whether it is present, and the number of the next segment that will be
// sent, so that segments of zeros cost nothing. The sum's next segment is the lowest next one of
// all ranks. Blocks are added in the order of the ranks, and blocks that were not sent count as
// zeros. So for lanes of any kind the result is the dense sum in rank order bit for bit, including
// the sign of zeros.
//
// Cost: 2 latencies; every rank sends and receives (N-1)/N (D_w + D_u) of the payload, where D_w is
// the share of blocks that are not zero on one rank and D_u the share of those that are not zero on
// any rank. The features are those of dense lanes, D_w = D_u = 1, for which 16 bytes a message and
// a bit a block are added to the mesh's; `blocks` gives the factor for others. Source: Fei, Ho,
// Sahu, Canini, Sapio, "Efficient sparse collective communication and its application to accelerate
// distributed deep learning", SIGCOMM 2021, sections 3.1 and 3.2; deviates: every rank is the
// aggregator of a chunk, transports are reliable, and segments of many blocks replace its packets.

#include <algorithm>
#include <cstring>
#include <deque>

#include "datapath/base/byte_cursor.h"
#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

constexpr size_t kBlockBytes = 1024;
constexpr size_t kBlockHeaderBytes = 16;  // bytes of all lanes, bytes of a block, next segment

bool AllZero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte(0) &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

// Which blocks of a segment are present.
using Bitmap = std::vector<uint8_t>;
bool Has(std::span<const uint8_t> bitmap, size_t block) {
  return (bitmap[block / 8] >> (block % 8) & 1) != 0;
}
bool Any(std::span<const uint8_t> bitmap) {
  return std::any_of(bitmap.begin(), bitmap.end(), [](uint8_t bits) { return bits != 0; });
}

// Cuts a segment of a given size into blocks.
class Blocks {
 public:
  Blocks(size_t segment_bytes, size_t block_bytes)
      : segment_bytes_(segment_bytes), block_bytes_(block_bytes) {}
  size_t count() const { return (segment_bytes_ + block_bytes_ - 1) / block_bytes_; }
  // A multiple of 8, so that the lanes that follow in a message are aligned for the code that adds
  // them.
  size_t bitmap_bytes() const { return (count() + 63) / 64 * 8; }
  size_t begin(size_t block) const { return block * block_bytes_; }
  size_t bytes(size_t block) const { return std::min(block_bytes_, segment_bytes_ - begin(block)); }
  // The size of the blocks that are present.
  size_t BytesIn(std::span<const uint8_t> bitmap) const {
    size_t sum = 0;
    for (size_t b = 0; b < count(); ++b) sum += Has(bitmap, b) ? bytes(b) : 0;
    return sum;
  }
  Bitmap NonZero(std::span<const std::byte> segment) const {
    Bitmap bitmap(bitmap_bytes());
    for (size_t b = 0; b < count(); ++b) {
      if (!AllZero(segment.subspan(begin(b), bytes(b)))) {
        bitmap[b / 8] |= static_cast<uint8_t>(1 << (b % 8));
      }
    }
    return bitmap;
  }

 private:
  size_t segment_bytes_, block_bytes_;
};

// The parts of a message, as views of its bytes.
struct BlockMessage {
  size_t next = 0;
  std::span<const uint8_t> bitmap;
  std::span<const std::byte> blocks;
};

// Phase 1: segment s of chunk j goes to rank j, slot s. Phase 2: the sum of segment s of the own
// chunk goes to everyone, slot segments + s.
class BlockMeshPass {
 public:
  BlockMeshPass(Group& group, const Lanes& lanes)
      : group_(group),
        lanes_(lanes),
        world_(group.size()),
        rank_(group.rank()),
        partition_(lanes.bytes, {.lane_bytes = lanes.lane_bytes,
                                 .parts = static_cast<size_t>(world_),
                                 .segment_bytes = group.segment_bytes(),
                                 .pipeline_depth = 4,
                                 .segments_max = std::max<size_t>(512 / world_, 1)}),
        segments_(partition_.segments()),
        block_bytes_(std::max<size_t>(kBlockBytes / lanes.lane_bytes, 1) * lanes.lane_bytes),
        sends_(group) {}

  Status Run() {
    WEIR_RETURN_IF_ERROR(SendContributions());
    WEIR_RETURN_IF_ERROR(ReduceOwnChunk());
    WEIR_RETURN_IF_ERROR(CollectTotals());
    return sends_.Drain();
  }

 private:
  // Messages of one sender in one phase.
  struct Stream {
    int peer = 0, chunk = 0;
    size_t first_slot = 0;
    size_t next = 0;  // the next segment that it sends
    Ticket ticket = 0;
    ScratchBuffer bytes = {};
    BlockMessage message = {};
  };

  Blocks BlocksOf(int chunk, size_t segment) const {
    return Blocks(partition_.Segment(chunk, segment).size(), block_bytes_);
  }

  // Computes the sum of blocks that no rank sent. It is zeros unless the zero bytes of these lanes
  // add up to something else.
  void SumOfZeros() {
    zeros_.resize(block_bytes_);
    absent_ = zeros_;
    for (int r = 1; r < world_; ++r) lanes_.accumulate(absent_, zeros_);
  }

  // Sends one message with the blocks of `segment` to all of `peers`.
  Status Send(std::span<const int> peers, int chunk, size_t segment, size_t slot, size_t next,
              const Bitmap& bitmap) {
    const std::span<const std::byte> lanes = partition_.Segment(chunk, segment);
    const Blocks blocks = BlocksOf(chunk, segment);
    ScratchBuffer message =
        group_.scratch().Take(kBlockHeaderBytes + blocks.bitmap_bytes() + blocks.BytesIn(bitmap));
    ByteWriter writer(message.bytes());
    writer.Write(static_cast<uint64_t>(lanes_.bytes.size()));
    writer.Write(static_cast<uint32_t>(block_bytes_));
    writer.Write(static_cast<uint32_t>(next));
    writer.WriteBytes(std::as_bytes(std::span(bitmap)));
    for (size_t b = 0; b < blocks.count(); ++b) {
      if (Has(bitmap, b)) writer.WriteBytes(lanes.subspan(blocks.begin(b), blocks.bytes(b)));
    }
    WEIR_CHECK(writer.ok());
    const std::span<const std::byte> written = message.bytes();
    messages_.push_back({std::move(message), sends_.posted() + peers.size()});
    for (const int peer : peers) {
      WEIR_RETURN_IF_ERROR(sends_.Send(peer, static_cast<uint32_t>(slot), written));
    }
    while (!messages_.empty() && messages_.front().second <= sends_.awaited()) {
      messages_.pop_front();
    }
    return OkStatus();
  }

  // The first segment from `segment` on that is not zero, with its blocks.
  std::pair<size_t, Bitmap> NextNonZero(int chunk, size_t segment) const {
    for (; segment < segments_; ++segment) {
      Bitmap bitmap = BlocksOf(chunk, segment).NonZero(partition_.Segment(chunk, segment));
      if (Any(bitmap)) return {segment, std::move(bitmap)};
    }
    return {segments_, {}};
  }

  Status SendContributions() {
    std::vector<std::pair<size_t, Bitmap>> at(world_);
    for (int chunk = 0; chunk < world_; ++chunk) {
      // The first segment is always sent, because it carries the control word and flags.
      at[chunk] = {0, BlocksOf(chunk, 0).NonZero(partition_.Segment(chunk, 0))};
    }
    for (size_t s = 0; s < segments_; ++s) {
      for (int distance = 1; distance < world_; ++distance) {
        const int peer = (rank_ + distance) % world_;
        if (at[peer].first != s) continue;
        auto next = NextNonZero(peer, s + 1);
        WEIR_RETURN_IF_ERROR(Send(std::span(&peer, 1), peer, s, s, next.first, at[peer].second));
        at[peer] = std::move(next);
      }
    }
    return OkStatus();
  }

  Status Post(Stream& stream) {
    if (stream.next >= segments_) return OkStatus();
    const Blocks blocks = BlocksOf(stream.chunk, stream.next);
    const size_t most = kBlockHeaderBytes + blocks.bitmap_bytes() +
                        partition_.Segment(stream.chunk, stream.next).size();
    // Later segments are not larger.
    if (stream.bytes.empty()) stream.bytes = group_.scratch().Take(most);
    WEIR_ASSIGN_OR_RETURN(
        stream.ticket,
        group_.Receive(stream.peer, static_cast<uint32_t>(stream.first_slot + stream.next),
                       stream.bytes.bytes().first(most)));
    return OkStatus();
  }

  // Waits for the posted message and parses it.
  Status Await(Stream& stream) {
    WEIR_ASSIGN_OR_RETURN(const size_t size, group_.WaitReceive(stream.ticket));
    const Blocks blocks = BlocksOf(stream.chunk, stream.next);
    ByteReader reader(std::span<const std::byte>(stream.bytes.bytes()).first(size));
    uint64_t all = 0;
    uint32_t block_bytes = 0, next = 0;
    std::span<const std::byte> bitmap;
    Status status = reader.Read(&all);
    if (status.ok()) status = reader.Read(&block_bytes);
    if (status.ok()) status = reader.Read(&next);
    if (status.ok() && (all != lanes_.bytes.size() || block_bytes != block_bytes_)) {
      status = Internal(StrCat("expected ", lanes_.bytes.size(), " bytes in blocks of ",
                               block_bytes_, ", found ", all, " in blocks of ", block_bytes,
                               ": the ranks disagree on the operation's size"));
    }
    if (status.ok()) status = reader.ReadBytes(blocks.bitmap_bytes(), &bitmap);
    if (status.ok()) {
      stream.message = {.next = next,
                        .bitmap = {reinterpret_cast<const uint8_t*>(bitmap.data()), bitmap.size()},
                        .blocks = reader.rest()};
      status = Check(stream, blocks);
    }
    if (status.ok()) return status;
    return group_.Fail(Annotate(status, StrCat("blocks of rank ", group_.NameOf(stream.peer))));
  }

  Status Check(const Stream& stream, const Blocks& blocks) const {
    const BlockMessage& message = stream.message;
    const size_t expected = blocks.BytesIn(message.bitmap);
    if (message.blocks.size() != expected) {
      return DataLoss(StrCat("expected ", expected, " bytes of blocks in segment ", stream.next,
                             ", found ", message.blocks.size()));
    }
    if (message.next <= stream.next || message.next > segments_) {
      return DataLoss(StrCat("expected a segment after ", stream.next, " and up to ", segments_,
                             " to come next, found ", message.next));
    }
    return OkStatus();
  }

  std::vector<Stream> Streams(size_t first_slot, bool own_chunk) const {
    std::vector<Stream> streams;
    for (int distance = 1; distance < world_; ++distance) {
      const int peer = (rank_ + distance) % world_;
      streams.push_back(
          {.peer = peer, .chunk = own_chunk ? rank_ : peer, .first_slot = first_slot});
    }
    return streams;
  }

  // Sums one block over all ranks in rank order. `at` has each rank's block, or an empty span if it
  // sent none.
  void SumBlock(std::span<const std::span<const std::byte>> at, std::span<std::byte> sum) {
    for (int r = 0; r < world_; ++r) {
      const std::span<const std::byte> addend =
          at[r].empty() ? std::span<const std::byte>(zeros_).first(sum.size()) : at[r];
      if (r == 0) {
        std::memcpy(sum.data(), addend.data(), sum.size());
      } else {
        lanes_.accumulate(sum, addend);
      }
    }
  }

  // Replaces segment `s` of the own chunk by its sum. Returns the blocks that any rank sent.
  Bitmap ReduceSegment(size_t s, std::vector<Stream>& streams) {
    const std::span<std::byte> lanes = partition_.Segment(rank_, s);
    const Blocks blocks = BlocksOf(rank_, s);
    const Bitmap own = blocks.NonZero(lanes);
    Bitmap all = own;
    std::vector<std::span<const std::byte>> at(world_);
    std::vector<std::byte> sum(block_bytes_);
    for (size_t b = 0; b < blocks.count(); ++b) {
      const std::span<std::byte> block = lanes.subspan(blocks.begin(b), blocks.bytes(b));
      std::fill(at.begin(), at.end(), std::span<const std::byte>());
      if (Has(own, b)) at[rank_] = block;
      for (Stream& stream : streams) {
        BlockMessage& message = stream.message;
        if (stream.next != s || !Has(message.bitmap, b)) continue;
        all[b / 8] |= static_cast<uint8_t>(1 << (b % 8));
        at[stream.peer] = message.blocks.first(block.size());
        message.blocks = message.blocks.subspan(block.size());
      }
      if (Has(all, b)) {
        SumBlock(at, std::span(sum).first(block.size()));
        std::memcpy(block.data(), sum.data(), block.size());
      } else {
        std::memcpy(block.data(), absent_.data(), block.size());
      }
    }
    return all;
  }

  void FillAbsent(int chunk, size_t first, size_t last) {
    for (size_t s = first; s < last; ++s) {
      const std::span<std::byte> lanes = partition_.Segment(chunk, s);
      const Blocks blocks = BlocksOf(chunk, s);
      for (size_t b = 0; b < blocks.count(); ++b) {
        std::memcpy(&lanes[blocks.begin(b)], absent_.data(), blocks.bytes(b));
      }
    }
  }

  Status ReduceOwnChunk() {
    std::vector<Stream> streams = Streams(0, true);
    std::vector<int> peers;
    for (Stream& stream : streams) {
      peers.push_back(stream.peer);
      WEIR_RETURN_IF_ERROR(Post(stream));
    }
    size_t own = 0;  // this rank's next segment that is not zero
    for (size_t s = 0; s < segments_;) {
      if (own <= s) own = NextNonZero(rank_, s + 1).first;
      size_t next = own;
      for (Stream& stream : streams) {
        if (stream.next == s) WEIR_RETURN_IF_ERROR(Await(stream));
      }
      if (s == 0) SumOfZeros();
      const Bitmap sum = ReduceSegment(s, streams);
      for (Stream& stream : streams) {
        if (stream.next == s) {
          stream.next = stream.message.next;
          WEIR_RETURN_IF_ERROR(Post(stream));
        }
        next = std::min(next, stream.next);
      }
      WEIR_RETURN_IF_ERROR(Send(peers, rank_, s, segments_ + s, next, sum));
      FillAbsent(rank_, s + 1, next);
      s = next;
    }
    return OkStatus();
  }

  void TakeTotal(Stream& stream) {
    const std::span<std::byte> lanes = partition_.Segment(stream.chunk, stream.next);
    const Blocks blocks = BlocksOf(stream.chunk, stream.next);
    std::span<const std::byte> rest = stream.message.blocks;
    for (size_t b = 0; b < blocks.count(); ++b) {
      const bool sent = Has(stream.message.bitmap, b);
      std::memcpy(&lanes[blocks.begin(b)], sent ? rest.data() : absent_.data(), blocks.bytes(b));
      if (sent) rest = rest.subspan(blocks.bytes(b));
    }
    FillAbsent(stream.chunk, stream.next + 1, stream.message.next);
  }

  Status CollectTotals() {
    std::vector<Stream> streams = Streams(segments_, false);
    for (Stream& stream : streams) WEIR_RETURN_IF_ERROR(Post(stream));
    for (size_t open = streams.size(); open > 0;) {
      for (Stream& stream : streams) {
        if (stream.next >= segments_) continue;
        WEIR_RETURN_IF_ERROR(Await(stream));
        TakeTotal(stream);
        stream.next = stream.message.next;
        WEIR_RETURN_IF_ERROR(Post(stream));
        open -= stream.next >= segments_;
      }
    }
    return OkStatus();
  }

  Group& group_;
  const Lanes& lanes_;
  const int world_, rank_;
  const Partition partition_;
  const size_t segments_, block_bytes_;
  std::vector<std::byte> zeros_, absent_;  // one block each
  SendQueue sends_;
  std::deque<std::pair<ScratchBuffer, size_t>> messages_;  // and the send that ends their use
};

}  // namespace

void RegisterBlockMesh(Registry<Collective>& registry, uint8_t wire_id) {
  AddCollective<Lanes>(
      registry, wire_id,
      {
          .name = "block_mesh",
          .summary = "mesh that leaves out blocks of zeros (OmniReduce, Fei et al. 2021)",
          .form = "lanes",
          .cost = {.latency = {.constant = 2},
                   .payload = {.n_minus_1_over_n = 2},
                   .reduce = {.n_minus_1_over_n = 1}},
          .all_pairs = true,
          .blocks = {.elements = kBlockBytes / sizeof(float), .own_share = 0.5, .union_share = 0.5},
          .world_max = 256,
      },
      [](Group& group, Lanes& lanes, CollectiveReport*) -> Status {
        return group.size() > 1 ? BlockMeshPass(group, lanes).Run() : OkStatus();
      });
}

}  // namespace weir
