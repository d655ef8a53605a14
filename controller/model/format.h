// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers as people read them: in reasons, explain, weirctl and simulate. Rates of links are in
// bits a second, sizes in bytes; both with factors of 1000. Three significant digits, no trailing
// zeros. The page's dashboards/web/src/format.js gives the same texts; tests/data/units.json has
// the cases that both must meet. All functions are thread-safe. "-" stands for what is not finite,
// and for a rate or an age that cannot be.

#include <string>

namespace weir {

/// "3.4 s", "21.3 ms", "85 us"; from two minutes on "5 min", from two hours on "3.5 h".
std::string SecondsText(double seconds);
/// "49.6 Mb/s", "10 Gb/s". "-" unless positive.
std::string BandwidthText(double bytes_per_s);
/// "1.5 kB", "100 MB".
std::string BytesText(double bytes);
/// A share: "34 %", "3.4 %", "99.5 %".
std::string PercentText(double share);
/// "0.413", "97", "12300", "1.2e6".
std::string NumberText(double value);
/// "12 s", "3 min", "5 h", "20 d"; "-" if negative.
std::string AgeText(double seconds);
/// The codec as operators know it: "dense" for the one that sends every element, which plans and
/// the datapath call "identity"; others by their own names.
std::string CodecText(const std::string& codec);
/// The other way: "identity" for "dense".
std::string CodecNamed(const std::string& text);
/// `text` of `value` with its relative deviation: "33 Mb/s +/- 5 %". A deviation above the value
/// itself says no more than that nothing is known: "33 Mb/s, hardly known". `text` alone where
/// there is no deviation or no value.
std::string WithDeviation(const std::string& text, double value, double deviation);

}  // namespace weir
