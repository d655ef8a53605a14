// SPDX-License-Identifier: Apache-2.0
#pragma once
// The input of the golden payloads in tests/golden/codec, and the form of those files.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace weir::test {

/// Cubes of a linear congruential sequence: the same floats on every machine, because libm is not
/// used.
inline std::vector<float> GoldenInput(size_t n) {
  std::vector<float> x(n);
  uint32_t state = 2024;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    const float u = static_cast<float>(static_cast<int32_t>(state) >> 8) * 0x1p-23f;
    v = u * u * u;
  }
  return x;
}

inline std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  char digits[3];
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(bytes[i]));
    text += digits;
    if (i % 32 == 31 || i + 1 == bytes.size()) text += '\n';
  }
  return text;
}

/// The bytes of a text that Hex made.
inline std::vector<std::byte> BytesOfHex(const std::string& text) {
  std::vector<std::byte> bytes;
  std::string digits;
  for (const char c : text) {
    if (c == '\n') continue;
    digits += c;
    if (digits.size() < 2) continue;
    bytes.push_back(static_cast<std::byte>(std::stoul(digits, nullptr, 16)));
    digits.clear();
  }
  return bytes;
}

/// The content of a file; empty when it is missing.
inline std::string ReadPayloadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace weir::test
