// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a file has changed, without reading it.

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>

namespace weir {

/// Device, inode, size and times of a file; all zero if it cannot be looked at. Two states that are
/// equal are of the same contents. Take the state before you read, so that a change in between is
/// noticed the next time.
using FileState = std::array<int64_t, 7>;

inline FileState StateOf(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return {};
  return {int64_t(file.st_dev),         int64_t(file.st_ino),          int64_t(file.st_size),
          int64_t(file.st_mtim.tv_sec), int64_t(file.st_mtim.tv_nsec), int64_t(file.st_ctim.tv_sec),
          int64_t(file.st_ctim.tv_nsec)};
}

}  // namespace weir
