// EF21 over random_k: changes of the gradient at seeded positions. Payload: as random_k. Source and
// law: ef21.h.

#include "datapath/codec/residual/ef21.h"

namespace weir {

void RegisterEf21RandomK(Registry<Codec>& registry, uint8_t id) {
  // The list names the inner codec first.
  const auto inner = registry.Find("random_k");
  WEIR_CHECK(inner.ok());
  registry.Add(
      id, MakeEf21Codec(**inner, "ef21_random_k",
                        "changes of the gradient at seeded positions (Richtarik et al. 2021)"));
}

}  // namespace weir
