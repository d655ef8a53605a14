// SPDX-License-Identifier: Apache-2.0
// Writes the capabilities of this build's datapath as a C++ raw string literal, for
// builtin_capabilities.cc.

#include <cstdio>
#include <fstream>

#include "datapath/agent_link/agent_protocol.h"
#include "datapath/codec/measure/codec_timing.h"
#include "datapath/cuda/device.h"

namespace {

/// The codecs that this release has for devices. Built for the host, which is one, it has the same.
std::vector<std::string> CodecsOfDevices() {
  std::vector<std::string> names;
  const weir::StatusOr<weir::Device*> device = weir::cuda::FindDevice(0);
  for (const weir::Codec* codec : weir::Codecs().All()) {
    if (device.ok() && weir::EncodesOn(**device, *codec)) names.push_back(codec->Traits().name);
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: weir_dump_capabilities OUTPUT\n");
    return 2;
  }
  std::ofstream out(argv[1], std::ios::trunc);
  out << "R\"capabilities(" << weir::DeviceCapabilitiesJson(CodecsOfDevices())
      << ")capabilities\"\n";
  out.close();
  if (!out) {
    std::fprintf(stderr, "weir_dump_capabilities: cannot write %s\n", argv[1]);
    return 1;
  }
  return 0;
}
