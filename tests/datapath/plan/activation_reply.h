// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <variant>

#include "datapath/plan/plan_activation.h"

namespace weir {

/// Why a rank refused; empty when it did not.
inline std::string NackOf(const ActivationReply& reply) {
  const auto* nack = std::get_if<PlanNack>(&reply);
  return nack == nullptr ? "" : nack->reason;
}

}  // namespace weir
