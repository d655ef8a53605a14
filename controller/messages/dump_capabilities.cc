// SPDX-License-Identifier: Apache-2.0
// Writes the capabilities of this build's datapath as a C++ raw string literal, for
// builtin_capabilities.cc.

#include <cstdio>
#include <fstream>

#include "datapath/agent_link/agent_protocol.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: weir_dump_capabilities OUTPUT\n");
    return 2;
  }
  std::ofstream out(argv[1], std::ios::trunc);
  out << "R\"capabilities(" << weir::CapabilitiesJson() << ")capabilities\"\n";
  out.close();
  if (!out) {
    std::fprintf(stderr, "weir_dump_capabilities: cannot write %s\n", argv[1]);
    return 1;
  }
  return 0;
}
