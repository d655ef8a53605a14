// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bounded queue for three kinds of messages: control messages, which must not be lost silently,
// telemetry, of which only the newest matters, and signs of life, which wait for neither.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace weir::agent {

enum class Tier { kControl, kTelemetry, kSignOfLife };

/// First in, first out over control and telemetry; a sign of life is next, and the newest replaces
/// one that waits, outside of the bounds. When a bound is exceeded, the oldest telemetry is dropped
/// first. Not thread-safe.
template <typename T>
class TieredQueue {
 public:
  enum class Outcome {
    kQueued,
    kDroppedTelemetry,  // the item is queued or is telemetry and dropped; telemetry was lost
    kFull,              // a control message did not fit; the caller must send the whole state again
  };

  TieredQueue(size_t items_max, size_t bytes_max) : items_max_(items_max), bytes_max_(bytes_max) {}

  /// `bytes` is the size with which the item counts.
  Outcome Push(T item, Tier tier, size_t bytes) {
    Outcome outcome = Outcome::kQueued;
    if (tier == Tier::kSignOfLife) {
      sign_of_life_ = std::move(item);
      return outcome;
    }
    while (size() + 1 > items_max_ || bytes_ + bytes > bytes_max_) {
      if (telemetry_.empty()) {
        if (tier == Tier::kControl) return Outcome::kFull;
        ++dropped_;
        return Outcome::kDroppedTelemetry;
      }
      bytes_ -= telemetry_.front().bytes;
      telemetry_.pop_front();
      ++dropped_;
      outcome = Outcome::kDroppedTelemetry;
    }
    bytes_ += bytes;
    (tier == Tier::kControl ? control_ : telemetry_)
        .push_back(Entry{next_sequence_++, bytes, std::move(item)});
    return outcome;
  }

  std::optional<T> Pop() {
    if (sign_of_life_.has_value()) return std::exchange(sign_of_life_, std::nullopt);
    if (empty()) return std::nullopt;
    const bool take_control =
        telemetry_.empty() ||
        (!control_.empty() && control_.front().sequence < telemetry_.front().sequence);
    std::deque<Entry>& from = take_control ? control_ : telemetry_;
    std::optional<T> item(std::move(from.front().item));
    bytes_ -= from.front().bytes;
    from.pop_front();
    return item;
  }

  /// Empties the queue and returns its control messages, oldest first.
  std::vector<T> TakeControl() {
    std::vector<T> taken;
    for (Entry& entry : control_) taken.push_back(std::move(entry.item));
    control_.clear();
    telemetry_.clear();
    sign_of_life_.reset();
    bytes_ = 0;
    return taken;
  }

  bool empty() const {
    return control_.empty() && telemetry_.empty() && !sign_of_life_.has_value();
  }
  /// Without a sign of life.
  size_t size() const { return control_.size() + telemetry_.size(); }
  size_t control_size() const { return control_.size(); }
  size_t bytes() const { return bytes_; }
  /// The number of telemetry items lost since the queue was made.
  uint64_t dropped() const { return dropped_; }

 private:
  struct Entry {
    uint64_t sequence;
    size_t bytes;
    T item;
  };
  const size_t items_max_;
  const size_t bytes_max_;
  std::deque<Entry> control_;
  std::deque<Entry> telemetry_;
  std::optional<T> sign_of_life_;
  size_t bytes_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace weir::agent
