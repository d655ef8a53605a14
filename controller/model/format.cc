// SPDX-License-Identifier: Apache-2.0
// See format.h.

#include "controller/model/format.h"

#include <cmath>
#include <cstdio>

namespace weir {
namespace {

std::string Digits(double value, const char* unit) {
  char text[48];
  const double magnitude = std::fabs(value);
  if (magnitude > 0 && magnitude < 0.0995) {
    std::snprintf(text, sizeof(text), "%.2g%s%s", value, *unit == 0 ? "" : " ", unit);
    return text;
  }
  const int decimals = magnitude >= 9.95 || magnitude == 0 ? 0 : magnitude >= 0.995 ? 1 : 2;
  std::snprintf(text, sizeof(text), "%.*f%s%s", decimals, value, *unit == 0 ? "" : " ", unit);
  return text;
}

}  // namespace

std::string SecondsText(double seconds) {
  const double magnitude = std::fabs(seconds);
  if (magnitude >= 0.0995) return Digits(seconds, "s");
  if (magnitude >= 0.995e-3) return Digits(seconds * 1e3, "ms");
  return Digits(seconds * 1e6, "us");
}

std::string BandwidthText(double bytes_per_s) {
  if (bytes_per_s >= 0.995e9) return Digits(bytes_per_s / 1e9, "GB/s");
  if (bytes_per_s >= 0.995e6) return Digits(bytes_per_s / 1e6, "MB/s");
  return Digits(bytes_per_s / 1e3, "kB/s");
}

std::string NumberText(double value) { return Digits(value, ""); }

}  // namespace weir
