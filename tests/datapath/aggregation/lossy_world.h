// SPDX-License-Identifier: Apache-2.0
#pragma once
// Workers and an aggregator in one thread, with a network between them that loses, repeats and
// reorders datagrams from a seed, in simulated time.

#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/worker.h"
#include "datapath/base/check.h"
#include "datapath/base/random.h"

namespace weir::aggregation {

struct LinkFaults {
  double loss = 0;
  double duplicate = 0;
  Duration delay_min = std::chrono::microseconds(20);
  Duration delay_max = std::chrono::microseconds(20);  // above the least: datagrams overtake
  uint64_t seed = 1;
  // The aggregator takes this long for each datagram, one after the other, and has room for so many
  // that wait.
  Duration service = {};
  size_t room = 512;
  // Returns whether the n-th datagram of the world is lost, in addition to the random losses.
  std::function<bool(uint64_t n, bool to_aggregator)> lose = {};
};

inline SourceAddress AddressOf(int worker) { return 1000 + static_cast<SourceAddress>(worker); }

inline std::vector<SourceAddress> AddressesOf(int workers) {
  std::vector<SourceAddress> all;
  for (int w = 0; w < workers; ++w) all.push_back(AddressOf(w));
  return all;
}

class LossyWorld : public ReplySink {
 public:
  /// exact_floats: as of AggregatorLimits.
  LossyWorld(const Lease& lease, LinkFaults faults, bool exact_floats = true)
      : faults_(std::move(faults)),
        random_(faults_.seed),
        aggregator_({.slots = 1024, .slots_per_job = 1024, .exact_floats = exact_floats}) {
    const auto range = aggregator_.Grant(lease, AddressesOf(lease.workers));
    WEIR_CHECK(range.ok());
  }

  /// Runs until all workers are done or the limit has passed; crashed workers (null) stay silent.
  /// Returns the simulated time.
  Duration Run(std::span<Worker* const> workers, Duration limit = std::chrono::seconds(60)) {
    const TimePoint start = now_;
    const Duration tick = std::chrono::milliseconds(1);
    workers_ = workers;
    for (Worker* worker : workers_) Pump(worker);
    TimePoint next_tick = now_ + tick;
    while (!AllDone() && now_ - start < limit) {
      if (!events_.empty() && events_.top().at <= next_tick) {
        Event event = events_.top();
        events_.pop();
        now_ = event.at;
        Deliver(event);
        continue;
      }
      now_ = next_tick;
      next_tick += tick;
      aggregator_.OnTimer(now_, this);
      for (Worker* worker : workers_) {
        if (worker != nullptr) worker->OnTimer(now_);
        Pump(worker);
      }
    }
    return now_ - start;
  }

  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    Post(static_cast<int>(to - AddressOf(0)), -1, packet);
  }

  TimePoint now() const { return now_; }
  uint64_t datagrams() const { return datagrams_; }
  Aggregator& aggregator() { return aggregator_; }

 private:
  struct Event {
    TimePoint at;
    uint64_t order = 0;
    int to = 0;  // -1: the aggregator
    int from = 0;
    std::vector<std::byte> bytes;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  bool AllDone() const {
    for (const Worker* worker : workers_) {
      if (worker != nullptr && !worker->done()) return false;
    }
    return true;
  }

  void Pump(Worker* worker) {
    if (worker == nullptr) return;
    const int number = NumberOf(worker);
    for (auto packet = worker->NextPacket(now_); !packet.empty();
         packet = worker->NextPacket(now_)) {
      Post(-1, number, packet);
    }
  }

  int NumberOf(const Worker* worker) const {
    for (size_t w = 0; w < workers_.size(); ++w) {
      if (workers_[w] == worker) return static_cast<int>(w);
    }
    return -1;
  }

  void Post(int to, int from, std::span<const std::byte> packet) {
    const uint64_t number = datagrams_++;
    if (faults_.lose && faults_.lose(number, to == -1)) return;
    const int copies = random_.Uniform() < faults_.duplicate ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      if (random_.Uniform() < faults_.loss) continue;
      const auto spread = static_cast<uint64_t>((faults_.delay_max - faults_.delay_min).count());
      const Duration delay =
          faults_.delay_min + Duration(static_cast<int64_t>(random_.Below(spread + 1)));
      TimePoint at = now_ + delay;
      if (to == -1 && faults_.service > Duration::zero()) {
        if (served_at_ > at + static_cast<int64_t>(faults_.room) * faults_.service) continue;
        served_at_ = std::max(served_at_, at) + faults_.service;
        at = served_at_;
      }
      events_.push({.at = at,
                    .order = order_++,
                    .to = to,
                    .from = from,
                    .bytes = {packet.begin(), packet.end()}});
    }
  }

  void Deliver(const Event& event) {
    if (event.to < 0) {
      aggregator_.OnPacket(AddressOf(event.from), event.bytes, now_, this);
      return;
    }
    Worker* worker = workers_[static_cast<size_t>(event.to)];
    if (worker == nullptr) return;
    worker->OnPacket(event.bytes, now_);
    Pump(worker);
  }

  const LinkFaults faults_;
  Random random_;
  Aggregator aggregator_;
  std::span<Worker* const> workers_;
  std::priority_queue<Event> events_;
  TimePoint now_ = TimePoint(std::chrono::seconds(1));
  TimePoint served_at_ = {};
  uint64_t datagrams_ = 0;
  uint64_t order_ = 0;
};

/// This loses less than the 5 % that make worlds of 64 slow, but more than any network for training
/// should.
inline LinkFaults BadNetwork(uint64_t seed) {
  return {.loss = 0.02,
          .duplicate = 0.05,
          .delay_min = std::chrono::microseconds(10),
          .delay_max = std::chrono::microseconds(600),
          .seed = seed};
}

inline const TimeoutLimits kFastTimeouts = {.first = std::chrono::milliseconds(3),
                                            .min = std::chrono::milliseconds(1),
                                            .max = std::chrono::milliseconds(50)};

}  // namespace weir::aggregation
