#pragma once
// How long a rank looks for news before it sleeps. A neighbour on this machine often answers sooner
// than a sleep and a wake-up take; somebody else may need the core.

#include <algorithm>

#include "datapath/base/clock.h"

namespace weir::mesh {

/// Looking pays as long as recent waits of the same kind were short. Waits soon after other news
/// are one kind: the messages of one operation follow each other closely. The first wait after a
/// pause is the other: it lasts until the slowest rank has computed. Each learns from its own, so
/// long pauses between operations do not slow those down, and idle ranks leave the cores to others.
/// Not thread-safe. O(1).
class SpinBudget {
 public:
  static constexpr Duration kMax = std::chrono::microseconds(50);
  /// Between ranks of one host that have a core each: nobody waits for the core, and two of them
  /// that were woken together begin 50 to 100 us apart on a virtual machine.
  static constexpr Duration kMaxApart = std::chrono::microseconds(150);
  /// News this long ago make a wait one of an operation in progress.
  static constexpr Duration kPause = std::chrono::microseconds(200);
  /// Looking so long without a yield is cheaper than yields, where ranks have a core each.
  static constexpr Duration kAlone = std::chrono::microseconds(10);
  /// A yield that took longer gave the core to somebody.
  static constexpr Duration kGiven = std::chrono::microseconds(6);

  /// There are others on this host, and so many ranks for each core. Where it is more than one a
  /// wait lasts their turns, too, and a yield may give each of the others one.
  void ShareHost(int ranks_per_core) {
    share_ = std::clamp(ranks_per_core, 1, 4);
    most_ = share_ == 1 ? kMaxApart : share_ * kMax;
    for (Duration& limit : limit_) limit = most_;
  }

  Duration limit(TimePoint now) const {
    return now < barred_until_ ? Duration(0) : limit_[InOperation(now)];
  }

  /// A wait that began at `start` ended at `end`. Counts as short up to twice the longest look:
  /// sleeping and waking would have taken about the difference.
  void Learn(TimePoint start, TimePoint end) {
    Duration& limit = limit_[InOperation(start)];
    limit = end - start < 2 * most_ ? std::min(2 * limit + std::chrono::microseconds(1), most_)
                                    : limit / 2;
    last_news_ = end;
  }

  /// What came of a look, behind a yield or not. News behind a yield: the awaited one runs on this
  /// core.
  void OnLook(bool news, bool yielded) {
    if (!news && !yielded) return;
    yields_first_ = news && yielded;
    together_ = yields_first_ ? together_ + 1 : 0;
    if (!yields_first_) together_max_ = kTogetherMax;
  }
  /// Where ranks have a core each: the next wait begins with a yield, as the last one brought news.
  bool yields_first() const { return yields_first_; }
  /// Likewise, once before a wait: it sleeps at once, after a few that yields ended, as a sleeper
  /// is woken on an idle core and then stays there. Where that does not help, as all are busy, it
  /// is tried less often.
  bool MovesAway() {
    if (together_ < together_max_) return false;
    together_ = 0;
    together_max_ = std::min(2 * together_max_, 4 * kTogetherMax);
    return true;
  }

  /// What a yield took. A long one gave the core to somebody who computes, for a whole time slice:
  /// then sleeping, from which the kernel wakes ahead of such, is better. For how long follows from
  /// what was lost: 200 times as long, so that of all time at most 0.5 % goes that way, and twice
  /// as long each time that it happens soon again, up to 800 times.
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
