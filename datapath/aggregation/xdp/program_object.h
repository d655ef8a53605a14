#pragma once
// The compiled program, which lies in the library: it is found wherever the library is.

#include <cstddef>
#include <span>

namespace weir::aggregation {

/// An ELF object of the kernel's machine. Thread-safe, O(1).
std::span<const std::byte> XdpProgramObject();

}  // namespace weir::aggregation
