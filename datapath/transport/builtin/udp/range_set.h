#pragma once
// Sets of positions as ranges: which stream bytes arrived, which were acknowledged, which are to be
// sent again, which packet numbers came.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weir::udp {

/// Ascending ranges that neither overlap nor touch. Its users bound how many there are. Not
/// thread-safe. O(ranges) at worst, O(log ranges) at its end.
class RangeSet {
 public:
  struct Range {
    uint64_t begin;
    uint64_t end;  // exclusive
    friend bool operator==(const Range&, const Range&) = default;
  };

  bool empty() const { return ranges_.empty(); }
  size_t size() const { return ranges_.size(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  const Range& front() const { return ranges_.front(); }
  const Range& back() const { return ranges_.back(); }

  bool Contains(uint64_t position) const;
  /// The number of ranges after Add(begin, end).
  size_t SizeWith(uint64_t begin, uint64_t end) const;
  void Add(uint64_t begin, uint64_t end);
  void Remove(uint64_t begin, uint64_t end);
  void PopFront() { ranges_.erase(ranges_.begin()); }
  void Clear() { ranges_.clear(); }

 private:
  /// Index of the first range whose end is at least `position`.
  size_t FirstReaching(uint64_t position) const;

  std::vector<Range> ranges_;
};

}  // namespace weir::udp
