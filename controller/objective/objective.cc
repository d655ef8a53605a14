// SPDX-License-Identifier: Apache-2.0
// The registry of objectives, and the code that they share.

#include "controller/objective/objective.h"

namespace weir {

#define WEIR_OBJECTIVE(Name, id) \
  void Register##Name(Registry<Objective>& registry, uint8_t wire_id);
#include "controller/objective/builtin_objectives.def"
#undef WEIR_OBJECTIVE

Status Objective::Validate(const Policy& policy) const { return OkStatus(); }

CandidateScope Objective::Scope(const Policy& policy) const { return {}; }

const Registry<Objective>& Objectives() {
  static const Registry<Objective>& registry = [&]() -> const Registry<Objective>& {
    static Registry<Objective> filled("objective");
#define WEIR_OBJECTIVE(Name, id) Register##Name(filled, id);
#include "controller/objective/builtin_objectives.def"
#undef WEIR_OBJECTIVE
    return filled;
  }();
  return registry;
}

Status CheckObjective(const Policy& policy) {
  WEIR_ASSIGN_OR_RETURN(const Objective* objective, Objectives().Find(policy.objective));
  return objective->Validate(policy);
}

}  // namespace weir
