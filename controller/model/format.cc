// SPDX-License-Identifier: Apache-2.0
// See format.h.

#include "controller/model/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace weir {
namespace {

// A number halfway between two texts takes the larger one, here as in the page.
constexpr double kHalfUp = 1 + 1e-12;
// From this much of a unit on, three digits round to a whole one.
constexpr double kNearlyOne = 0.9995;

struct Unit {
  double size;
  const char* name;
};

std::string Decimals(double value, int decimals) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  std::string out(text);
  if (out.find('.') != std::string::npos) {
    out.erase(out.find_last_not_of('0') + 1);
    if (out.back() == '.') out.pop_back();
  }
  return out == "-0" ? "0" : out;
}

std::string Significant(double value, int digits) {
  if (value == 0) return "0";
  char scientific[48];
  std::snprintf(scientific, sizeof(scientific), "%.*e", digits - 1, value * kHalfUp);
  const std::string text(scientific);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent >= 6 || exponent < -3) {
    return Decimals(std::atof(text.substr(0, e).c_str()), digits - 1) + "e" +
           std::to_string(exponent);
  }
  return Decimals(std::atof(scientific), std::max(0, digits - 1 - exponent));
}

// In the largest of `units`, which descend, that the value reaches, else in the last.
std::string Scaled(double value, std::span<const Unit> units) {
  const Unit* unit = &units.back();
  for (const Unit& each : units) {
    if (std::fabs(value) < each.size * kNearlyOne) continue;
    unit = &each;
    break;
  }
  return Significant(value / unit->size, 3) + " " + unit->name;
}

}  // namespace

std::string SecondsText(double seconds) {
  constexpr Unit kUnits[] = {{1e-3, "ms"}, {1e-6, "us"}};
  const double magnitude = std::fabs(seconds);
  if (!std::isfinite(seconds)) return "-";
  if (seconds == 0) return "0 s";
  if (magnitude >= 7200) return Significant(seconds / 3600, 3) + " h";
  if (magnitude >= 120) return Significant(seconds / 60, 3) + " min";
  if (magnitude >= 0.1 * kNearlyOne) return Significant(seconds, 3) + " s";
  return Scaled(seconds, kUnits);
}

std::string BandwidthText(double bytes_per_s) {
  constexpr Unit kUnits[] = {
      {1e12, "Tb/s"}, {1e9, "Gb/s"}, {1e6, "Mb/s"}, {1e3, "kb/s"}, {1, "b/s"}};
  if (!std::isfinite(bytes_per_s) || bytes_per_s <= 0) return "-";
  return Scaled(8 * bytes_per_s, kUnits);
}

std::string BytesText(double bytes) {
  constexpr Unit kUnits[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}};
  return std::isfinite(bytes) ? Scaled(bytes, kUnits) : "-";
}

std::string PercentText(double share) {
  if (!std::isfinite(share)) return "-";
  const double percent = 100 * share * kHalfUp, magnitude = std::fabs(percent);
  if (magnitude > 99 && magnitude < 100) return Decimals(percent, 1) + " %";
  if (magnitude >= 9.95) return Decimals(percent, 0) + " %";
  return Significant(100 * share, 2) + " %";
}

std::string NumberText(double value) { return std::isfinite(value) ? Significant(value, 3) : "-"; }

std::string AgeText(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 120) return Decimals(seconds * kHalfUp, 0) + " s";
  if (seconds < 7200) return Decimals(seconds / 60 * kHalfUp, 0) + " min";
  if (seconds < 48 * 3600) return Decimals(seconds / 3600 * kHalfUp, 0) + " h";
  return Decimals(seconds / 86400 * kHalfUp, 0) + " d";
}

std::string CodecText(const std::string& codec) { return codec == "identity" ? "dense" : codec; }

std::string CodecNamed(const std::string& text) { return text == "dense" ? "identity" : text; }

std::string WithDeviation(const std::string& text, double value, double deviation) {
  if (!(value > 0) || !(deviation > 0) || !std::isfinite(value)) return text;
  if (!(deviation < value)) return text + ", hardly known";
  return text + " +/- " + PercentText(deviation / value);
}

}  // namespace weir
