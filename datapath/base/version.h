// SPDX-License-Identifier: Apache-2.0
#pragma once
// The version of the library, which only the top-level CMakeLists.txt states.

namespace weir {
inline constexpr char kLibraryVersion[] = WEIR_VERSION;
}  // namespace weir
