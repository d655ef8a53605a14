// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shells and service managers give programs a low limit of open files and let them raise it
// themselves. Every connection is an open file.

#include <cstdint>

namespace weir {

/// Raises the limit of open files to the highest that this process may have, and returns it. Not
/// thread-safe: to be called before threads are started.
uint64_t RaiseFileLimit();

}  // namespace weir
