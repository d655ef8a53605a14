// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads recorded bytes (tests/golden/**.hex: "# name", then lines "0000  57 45 ...  WE..") and
// finds them in documents, so that proto/WIRE.md prints the bytes that the code sends.

#include <cstddef>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace weir::testing {

struct GoldenBytes {
  std::vector<std::byte> bytes;
  std::string dump;  // the lines as they stand
};

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// By name; empty when the file is missing.
inline std::map<std::string, GoldenBytes> ReadGolden(const std::string& path) {
  std::map<std::string, GoldenBytes> all;
  GoldenBytes* current = nullptr;
  std::istringstream lines(ReadText(path));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# ")) {
      current = &all[line.substr(2)];
      continue;
    }
    if (current == nullptr || line.size() < 6) continue;
    current->dump += line + "\n";
    std::istringstream octets(line.substr(6, 48));
    for (std::string octet; octets >> octet;) {
      current->bytes.push_back(static_cast<std::byte>(std::stoi(octet, nullptr, 16)));
    }
  }
  return all;
}

}  // namespace weir::testing
