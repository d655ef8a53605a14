#include "datapath/transport/builtin/udp/range_set.h"

#include <algorithm>

namespace weir::udp {

size_t RangeSet::FirstReaching(uint64_t position) const {
  const auto at = std::partition_point(ranges_.begin(), ranges_.end(),
                                       [&](const Range& range) { return range.end < position; });
  return static_cast<size_t>(at - ranges_.begin());
}

bool RangeSet::Contains(uint64_t position) const {
  const size_t at = FirstReaching(position + 1);
  return at < ranges_.size() && ranges_[at].begin <= position;
}

size_t RangeSet::SizeWith(uint64_t begin, uint64_t end) const {
  const size_t first = FirstReaching(begin);
  size_t last = first;
  while (last < ranges_.size() && ranges_[last].begin <= end) ++last;
  return ranges_.size() - (last - first) + 1;
}

void RangeSet::Add(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  if (!ranges_.empty() && ranges_.back().end == begin) {  // by far the most frequent
    ranges_.back().end = end;
    return;
  }
  const size_t first = FirstReaching(begin);
  size_t last = first;
  while (last < ranges_.size() && ranges_[last].begin <= end) {
    begin = std::min(begin, ranges_[last].begin);
    end = std::max(end, ranges_[last].end);
    ++last;
  }
  const auto at = ranges_.begin() + static_cast<ptrdiff_t>(first);
  if (first == last) {
    ranges_.insert(at, {begin, end});
    return;
  }
  *at = {begin, end};
  ranges_.erase(at + 1, ranges_.begin() + static_cast<ptrdiff_t>(last));
}

void RangeSet::Remove(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  size_t at = FirstReaching(begin + 1);
  if (at == ranges_.size() || ranges_[at].begin >= end) return;
  if (ranges_[at].begin < begin) {
    const Range tail = {end, ranges_[at].end};
    ranges_[at].end = begin;
    ++at;
    if (tail.begin < tail.end) {
      ranges_.insert(ranges_.begin() + static_cast<ptrdiff_t>(at), tail);
      return;
    }
  }
  size_t last = at;
  while (last < ranges_.size() && ranges_[last].end <= end) ++last;
  ranges_.erase(ranges_.begin() + static_cast<ptrdiff_t>(at),
                ranges_.begin() + static_cast<ptrdiff_t>(last));
  if (at < ranges_.size() && ranges_[at].begin < end) ranges_[at].begin = end;
}

}  // namespace weir::udp
