// SPDX-License-Identifier: Apache-2.0
// The registry of collectives and the evaluation of their cost features.

#include "datapath/collective/collective.h"

#include <bit>

namespace weir {

#define WEIR_COLLECTIVE(name, id) \
  void Register##name(Registry<Collective>& registry, uint8_t wire_id);
#include "datapath/collective/builtin_collectives.def"
#undef WEIR_COLLECTIVE

namespace {

constexpr uint8_t kWireIds[] = {
#define WEIR_COLLECTIVE(name, id) id,
#include "datapath/collective/builtin_collectives.def"
#undef WEIR_COLLECTIVE
};

constexpr bool WireIdsAreUniqueAndNonZero() {
  for (size_t i = 0; i < std::size(kWireIds); ++i) {
    if (kWireIds[i] == 0) return false;
    for (size_t j = 0; j < i; ++j) {
      if (kWireIds[i] == kWireIds[j]) return false;
    }
  }
  return true;
}
static_assert(WireIdsAreUniqueAndNonZero(), "two collectives share a wire id, or one has id 0");

}  // namespace

double WorldFunction::At(int world) const {
  const double n_ranks = world;
  // bit_width(N - 1) is ceil(log2 N) for N >= 1.
  const double levels = world > 1 ? std::bit_width(static_cast<unsigned>(world - 1)) : 0;
  return constant + n_minus_1 * (n_ranks - 1) + n_minus_1_over_n * (n_ranks - 1) / n_ranks +
         log2_n * levels + n * n_ranks;
}

const Registry<Collective>& Collectives() {
  // It is never destroyed, because sessions may outlive static destructors.
  static const Registry<Collective>* const registry = [] {
    auto* filled = new Registry<Collective>("collective");
#define WEIR_COLLECTIVE(name, id) Register##name(*filled, id);
#include "datapath/collective/builtin_collectives.def"
#undef WEIR_COLLECTIVE
    return filled;
  }();
  return *registry;
}

}  // namespace weir
