// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that tests write for the code under test to read.

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace weir::testing {

/// Writes `text` to a file of this process and returns its path. Tests of one program run at the
/// same time as separate processes, so the name alone would not be unique.
inline std::string TempFile(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + std::to_string(getpid()) + "-" + name;
  std::ofstream(path) << text;
  return path;
}

}  // namespace weir::testing
