// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/lane.h"

#include <algorithm>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"

namespace weir::nccl {
namespace {

constexpr size_t kClearanceBytes = 4;

// Removes the frames of the next batch, in order.
std::vector<Frame*> TakeFront(std::deque<Frame*>* frames, size_t count) {
  std::vector<Frame*> taken(frames->begin(), frames->begin() + static_cast<ptrdiff_t>(count));
  frames->erase(frames->begin(), frames->begin() + static_cast<ptrdiff_t>(count));
  return taken;
}

}  // namespace

ControlMessage Lane::Announce(Frame* frame) {
  frame->header.type = FrameType::kData;
  frame->header.source_rank = static_cast<uint16_t>(self_);
  frame->header.payload_bytes = static_cast<uint32_t>(frame->buffer.size());
  frame->header.payload_checksum = 0;  // NCCL's links check the payload
  ControlMessage message(kFrameHeaderBytes);
  EncodeFrameHeader(frame->header,
                    std::span<std::byte, kFrameHeaderBytes>(message.data(), kFrameHeaderBytes));
  if (frame->buffer.empty()) {
    frame->done = true;
  } else {
    announced_by_us_.push_back(frame);
  }
  return message;
}

Status Lane::Broken(const std::string& what) const {
  return DataLoss(StrCat(name_, " sent ", what));
}

Status Lane::OnMessage(std::span<const std::byte> message) {
  if (departed_) return Broken("a message after its shutdown notice");
  if (message.empty()) {
    departed_ = true;
    return OkStatus();
  }
  if (message.size() == kClearanceBytes) {
    ByteReader reader(message);
    uint32_t count = 0;
    WEIR_RETURN_IF_ERROR(reader.Read(&count));
    size_t cleared = 0;
    for (const uint32_t batch : clearances_) cleared += batch;
    if (count == 0 || count > kBatchMax || cleared + count > announced_by_us_.size()) {
      return Broken(StrCat("a clearance of ", count, " frames; expected 1..", kBatchMax, ", and ",
                           announced_by_us_.size() - cleared, " wait for one"));
    }
    clearances_.push_back(count);
    return OkStatus();
  }
  if (message.size() != kFrameHeaderBytes) {
    return Broken(StrCat("a message of ", message.size(), " bytes; expected 0, ", kClearanceBytes,
                         " or ", kFrameHeaderBytes));
  }
  const auto header = DecodeFrameHeader(message.first<kFrameHeaderBytes>());
  if (!header.ok()) return Annotate(header.status(), StrCat(name_, " sent a malformed header"));
  if (header->source_rank != peer_ || header->type != FrameType::kData) {
    return Broken(StrCat("a header of rank ", header->source_rank));
  }
  if (announced_by_peer_.size() == kFramesMax) {
    return Broken(StrCat("more than ", kFramesMax, " frames that nobody receives"));
  }
  announced_by_peer_.push_back(*header);
  return OkStatus();
}

Status Lane::Match() {
  while (!announced_by_peer_.empty() && !receives_.empty()) {
    Frame* const frame = receives_.front();
    const FrameHeader& header = announced_by_peer_.front();
    if (header.payload_bytes > frame->buffer.size()) {
      return Broken(StrCat(header.payload_bytes, " bytes (", Describe(header), ") where at most ",
                           frame->buffer.size(), " were expected"));
    }
    frame->header = header;
    if (header.payload_bytes == 0) {
      frame->done = true;
    } else {
      ready_.push_back(frame);
    }
    announced_by_peer_.pop_front();
    receives_.pop_front();
  }
  return OkStatus();
}

Status Lane::Drive(std::vector<ControlMessage>* tell, bool* progress) {
  WEIR_RETURN_IF_ERROR(Finish(*in_, &arriving_, progress));
  WEIR_RETURN_IF_ERROR(Finish(*out_, &leaving_, progress));
  WEIR_RETURN_IF_ERROR(Match());
  WEIR_RETURN_IF_ERROR(BeginArriving(tell, progress));
  return BeginLeaving(progress);
}

Status Lane::Finish(Channel& channel, std::vector<Frame*>* frames, bool* progress) {
  if (frames->empty()) return OkStatus();
  const StatusOr<bool> done = channel.Done();
  if (!done.ok()) return Annotate(done.status(), name_);
  if (!*done) return OkStatus();
  for (Frame* frame : *frames) frame->done = true;
  frames->clear();
  *progress = true;
  return OkStatus();
}

Status Lane::Begin(Channel& channel, const std::vector<Frame*>& frames) {
  std::vector<std::span<std::byte>> buffers;
  for (const Frame* frame : frames) {
    buffers.push_back(frame->buffer.first(frame->header.payload_bytes));
  }
  const Status status = channel.Begin(buffers);
  return status.ok() ? status : Annotate(status, name_);
}

Status Lane::BeginArriving(std::vector<ControlMessage>* tell, bool* progress) {
  if (!arriving_.empty() || ready_.empty()) return OkStatus();
  arriving_ = TakeFront(&ready_, std::min(ready_.size(), kBatchMax));
  ControlMessage clearance(kClearanceBytes);
  ByteWriter writer(clearance);
  writer.Write(static_cast<uint32_t>(arriving_.size()));
  WEIR_CHECK(writer.ok());
  tell->push_back(std::move(clearance));
  *progress = true;
  return Begin(*in_, arriving_);
}

Status Lane::BeginLeaving(bool* progress) {
  if (!leaving_.empty() || clearances_.empty()) return OkStatus();
  leaving_ = TakeFront(&announced_by_us_, clearances_.front());
  clearances_.pop_front();
  *progress = true;
  return Begin(*out_, leaving_);
}

bool Lane::CannotFinish(const Frame& frame) const {
  const auto waits_in = [&](const std::deque<Frame*>& frames) {
    return std::find(frames.begin(), frames.end(), &frame) != frames.end();
  };
  if (!departed_ || frame.done) return false;
  return frame.send ? clearances_.empty() && waits_in(announced_by_us_) : waits_in(receives_);
}

}  // namespace weir::nccl
