// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/xdp/program_object.h"

// The build compiles aggregate.bpf.c to this file (CMakeLists.txt).
__asm__(
    ".section .rodata\n"
    ".balign 16\n"
    "weir_xdp_program_begin:\n"
    ".incbin \"" WEIR_XDP_PROGRAM_FILE
    "\"\n"
    "weir_xdp_program_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" const std::byte weir_xdp_program_begin[], weir_xdp_program_end[];

namespace weir::aggregation {

std::span<const std::byte> XdpProgramObject() {
  return {weir_xdp_program_begin, weir_xdp_program_end};
}

}  // namespace weir::aggregation
