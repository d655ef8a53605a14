#pragma once
// How long each codec takes on this host, measured before its first use, so that a planner need not
// guess what it has never seen run.

#include <map>
#include <string>

namespace weir {

/// seconds = per_element_s * elements + per_kept_s * kept elements (0 for codecs without a ratio).
struct CodecTime {
  double per_element_s = 0, per_kept_s = 0;
};

struct CodecTiming {
  CodecTime encode;  // with error feedback and statistics where the codec has them
  CodecTime decode;  // of one payload
};

/// By codec name; a codec that refused to run is absent. Encodes and decodes 2^19 Gaussian floats
/// (2 MiB, beyond most second-level caches) a few times with every codec: about 0.05 s of one core.
/// The first call of a process measures, under whatever load there is, later ones return the same.
/// Thread-safe.
const std::map<std::string, CodecTiming>& CodecTimings();

}  // namespace weir
