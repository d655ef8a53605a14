// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/block_columns.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "datapath/aggregation/quantise.h"
#include "datapath/base/check.h"

namespace weir::aggregation {

BlockColumns::BlockColumns(const Lease& lease)
    : columns_(lease.columns),
      lanes_(lease.lanes),
      stride_(size_t{lease.slots} * lease.columns),
      little_endian_(lease.little_endian),
      bits_(LaneBits(lease.workers)),
      all_(stride_),
      lane_buffer_(lease.lanes) {
  WEIR_CHECK(lease.mode == PacketMode::kSparse);
}

BlockSurvey SurveyBlocks(std::span<const float> data, size_t lanes) {
  BlockSurvey survey;
  survey.non_zero.assign((data.size() + lanes - 1) / lanes, false);
  for (size_t b = 0; b < survey.non_zero.size(); ++b) {
    const std::span<const float> block =
        data.subspan(b * lanes, std::min(lanes, data.size() - b * lanes));
    const std::span<const std::byte> bytes = std::as_bytes(block);
    if (bytes[0] == std::byte(0) &&
        std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0) {
      continue;
    }
    survey.non_zero[b] = true;
    survey.code = std::max(survey.code, ExponentCode(block));
  }
  return survey;
}

void BlockSums::Store(size_t lanes, std::span<float> data) const {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t at = size_t{blocks[i]} * lanes;
    const auto sum = std::span(values).subspan(i * lanes, std::min(lanes, data.size() - at));
    std::copy(sum.begin(), sum.end(), data.begin() + static_cast<ptrdiff_t>(at));
  }
}

Status BlockColumns::Begin(std::span<float> data, uint16_t code) {
  own_survey_ = SurveyBlocks(data, lanes_);
  in_place_ = data;
  sums_ = nullptr;
  return Start(data, own_survey_, code);
}

Status BlockColumns::Begin(std::span<const float> data, const BlockSurvey& survey, uint16_t code,
                           BlockSums* sums) {
  in_place_ = {};
  sums_ = sums;
  sums_->blocks.clear();
  sums_->values.clear();
  return Start(data, survey, code);
}

Status BlockColumns::Start(std::span<const float> data, const BlockSurvey& survey, uint16_t code) {
  const uint64_t blocks = (data.size() + lanes_ - 1) / lanes_;
  if (blocks >= kNoBlock) {
    return InvalidArgument(StrCat("sparse tensor: expected below 2^32 blocks, found ", blocks));
  }
  if (survey.non_zero.size() != blocks) {
    return InvalidArgument(StrCat("sparse tensor: survey: expected ", blocks, " blocks, found ",
                                  survey.non_zero.size()));
  }
  if (code == kExponentNonFinite || survey.code > code) {
    return InvalidArgument(StrCat("sparse tensor: shared exponent: expected a finite one from ",
                                  survey.code, " on, found ", code));
  }
  data_ = data;
  survey_ = &survey;
  code_ = code;
  blocks_ = blocks;
  for (size_t c = 0; c < stride_; ++c) {
    all_[c] = {};
    if (c < blocks) all_[c] = {.current = static_cast<uint32_t>(c), .own = OwnFrom(c)};
  }
  return OkStatus();
}

uint32_t BlockColumns::OwnFrom(uint64_t block) const {
  while (block < blocks_ && !survey_->non_zero[block]) block += stride_;
  return block < blocks_ ? static_cast<uint32_t>(block) : kNoBlock;
}

uint32_t BlockColumns::AnnouncedNext(const Column& column) const {
  if (column.current == kNoBlock || column.own != column.current) return column.own;
  return OwnFrom(uint64_t{column.current} + stride_);
}

std::span<const float> BlockColumns::Block(uint32_t block) const {
  const size_t at = size_t{block} * lanes_;
  return data_.subspan(at, std::min(lanes_, data_.size() - at));
}

std::span<float> BlockColumns::SumOf(uint32_t block) {
  const size_t size = Block(block).size();
  if (sums_ == nullptr) return in_place_.subspan(size_t{block} * lanes_, size);
  sums_->blocks.push_back(block);
  sums_->values.resize(sums_->values.size() + lanes_);
  return std::span(sums_->values).last(lanes_).first(size);
}

bool BlockColumns::Active(size_t slot) const {
  for (size_t j = 0; j < columns_; ++j) {
    if (all_[slot * columns_ + j].current != kNoBlock) return true;
  }
  return false;
}

bool BlockColumns::HasBlock(size_t slot) const {
  for (size_t j = 0; j < columns_; ++j) {
    const Column& column = all_[slot * columns_ + j];
    if (column.current != kNoBlock && column.own == column.current) return true;
  }
  return false;
}

void BlockColumns::Build(size_t slot, PacketHeader* header, std::span<std::byte> payload) {
  size_t at = columns_ * 4;
  header->offset = all_[slot * columns_].current;
  header->detail = 0;
  for (size_t j = 0; j < columns_; ++j) {
    const Column& column = all_[slot * columns_ + j];
    const uint32_t next = AnnouncedNext(column);
    StoreLanes({&next, 1}, little_endian_, payload.subspan(j * 4));
    if (column.current == kNoBlock || column.own != column.current) continue;
    header->detail |= uint32_t{1} << j;
    Quantise(Block(column.current), code_, bits_, lane_buffer_);
    StoreLanes(lane_buffer_, little_endian_, payload.subspan(at));
    at += lanes_ * 4;
    ++blocks_sent_;
  }
}

// A next block that does not lie ahead would keep the stream running for ever, and one that skips a
// block of this worker would lose it.
Status BlockColumns::CheckStep(const Column& column, const Step& step) const {
  const uint32_t announced = AnnouncedNext(column);
  const bool ours = column.current != kNoBlock && column.own == column.current;
  bool right = step.next <= announced && (step.present || !ours) &&
               (column.current != kNoBlock || (!step.present && step.next == kNoBlock));
  if (step.next != kNoBlock) {
    right = right && step.next > column.current && step.next < blocks_ &&
            (step.next - column.current) % stride_ == 0;
  }
  if (right) return OkStatus();
  return DataLoss(StrCat("sparse column at block ", column.current, " of ", blocks_,
                         ": expected a next block up to ", announced, " in steps of ", stride_,
                         ", found ", step.next, step.present ? " with a sum" : " without a sum"));
}

Status BlockColumns::Accept(size_t slot, const Packet& packet) {
  std::array<Step, kColumnsMax> steps;
  for (size_t j = 0; j < columns_; ++j) {
    LoadLanes(packet.payload.subspan(j * 4), little_endian_, {&steps[j].next, 1});
    steps[j].present = (packet.header.detail >> j & 1) != 0;
    WEIR_RETURN_IF_ERROR(CheckStep(all_[slot * columns_ + j], steps[j]));
  }
  size_t at = columns_ * 4;
  for (size_t j = 0; j < columns_; ++j) {
    Column& column = all_[slot * columns_ + j];
    if (steps[j].present) {
      LoadLanes(packet.payload.subspan(at), little_endian_, lane_buffer_);
      Dequantise(lane_buffer_, code_, bits_, SumOf(column.current));
      at += lanes_ * 4;
    }
    column.own = column.current == kNoBlock ? kNoBlock : AnnouncedNext(column);
    column.current = steps[j].next;
  }
  return OkStatus();
}

}  // namespace weir::aggregation
