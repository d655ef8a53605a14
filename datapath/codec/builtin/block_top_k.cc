// SPDX-License-Identifier: Apache-2.0
// Block top-k: sends the aligned blocks of 256 elements with the largest norms as a whole, so that
// a receiver adds contiguous runs and an aggregator can stream them. Blocks of zeros are never
// sent; of equal norms, the lower block is sent.
// Payload: a selection header with the count and positions of blocks, then their elements as
// binary16 (proto/WIRE.md section 3).
// Source: Fei et al., "Efficient sparse collective communication and its application to accelerate
// distributed deep learning" (OmniReduce), SIGCOMM 2021; deviates: max(1, floor(ratio * blocks))
// blocks by norm, coded positions, rounding errors are kept as residual. Memory: one float and one
// position per block.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/fused_codec.h"
#include "datapath/codec/select/index_coding.h"
#include "datapath/codec/select/selection_payload.h"

namespace weir {
namespace {

constexpr size_t kSize = 256;  // elements per block
static_assert(kernels::kBlockElements % kSize == 0);
constexpr float kHalfMax = 65504.0f;

size_t BlockCount(size_t n) { return (n + kSize - 1) / kSize; }
size_t BlockTarget(size_t n, double ratio) {
  const size_t blocks = BlockCount(n);
  if (blocks == 0) return 0;
  const double wanted = std::floor(ratio * static_cast<double>(blocks));
  return std::clamp<size_t>(static_cast<size_t>(wanted), 1, blocks);
}
size_t SizeOf(size_t block, size_t n) { return std::min(kSize, n - block * kSize); }

/// The positions and values of a checked payload.
struct Parsed {
  int exponent = 0;
  std::vector<uint32_t> blocks;
  size_t values_at = 0;
};

StatusOr<Parsed> Parse(std::span<const std::byte> payload, size_t n) {
  SelectionHeader header;
  WEIR_RETURN_IF_ERROR(ReadSelectionHeader(payload, BlockCount(n), &header));
  if (header.format != ValueFormat::kHalf) {
    return DataLoss(
        StrCat("value format at offset 2: expected 1, found ", static_cast<int>(header.format)));
  }
  const size_t room = payload.size() - kSelectionHeaderBytes;
  if (header.index_bytes > room || header.count > uint64_t{header.index_bytes} * 8) {
    return DataLoss(StrCat("index of ", header.index_bytes, " bytes for ", header.count,
                           " blocks at offset 4, found ", room, " bytes after the header"));
  }
  Parsed parsed{.exponent = header.exponent, .blocks = std::vector<uint32_t>(header.count)};
  IndexDecoder decoder(header.index, payload.subspan(kSelectionHeaderBytes, header.index_bytes),
                       BlockCount(n), header.count, kSelectionHeaderBytes);
  WEIR_ASSIGN_OR_RETURN(const size_t found, decoder.Next(parsed.blocks));
  if (found != header.count) {
    return DataLoss(StrCat("positions end early at offset ", kSelectionHeaderBytes));
  }
  WEIR_RETURN_IF_ERROR(decoder.Finish());
  parsed.values_at = kSelectionHeaderBytes + header.index_bytes;
  uint64_t elements = 0;
  for (const uint32_t block : parsed.blocks) elements += SizeOf(block, n);
  if (parsed.values_at + elements * sizeof(uint16_t) != payload.size()) {
    return DataLoss(StrCat("values at offset ", parsed.values_at, ": expected ",
                           elements * sizeof(uint16_t), " bytes, found ",
                           payload.size() - parsed.values_at));
  }
  return parsed;
}

class BlockTopKCodec : public FusedCodec {
 public:
  const CodecTraits& Traits() const override { return traits_; }

  size_t MaxEncodedBytes(size_t n, const EncodeContext& context) const override {
    const size_t kept = BlockTarget(n, context.params.ratio);
    return kSelectionHeaderBytes + MaxIndexBytes(BlockCount(n), kept) +
           std::min(n, kept * kSize) * sizeof(uint16_t);
  }

  /// O(kept).
  Status DecodeAdd(std::span<const std::byte> payload, const EncodeContext&, float scale,
                   std::span<float> out) const override {
    WEIR_ASSIGN_OR_RETURN(const Parsed parsed, Parse(payload, out.size()));
    const float factor = scale * PowerOfTwo(-parsed.exponent);
    size_t at = parsed.values_at;
    uint16_t lanes[kSize];
    for (const uint32_t block : parsed.blocks) {
      const size_t size = SizeOf(block, out.size());
      std::memcpy(lanes, payload.data() + at, size * sizeof(uint16_t));
      if (!kernels::DecodeAddHalf(lanes, size, factor, out.data() + block * kSize)) {
        return DataLoss(StrCat("value that is not finite in the block at offset ", at));
      }
      at += size * sizeof(uint16_t);
    }
    return OkStatus();
  }

  Status DecodeIndices(std::span<const std::byte> payload, size_t n,
                       std::vector<uint32_t>* indices) const override {
    WEIR_ASSIGN_OR_RETURN(const Parsed parsed, Parse(payload, n));
    indices->clear();
    for (const uint32_t block : parsed.blocks) {
      const size_t size = SizeOf(block, n), before = indices->size();
      indices->resize(before + size);
      std::iota(indices->begin() + static_cast<ptrdiff_t>(before), indices->end(),
                static_cast<uint32_t>(block * kSize));
    }
    return OkStatus();
  }

