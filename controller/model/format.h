// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers as people read them in reasons and triggers.

#include <string>

namespace weir {

/// "3.4 s", "21 ms", "85 us".
std::string SecondsText(double seconds);
/// "6.2 MB/s", "1.3 GB/s".
std::string BandwidthText(double bytes_per_s);
/// About two significant digits: "0.41", "97".
std::string NumberText(double value);

}  // namespace weir
