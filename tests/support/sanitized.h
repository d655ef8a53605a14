// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weir::test {

/// How many times fewer repetitions do where a sanitizer makes each of them ten times slower: 1
/// without one. A sanitizer looks for wrong code, which a part of the cases runs as well; the rest
/// tests values.
#ifdef WEIR_SANITIZED
inline constexpr int kFewer = 5;
#else
inline constexpr int kFewer = 1;
#endif

}  // namespace weir::test
