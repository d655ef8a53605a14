// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/builtin_capabilities.h"

#include "controller/messages/json.h"
#include "datapath/base/check.h"

namespace weir {
namespace {

constexpr const char* kCapabilities =
#include "builtin_capabilities.inc"
    ;

}  // namespace

const v1::Capabilities& BuiltinCapabilities() {
  static const v1::Capabilities& builtin = *[] {
    auto* capabilities = new v1::Capabilities;
    WEIR_CHECK(FromJson(kCapabilities, capabilities).ok());
    return capabilities;
  }();
  return builtin;
}

}  // namespace weir
