// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/device_parts.h"

#include <algorithm>

#include "datapath/codec/device.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

// A rank that waits for its device looks again after a share of the time that it has waited.
constexpr int kPauseShare = 8;
// Shorter exchanges measure latencies and pauses, not a bandwidth.
constexpr size_t kMeasuredBytesMin = 1 << 20;
constexpr Duration kPauseMin = std::chrono::microseconds(5), kPauseMax = kPauseMin * 40;

std::span<float> FloatsOf(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::span<std::byte> PartOf(Parts parts, int place) {
  return static_cast<size_t>(place) < parts.size() ? parts[static_cast<size_t>(place)]
                                                   : std::span<std::byte>();
}

// Waits for the devices. In the meantime a rank may die or report an error, which no device says.
Status Await(Group& group, DeviceGroup& devices) {
  const TimePoint begin = RealClock().Now();
  for (;;) {
    WEIR_ASSIGN_OR_RETURN(const bool done, devices.IsDone());
    if (done) return OkStatus();
    const Duration pause =
        std::clamp((RealClock().Now() - begin) / kPauseShare, kPauseMin, kPauseMax);
    WEIR_RETURN_IF_ERROR(
        group.Pause(pause, StrCat("the devices of the node of rank ", group.NameOf(group.rank()),
                                  " have not moved its elements in time")));
  }
}

Status Exchange(Group& group, std::span<const std::span<const float>> outgoing,
                std::span<const std::span<float>> incoming) {
  DeviceGroup& devices = *group.devices();
  size_t sent = 0, received = 0;
  for (const auto& part : outgoing) sent += part.size_bytes();
  for (const auto& part : incoming) received += part.size_bytes();
  const TimePoint begin = RealClock().Now();
  Status status = devices.Exchange(outgoing, incoming);
  if (status.ok()) status = Await(group, devices);
  if (!status.ok()) devices.Abort();  // before the memory is used for something else
  if (const size_t bytes = std::max(sent, received); bytes >= kMeasuredBytesMin) {
    group.CountDevices(bytes, RealClock().Now() - begin);
  }
  return FailOnError(group, status);
}

}  // namespace

Status FailOnError(Group& group, const Status& status) {
  return status.ok() ? status : group.Fail(status);
}

StatusOr<bool> AllOnDevices(Group& group, bool own) {
  const std::byte mine{static_cast<unsigned char>(own)};
  std::vector<std::byte> all(static_cast<size_t>(group.size()));
  WEIR_RETURN_IF_ERROR(SmallAllGather(group, std::span(&mine, 1), all));
  return std::ranges::all_of(all, [](std::byte each) { return each == std::byte{1}; });
}

Status ReducePartsByDevices(Group& group, const NodeSumOperand& operand) {
  const int ranks = group.size(), rank = group.rank();
  const std::span<float> own = FloatsOf(PartOf(operand.parts, rank));
  Device& device = operand.device->device();
  StatusOr<ScratchBuffer> memory =
      device.TakeMemory(std::max<size_t>(own.size_bytes(), 1) * static_cast<size_t>(ranks - 1));
  if (!memory.ok()) return group.Fail(memory.status());
  const std::span<float> addends = memory->floats(own.size() * static_cast<size_t>(ranks - 1));
  std::vector<std::span<const float>> outgoing(static_cast<size_t>(ranks));
  std::vector<std::span<float>> incoming(static_cast<size_t>(ranks));
  for (int peer = 0, next = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    outgoing[static_cast<size_t>(peer)] = FloatsOf(PartOf(operand.parts, peer));
    incoming[static_cast<size_t>(peer)] =
        addends.subspan(own.size() * static_cast<size_t>(next++), own.size());
  }
  WEIR_RETURN_IF_ERROR(Exchange(group, outgoing, incoming));
  for (const std::span<float> addend : incoming) {
    WEIR_RETURN_IF_ERROR(
        FailOnError(group, device.AddFloats(own.data(), addend.data(), addend.size())));
  }
  return OkStatus();
}

Status GatherPartsByDevices(Group& group, const NodeSumOperand& operand) {
  const int ranks = group.size(), rank = group.rank();
  std::vector<std::span<const float>> outgoing(static_cast<size_t>(ranks));
  std::vector<std::span<float>> incoming(static_cast<size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    outgoing[static_cast<size_t>(peer)] = FloatsOf(PartOf(operand.parts, rank));
    incoming[static_cast<size_t>(peer)] = FloatsOf(PartOf(operand.parts, peer));
  }
  return Exchange(group, outgoing, incoming);
}

HostParts::HostParts(const NodeSumOperand& operand)
    : operand_(operand),
      memory_(operand.device->device().pinned().Take(operand.lanes.bytes.size())),
      lanes_(operand.lanes) {
  lanes_.bytes = memory_.bytes();
  size_t at = 0;
  for (const std::span<std::byte> part : operand.parts) {
    parts_.push_back(lanes_.bytes.subspan(at, part.size()));
    at += part.size();
  }
}

Status HostParts::ReadAll() {
  const std::span<float> to = FloatsOf(lanes_.bytes), from = FloatsOf(operand_.lanes.bytes);
  return operand_.device->device().ReadFloats(to.data(), from.data(), to.size());
}

Status HostParts::ReadPart(int place) {
  const std::span<float> to = FloatsOf(PartOf(parts_, place));
  if (to.empty()) return OkStatus();
  return operand_.device->device().ReadFloats(
      to.data(), FloatsOf(PartOf(operand_.parts, place)).data(), to.size());
}

Status HostParts::WritePart(int place) {
  const std::span<float> from = FloatsOf(PartOf(parts_, place));
  if (from.empty()) return OkStatus();
  return operand_.device->device().WriteFloats(FloatsOf(PartOf(operand_.parts, place)).data(),
                                               from.data(), from.size());
}

Status HostParts::WriteOthers(int place) {
  for (int other = 0; static_cast<size_t>(other) < parts_.size(); ++other) {
    if (other != place) WEIR_RETURN_IF_ERROR(WritePart(other));
  }
  return OkStatus();
}

}  // namespace weir
