// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/window.h"

#include <algorithm>

#include "datapath/transport/builtin/verbs/stream.h"

namespace weir::verbs {
namespace {
constexpr uint32_t kSlotBytes = 32 << 10;
constexpr uint32_t kSlots = 16;
constexpr size_t kPoolBytesMax = 6 << 20;  // queues need locked memory, too
}  // namespace

uint32_t FlowPlan::receive_slots() const { return receive.slots + kSpareSlots; }

size_t FlowPlan::PeerBytes() const {
  return size_t{receive.slot_bytes} * (receive_slots() + send_slots);
}

uint32_t FlowPlan::PeerCompletions() const { return receive_slots() + send_slots; }

StatusOr<FlowPlan> PlanFlow(int peers, const TransportOptions& options,
                            const DeviceLimits& limits) {
  const auto count = static_cast<uint64_t>(std::max(peers, 1));
  FlowPlan plan = {{kSlotBytes, kSlots}, kSlots + kReservedSendSlots};
  while (plan.PeerBytes() * count > kPoolBytesMax && plan.receive.slot_bytes > kSlotBytesMin) {
    plan.receive.slot_bytes /= 2;
  }
  while (plan.PeerBytes() * count > kPoolBytesMax && plan.receive.slots > kSlotsMin) {
    plan.receive.slots /= 2;
    plan.send_slots = plan.receive.slots + kReservedSendSlots;
  }
  const auto wish = [&](int bytes) {
    return static_cast<uint32_t>(
        std::clamp<int64_t>(bytes / plan.receive.slot_bytes, kSlotsMin, kSlotsMax));
  };
  if (options.receive_buffer_bytes > 0) plan.receive.slots = wish(options.receive_buffer_bytes);
  if (options.send_buffer_bytes > 0) {
    plan.send_slots = wish(options.send_buffer_bytes) + kReservedSendSlots;
  }
  const auto fits = [&] {
    return plan.PeerCompletions() * count <= limits.completions_max &&
           std::max(plan.receive_slots(), plan.send_slots) <= limits.work_requests_max;
  };
  while (!fits()) {
    const bool send = plan.send_slots > plan.receive.slots || plan.receive.slots == kSlotsMin;
    if (send && plan.send_slots > kSendSlotsMin) {
      plan.send_slots = std::max(plan.send_slots / 2, kSendSlotsMin);
    } else if (plan.receive.slots > kSlotsMin) {
      plan.receive.slots = std::max(plan.receive.slots / 2, kSlotsMin);
    } else {
      return ResourceExhausted(StrCat("world: ", peers, " peers need ",
                                      plan.PeerCompletions() * count, " completion entries and ",
                                      plan.receive_slots(), " work requests each; the device has ",
                                      limits.completions_max, " and ", limits.work_requests_max));
    }
  }
  return plan;
}

}  // namespace weir::verbs
