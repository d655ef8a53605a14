// SPDX-License-Identifier: Apache-2.0
// The registry of objectives, and the code that they share.

#include "controller/objective/objective.h"

#include <algorithm>

namespace weir {
namespace {

// The line that names the objective, or 1 if there is none.
size_t ObjectiveLine(std::string_view source, std::string_view objective) {
  const size_t key = source.find("objective");
  const size_t at = key == source.npos ? key : source.find(objective, key);
  if (at == source.npos) return 1;
  return 1 + static_cast<size_t>(std::count(source.begin(), source.begin() + at, '\n'));
}

}  // namespace

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

StatusOr<Policy> ReadPolicy(std::string_view source, std::string_view origin,
                            const PolicyNames* known) {
  WEIR_ASSIGN_OR_RETURN(Policy policy, ParsePolicy(source, origin, known));
  const Status fits = CheckObjective(policy);
  if (fits.ok()) return policy;
  return InvalidArgument(StrCat(origin, ":", ObjectiveLine(source, policy.objective),
                                ": objective.name: ", Message(fits)));
}

}  // namespace weir
