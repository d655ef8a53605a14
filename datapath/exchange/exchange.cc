// SPDX-License-Identifier: Apache-2.0
// The registry of exchange forms. The codecs that a form carries follow from traits alone, so a
// controller that has only the traits gets the same result.

#include "datapath/exchange/exchange.h"

#include <array>

#include "datapath/base/check.h"

namespace weir {

bool Carries(const ExchangeTraits& form, const CodecTraits& codec) {
  if (codec.form != form.payload) return false;
  switch (form.need) {
    case CodecNeed::kNone:
      return true;
    case CodecNeed::kRawFloat:
      return IsRawFloat(codec);
    case CodecNeed::kTable:
      return !codec.settings.front().lane_levels.empty();
    case CodecNeed::kSumsOfRanks:
      return !codec.needs_momentum && !codec.ef21 && codec.shared_metadata == SharedMetadata::kNone;
  }
  return false;
}

void CodecMemory::Scale(double factor) {
  for (auto& state : states) {
    if (state != nullptr) state->Scale(factor);
  }
  balance.Scale(factor);
}

#define WEIR_EXCHANGE(Name, id) \
  void Register##Name(Registry<ExchangeForm>& registry, uint8_t form_id);
#include "datapath/exchange/builtin_exchanges.def"
#undef WEIR_EXCHANGE

namespace {

constexpr std::array kIds = {
#define WEIR_EXCHANGE(Name, id) id,
#include "datapath/exchange/builtin_exchanges.def"
#undef WEIR_EXCHANGE
};

constexpr bool IdsAreValid() {
  for (size_t i = 0; i < kIds.size(); ++i) {
    if (kIds[i] < 1 || kIds[i] > 255) return false;
    for (size_t j = 0; j < i; ++j) {
      if (kIds[i] == kIds[j]) return false;
    }
  }
  return true;
}
static_assert(IdsAreValid(), "builtin_exchanges.def: ids must differ and lie in 1..255");

}  // namespace

const Registry<ExchangeForm>& ExchangeForms() {
  // Never destroyed, because sessions may outlive static destructors.
  static const Registry<ExchangeForm>* const registry = [] {
    auto* filled = new Registry<ExchangeForm>("exchange form");
#define WEIR_EXCHANGE(Name, id) Register##Name(*filled, id);
#include "datapath/exchange/builtin_exchanges.def"
#undef WEIR_EXCHANGE
    return filled;
  }();
  return *registry;
}

const ExchangeForm& FormOf(const Collective& collective) {
  const StatusOr<const ExchangeForm*> form = ExchangeForms().Find(collective.Traits().form);
  WEIR_CHECK(form.ok());
  return **form;
}

}  // namespace weir
