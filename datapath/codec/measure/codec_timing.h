// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time that each codec takes on this host, measured before its first use, so that a planner
// need not guess the time of a codec that has not run yet.

#include <map>
#include <string>

namespace weir {

/// seconds = per_element_s * elements + per_kept_s * kept elements (0 for codecs without a ratio).
struct CodecTime {
  double per_element_s = 0, per_kept_s = 0;
};

struct CodecTiming {
  CodecTime encode;  // with error feedback and statistics where the codec has them
  CodecTime decode;  // decode of one payload
};

/// The timings by codec name, without codecs that returned an error. Encodes and decodes 2^19
/// Gaussian floats (2 MiB, more than most second-level caches) a few times with every codec, which
/// takes about 0.05 s of one core. The first call of a process measures, under the load of that
/// moment; later calls return the same. Thread-safe.
const std::map<std::string, CodecTiming>& CodecTimings();

}  // namespace weir
