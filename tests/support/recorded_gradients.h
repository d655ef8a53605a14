// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gradients recorded in tests/data/gradients: realistic inputs of codecs, with layers of
// different scale and embeddings of which a step touches few rows.

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "datapath/base/check.h"

namespace weir::testing {

struct RecordedGradient {
  std::string name;  // file name without ending, e.g. "step100_layers"
  std::vector<float> values;
};

/// Every recording below `tests_directory`, ordered by name. A missing directory or a file that is
/// not whole floats is a bug.
inline std::vector<RecordedGradient> RecordedGradients(const std::string& tests_directory) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<RecordedGradient> all;
  const std::filesystem::path directory = std::filesystem::path(tests_directory) / "data/gradients";
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".f32") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    WEIR_CHECK(!bytes.empty() && bytes.size() % sizeof(float) == 0);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    all.push_back({entry.path().stem().string(), std::move(values)});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

}  // namespace weir::testing
