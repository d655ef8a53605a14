// SPDX-License-Identifier: Apache-2.0
#pragma once
// SwitchML's switch, exactly as published (except worlds of one, for which it has no rule), for
// tests that show its errors. Source: Sapio et al., "Scaling distributed machine learning with
// in-network aggregation", NSDI 2021, algorithm 3 (with recovery from loss); one lane, up to 32
// workers.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weir::aggregation {

class PublishedSwitch {
 public:
  enum class To { kNobody, kSender, kAll };
  struct Result {
    To to = To::kNobody;
    uint32_t value = 0;
  };

  PublishedSwitch(int workers, int slots) : workers_(workers) {
    for (Version& version : versions_) version.assign(static_cast<size_t>(slots), Cell{});
  }

  /// upon receive p(wid, ver, idx, vector)
  Result OnPacket(int wid, int ver, int idx, uint32_t vector) {
    Cell& own = versions_[ver][static_cast<size_t>(idx)];
    Cell& other = versions_[1 - ver][static_cast<size_t>(idx)];
    const uint32_t bit = uint32_t{1} << wid;
    if ((own.seen & bit) == 0) {
      own.seen |= bit;
      other.seen &= ~bit;
      own.count = (own.count + 1) % workers_;
      if (own.count == 1 % workers_) {
        own.pool = vector;
      } else {
        own.pool += vector;
      }
      if (own.count == 0) return {.to = To::kAll, .value = own.pool};
      return {};
    }
    if (own.count == 0) return {.to = To::kSender, .value = own.pool};
    return {};
  }

  /// Appends the state that determines all further behaviour.
  void AppendStateForTest(std::vector<uint64_t>* out) const {
    for (const Version& version : versions_) {
      for (const Cell& cell : version) {
        out->push_back(uint64_t{cell.seen} << 32 | static_cast<uint32_t>(cell.count));
        out->push_back(cell.pool);
      }
    }
  }

 private:
  struct Cell {
    uint32_t seen = 0;
    int count = 0;
    uint32_t pool = 0;
  };
  using Version = std::vector<Cell>;

  int workers_;
  Version versions_[2];
};

}  // namespace weir::aggregation
