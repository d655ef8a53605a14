// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/builtin_capabilities.h"

#include <algorithm>

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
    auto* capabilities = new v1::Capabilities(BuiltinDeviceCapabilities());
    for (v1::CodecCapability& codec : *capabilities->mutable_codecs()) {
      codec.clear_device_encode();
      codec.clear_device_decode();
    }
    auto* const collectives = capabilities->mutable_collectives();
    collectives->erase(
        std::remove_if(collectives->begin(), collectives->end(),
                       [](const v1::CollectiveCapability& one) { return one.by_caller(); }),
        collectives->end());
    return capabilities;
  }();
  return builtin;
}

const v1::Capabilities& BuiltinDeviceCapabilities() {
  static const v1::Capabilities& builtin = *[] {
    auto* capabilities = new v1::Capabilities;
    WEIR_CHECK(FromJson(kCapabilities, capabilities).ok());
    return capabilities;
  }();
  return builtin;
}

}  // namespace weir