 private:
  /// Writes the norms of all blocks to `norms`, and e to the rest when there is one.
  static kernels::Sums Measure(const PassOperands& operands, GradientStatistics* statistics,
                               std::vector<float>* norms) {
    norms->resize(BlockCount(operands.gradient.size()));
    return ForEachBlock(
        operands, statistics,
        [&](const kernels::Block& block, size_t at, float* rest, kernels::Sums* sums) {
          for (size_t i = 0; i < block.size; i += kSize) {
            const kernels::Block part{
                .gradient = block.gradient + i,
                .residual = block.residual == nullptr ? nullptr : block.residual + i,
                .size = std::min(kSize, block.size - i)};
            kernels::Sums own;
            kernels::Measure(part, rest == nullptr ? nullptr : rest + i, &own);
            (*norms)[(at + i) / kSize] = static_cast<float>(std::sqrt(own.energy_in));
            sums->energy_in += own.energy_in;
            sums->max_bits = std::max(sums->max_bits, own.max_bits);
          }
        });
  }

  /// The blocks to keep, ascending.
  static std::vector<uint32_t> Largest(const std::vector<float>& norms, size_t target) {
    std::vector<uint32_t> kept(norms.size());
    std::iota(kept.begin(), kept.end(), 0u);
    const auto middle = kept.begin() + static_cast<ptrdiff_t>(target);
    if (target < kept.size()) {
      std::nth_element(kept.begin(), middle, kept.end(), [&](uint32_t a, uint32_t b) {
        return norms[a] != norms[b] ? norms[a] > norms[b] : a < b;
      });
    }
    kept.erase(middle, kept.end());
    std::erase_if(kept, [&](uint32_t block) { return norms[block] == 0; });
    std::sort(kept.begin(), kept.end());
    return kept;
  }

  /// One pass over everything and one over the kept blocks; O(n).
  StatusOr<EncodeResult> Pass(const PassOperands& operands, const EncodeContext& context,
                              std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(Validate(context.params, context.world));
    const size_t n = operands.gradient.size();
    WEIR_RETURN_IF_ERROR(CheckRoom(traits_, out, MaxEncodedBytes(n, context)));
    std::vector<float> norms;
    const kernels::Sums sums = Measure(operands, context.statistics, &norms);
    std::vector<uint32_t> kept;
    if (!sums.non_finite()) kept = Largest(norms, BlockTarget(n, context.params.ratio));
    SelectionHeader header{.format = ValueFormat::kHalf,
                           .count = static_cast<uint32_t>(kept.size())};
    if (!sums.non_finite()) {
      header.exponent = static_cast<int8_t>(HalfExponent(sums.max_abs(), /*headroom=*/0));
    }
    header.index_bytes = static_cast<uint32_t>(
        EncodeIndices(kept, BlockCount(n), out.subspan(kSelectionHeaderBytes), &header.index));
    WriteSelectionHeader(header, out);
    EncodeResult result{.bytes = kSelectionHeaderBytes + header.index_bytes,
                        .non_finite = sums.non_finite()};
    if (result.non_finite) return result;
    kernels::Sums rounding;
    for (const uint32_t block : kept) {
      const size_t at = size_t{block} * kSize, size = SizeOf(block, n);
      const bool in_rest = !operands.rest.empty();
      kernels::Block source{.gradient = operands.gradient.data() + at, .size = size};
      if (in_rest) {
        source.gradient = operands.rest.data() + at;
      } else if (!operands.residual.empty()) {
        source.residual = operands.residual.data() + at;
      }
      uint16_t lanes[kSize];
      float lost[kSize];
      float* const rest = in_rest ? operands.rest.data() + at : lost;
      kernels::EncodeHalf(source, PowerOfTwo(header.exponent), kHalfMax, lanes, rest, &rounding);
      std::memcpy(out.data() + result.bytes, lanes, size * sizeof(uint16_t));
      result.bytes += size * sizeof(uint16_t);
    }
    result.energy_in = sums.energy_in;
    result.energy_lost = std::max(0.0, sums.energy_in - rounding.energy_in) + rounding.energy_lost;
    return result;
  }

  const CodecTraits traits_ = {
      .name = "block_top_k",
      .summary = "blocks of 256 elements with the largest norms (after Fei et al. 2021)",
      .needs_error_feedback = true,
      .form = PayloadForm::kOpaque,
      .settings = {{.kept_bits = 16}},
      .uses_ratio = true,
      .ratio_min = 1e-6,
      .ratio_max = 1,
      .kept_block = kSize,
      .error_model = ErrorModel::kUniformSelection,
      // Rounding the number of blocks down at most halves it, and values are rounded.
      .contraction = 0.45,
  };
};

}  // namespace

void RegisterBlockTopK(Registry<Codec>& registry, uint8_t id) {
  registry.Add(id, std::make_unique<BlockTopKCodec>());
}

}  // namespace weir
