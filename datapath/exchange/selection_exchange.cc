// SPDX-License-Identifier: Apache-2.0
#include "datapath/exchange/selection_exchange.h"

#include <algorithm>
#include <cmath>

namespace weir {

Status SelectionExchange::EncodeFirst() {
  payload_ = env_.pool.Take(SelectionBytesMax());
  WEIR_RETURN_IF_ERROR(RunEncoder());
  selection_bytes_ = outcome_.payload_bytes;
  selection_energy_ = outcome_.energy_in - outcome_.residual_energy;
  outcome_.residual_energy = outcome_.energy_in;  // less what is sent
  return OkStatus();
}

Status SelectionExchange::MovePayloads(Group& group) {
  WEIR_RETURN_IF_ERROR(MoveSelection(group));
  outcome_.payload_bytes = selection_bytes_ + chosen_.values.size() * sizeof(float);
  return OkStatus();
}

std::vector<float> SelectionExchange::ValuesAt(std::span<const uint32_t> indices) const {
  std::vector<float> values;
  values.reserve(indices.size());
  for (const uint32_t index : indices) values.push_back(residual_->next[index]);
  return values;
}

Status SelectionExchange::Decode() {
  if (chosen_.values.size() != chosen_.indices.size()) {
    return Internal(StrCat("expected ", chosen_.indices.size(), " summed values, found ",
                           chosen_.values.size()));
  }
  std::fill(gradient_.begin(), gradient_.end(), 0.0f);
  bool finite = true;
  for (size_t i = 0; i < chosen_.indices.size(); ++i) {
    const float value = chosen_.values[i] * scale_;
    finite = finite && std::isfinite(value);
    gradient_[chosen_.indices[i]] = value;
  }
  for (const uint32_t index : sent()) residual_->next[index] = 0;
  outcome_.non_finite = !finite;
  return OkStatus();
}

}  // namespace weir
