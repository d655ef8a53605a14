// EF21 over top_k: the largest changes of the gradient. Payload: as top_k. Source and law:
// ef21.h.

#include "datapath/codec/residual/ef21.h"

namespace weir {

void RegisterEf21TopK(Registry<Codec>& registry, uint8_t id) {
  // The list names the inner codec first.
  const auto inner = registry.Find("top_k");
  WEIR_CHECK(inner.ok());
  registry.Add(id, MakeEf21Codec(**inner, "ef21_top_k",
                                 "the largest changes of the gradient (Richtarik et al. 2021)"));
}

}  // namespace weir
