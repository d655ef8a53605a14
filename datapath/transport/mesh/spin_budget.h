// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long a rank polls for news before it sleeps. A neighbour on this machine often answers sooner
// than a sleep and a wake-up take, but another process may need the core.

#include <algorithm>

#include "datapath/base/clock.h"

namespace weir::mesh {

/// Polling pays as long as recent waits of the same kind were short. There are two kinds of waits.
/// Those soon after other news are short, because the messages of one operation follow each other
/// closely. The first wait after a pause lasts until the slowest rank has computed. Each kind has a
/// limit of its own, so long pauses between operations do not slow the operations down, and idle
/// ranks leave the cores to others. Not thread-safe. O(1).
class SpinBudget {
 public:
  static constexpr Duration kMax = std::chrono::microseconds(50);
  /// The limit between ranks of one host that have a core each. No other process waits for the
  /// core, and two ranks that were woken together begin 50 to 100 us apart on a virtual machine.
  static constexpr Duration kMaxApart = std::chrono::microseconds(150);
  /// A wait that begins within this time after news belongs to an operation in progress.
  static constexpr Duration kPause = std::chrono::microseconds(200);
  /// Polling for this long without a yield is cheaper than yielding, where ranks have a core each.
  static constexpr Duration kAlone = std::chrono::microseconds(10);
  /// A yield that took longer than this gave the core to another process.
  static constexpr Duration kGiven = std::chrono::microseconds(6);

  /// Other ranks are on this host, with so many ranks for each core. Where there are several, a
  /// wait includes the turns of the others, and a yield may give each of them one.
  void ShareHost(int ranks_per_core) {
    share_ = std::clamp(ranks_per_core, 1, 4);
    most_ = share_ == 1 ? kMaxApart : share_ * kMax;
    for (Duration& limit : limit_) limit = most_;
  }

  Duration limit(TimePoint now) const {
    return now < barred_until_ ? Duration(0) : limit_[InOperation(now)];
  }

  /// A wait that began at `start` ended at `end`. It counts as short up to twice the longest time
  /// of polling, because sleeping and waking would have taken about the difference.
  void Learn(TimePoint start, TimePoint end) {
    Duration& limit = limit_[InOperation(start)];
    limit = end - start < 2 * most_ ? std::min(2 * limit + std::chrono::microseconds(1), most_)
                                    : limit / 2;
    last_news_ = end;
  }

  /// The result of a look, and whether it followed a yield. News after a yield means that the
  /// awaited rank runs on this core.
  void OnLook(bool news, bool yielded) {
    if (!news && !yielded) return;
    yields_first_ = news && yielded;
    together_ = yields_first_ ? together_ + 1 : 0;
    if (!yields_first_) together_max_ = kTogetherMax;
  }
  /// Where ranks have a core each: whether the next wait begins with a yield, because the last
  /// yield brought news.
  bool yields_first() const { return yields_first_; }
  /// Likewise, to be called once before a wait: whether it should sleep at once. That is so after a
  /// few waits that yields ended, because a sleeper is woken on an idle core and then stays there.
  /// Where that does not help, because all cores are busy, it is tried less often.
  bool MovesAway() {
    if (together_ < together_max_) return false;
    together_ = 0;
    together_max_ = std::min(2 * together_max_, 4 * kTogetherMax);
    return true;
  }

  /// How long a yield took. A long one gave the core to a process that computes, for a whole time
  /// slice. Then sleeping is better, because the kernel runs a woken rank ahead of such a process.
  /// Polling is suspended for 200 times the time lost, so that at most 0.5 % of all time is lost,
  /// and for twice as long each time that it happens again soon, up to 800 times.
  void OnYield(TimePoint now, Duration took) {
    if (took < share_ * kStolen) return;
    const bool again = now < barred_until_ + (barred_until_ - barred_at_);
    factor_ = again ? std::min(2 * factor_, 4 * kBar) : kBar;
    barred_at_ = now;
    barred_until_ = now + factor_ * took;
  }

 private:
  static constexpr Duration kStolen = std::chrono::microseconds(500);
  static constexpr int kBar = 200;
  static constexpr int kTogetherMax = 3;
  bool InOperation(TimePoint now) const { return now - last_news_ < kPause; }

  int share_ = 1;
  Duration most_ = kMax;
  Duration limit_[2] = {kMax, kMax};  // after a pause, within an operation
  TimePoint last_news_{};
  bool yields_first_ = false;
  int together_ = 0, together_max_ = kTogetherMax;  // waits in a row that yields ended
  int factor_ = kBar;
  TimePoint barred_at_{}, barred_until_{};
};

}  // namespace weir::mesh
