// SPDX-License-Identifier: Apache-2.0
// Messages from an agent, or from any program on its socket, and plan files: parsing never crashes,
// and a plan that is accepted says the same after a round trip.

#include <string_view>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/base/check.h"
#include "datapath/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto command = ParseRankCommand(text); !command.ok()) {
    WEIR_CHECK(!Message(command.status()).empty());
  }
  for (const UnknownKeys unknown : {UnknownKeys::kIgnore, UnknownKeys::kReject}) {
    const auto plan = ParsePlan(text, unknown);
    if (!plan.ok()) continue;
    const auto again = ParsePlan(PlanToJson(*plan), UnknownKeys::kReject);
    WEIR_CHECK(again.ok());
    WEIR_CHECK(PlanDigest(*again) == PlanDigest(*plan));
  }
  return 0;
}
