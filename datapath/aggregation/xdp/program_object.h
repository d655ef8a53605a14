// SPDX-License-Identifier: Apache-2.0
#pragma once
// The compiled program. It is embedded in the library, so that it is found wherever the library is.

#include <cstddef>
#include <span>

namespace weir::aggregation {

/// The program as an ELF object for the kernel's BPF machine. Thread-safe, O(1).
std::span<const std::byte> XdpProgramObject();

}  // namespace weir::aggregation
