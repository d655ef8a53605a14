// SPDX-License-Identifier: Apache-2.0
// Policy files from arbitrary bytes, YAML or JSON: reading never crashes, and what is refused says
// why.

#include <string_view>

#include "controller/policy/policy.h"
#include "datapath/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto policy = ParsePolicy(text, "fuzz.yaml");
  if (!policy.ok()) {
    WEIR_CHECK(Message(policy.status()).find("fuzz.yaml") != std::string::npos);
    return 0;
  }
  WEIR_CHECK(policy->ratio_min <= policy->ratio_max);
  WEIR_CHECK(policy->confidence >= 0.5 && policy->confidence < 1);
  return 0;
}
