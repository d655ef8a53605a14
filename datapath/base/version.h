#pragma once
// The library's version. The top-level CMakeLists.txt is the one place that states it.

namespace weir {
inline constexpr char kLibraryVersion[] = WEIR_VERSION;
}  // namespace weir
