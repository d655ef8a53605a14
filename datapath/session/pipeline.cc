// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/pipeline.h"

#include <algorithm>

#include "datapath/base/caught.h"
#include "datapath/base/check.h"

namespace weir {
namespace {

constexpr Duration kInterruptEvery = std::chrono::milliseconds(20);

// The network thread waits for room for as long as decoding takes. This bound only catches bugs.
TimePoint FarDeadline() { return RealClock().Now() + std::chrono::hours(24 * 365); }

// The thread that prepares a part writes `joins`, so others may read it only once it is prepared.
bool Joins(const Operation* op) { return op->part_state == PartState::kPrepared && op->joins; }

}  // namespace

Pipeline::Pipeline(Stages stages, int encode_workers)
    : stages_(std::move(stages)), taken_max_(kOpenMax + static_cast<size_t>(encode_workers)) {
  coming_.reserve(taken_max_);
  open_.reserve(taken_max_);
  part_.reserve(taken_max_);
  encode_.reserve(static_cast<size_t>(encode_workers));
  const auto close = [this] {
    MutexLock lock(mutex_);
    submitted_.Close();
    moved_.Close();
    work_.NotifyAll();
  };
  try {
    for (int worker = 0; worker < encode_workers; ++worker) {
      encode_.push_back(StartThread("weir-encode", [this] { EncodeLoop(); }));
    }
    decode_ = StartThread("weir-decode", [this] { DecodeLoop(); });
    network_ = StartThread("weir-network", [this] { NetworkLoop(); });
  } catch (...) {
    close();
    for (std::thread& worker : encode_) worker.join();
    if (decode_.joinable()) decode_.join();
    throw;
  }
}

Pipeline::~Pipeline() { WEIR_CHECK(!network_.joinable()); }

Status Pipeline::Submit(Operation* op) {
  const MutexLock lock(mutex_);
  if (submitted_.TryPush(op)) {
    work_.NotifyOne();
    return OkStatus();
  }
  if (submitted_.closed()) return FailedPrecondition("the session is closed");
  return ResourceExhausted(StrCat("at most ", kSubmittedMax, " operations can wait to be encoded"));
}

void Pipeline::Nudge() {
  const MutexLock lock(mutex_);
  nudged_ = true;
  prepared_.NotifyOne();
}

void Pipeline::Watch(bool on) {
  const MutexLock lock(mutex_);
  watchers_ += on ? 1 : -1;
  if (on && watchers_ == 1) prepared_.NotifyOne();
}

void Pipeline::Drain(const std::function<void()>& interrupt) {
  if (!network_.joinable()) return;
  {
    MutexLock lock(mutex_);
    submitted_.Close();
    work_.NotifyAll();
    prepared_.NotifyOne();
    while (network_running_) {
      network_ended_.WaitUntil(mutex_, RealClock().Now() + kInterruptEvery);
      if (network_running_ && interrupt) interrupt();
    }
  }
  for (std::thread& worker : encode_) worker.join();
  network_.join();
  decode_.join();
}

Operation* Pipeline::FirstUnprepared() const {
  const auto found = std::ranges::find(open_, PartState::kMoved, &Operation::part_state);
  return found == open_.end() ? nullptr : *found;
}

Operation* Pipeline::AwaitWork() {
  const MutexLock lock(mutex_);
  while (true) {
    // Parts of open operations come first, because the network thread may already wait for them.
    if (Operation* const op = FirstUnprepared(); op != nullptr) {
      op->part_state = PartState::kPreparing;
      return op;
    }
    if (coming_.size() + open_.size() < taken_max_) {
      if (const std::optional<Operation*> op = submitted_.TryPop(); op.has_value()) {
        (*op)->part_state = PartState::kPreparing;
        coming_.push_back(*op);
        return *op;
      }
    }
    if (Ended()) return nullptr;
    work_.Wait(mutex_);
  }
}

void Pipeline::Prepare(Operation* op) {
  stages_.prepare(*op);
  const MutexLock lock(mutex_);
  op->part_state = PartState::kPrepared;
  prepared_.NotifyOne();
}

void Pipeline::EncodeLoop() {
  while (Operation* const op = AwaitWork()) Prepare(op);
}

int Pipeline::Ready(const Operation& op) const {
  const auto first_unready = std::ranges::find_if(
      coming_, [](const Operation* coming) { return coming->part_state != PartState::kPrepared; });
  const auto ready = static_cast<int>(first_unready - coming_.begin());
  if (!op.heard_ready.has_value()) return ready;
  return std::clamp(*op.heard_ready - static_cast<int>(opened_ - op.heard_when), 0, ready);
}

// Maxima move before other parts: they are small, and the part after them takes time to prepare.
void Pipeline::Open(size_t count) {
  const auto opened = coming_.begin() + static_cast<ptrdiff_t>(count);
  for (auto op = coming_.begin(); op != opened; ++op) {
    open_.insert(Joins(*op) ? std::ranges::find_if_not(open_, Joins) : open_.end(), *op);
  }
  coming_.erase(coming_.begin(), opened);
  opened_ += count;
}

bool Pipeline::AwaitPart(int* ready) {
  part_.clear();
  while (true) {
    Operation* idle_work = nullptr;
    {
      const MutexLock lock(mutex_);
      if (std::exchange(nudged_, false)) return true;
      if (open_.empty() && !coming_.empty() &&
          coming_.front()->part_state == PartState::kPrepared) {
        Open(1);
      }
      if (!open_.empty() && open_.front()->part_state == PartState::kPrepared) {
        do {
          part_.push_back(open_[part_.size()]);
        } while (Joins(part_.back()) && part_.size() < open_.size() && Joins(open_[part_.size()]));
        *ready = Ready(*part_.front());
        return true;
      }
      if (Ended()) return false;
      idle_work = FirstUnprepared();
      if (idle_work == nullptr) {
        if (watchers_ == 0) {
          prepared_.Wait(mutex_);
        } else if (!prepared_.WaitUntil(mutex_, RealClock().Now() + kWatchEvery)) {
          return true;
        }
        continue;
      }
      idle_work->part_state = PartState::kPreparing;
    }
    Prepare(idle_work);
  }
}

void Pipeline::Settle(ReadyCount ready) {
  const MutexLock lock(mutex_);
  open_.erase(open_.begin(), open_.begin() + static_cast<ptrdiff_t>(part_.size()));
  const auto more = static_cast<size_t>(std::ranges::count(part_, true, &Operation::more));
  const uint64_t opened_before = opened_;
  if (const size_t busy = open_.size() + more; ready.everywhere && busy <= kOpenMax / 2) {
    Open(std::min(static_cast<size_t>(ready.count), kOpenMax - busy));
  }
  // These go behind the operations that were opened now, because their next parts have yet to be
  // prepared.
  for (Operation* const op : part_) {
    op->part_state = PartState::kMoved;
    op->joins = false;
    op->heard_ready.reset();
    if (!ready.everywhere) op->heard_ready = ready.count, op->heard_when = opened_before;
    if (op->more) open_.push_back(op);
  }
  if (Ended()) work_.NotifyAll();
  // Wakes as many threads as there is work for: next parts, and operations that waited for room.
  const size_t room = part_.size() - more;
  for (size_t n = more + std::min(room, submitted_.size()); n > 0; --n) work_.NotifyOne();
}

void Pipeline::NetworkLoop() {
  int ready = 0;
  while (AwaitPart(&ready)) {
    if (part_.empty()) {
      stages_.nudged();
      continue;
    }
    Settle(stages_.move(part_, ready));
    for (Operation* const op : part_) {
      if (!op->more) WEIR_CHECK(moved_.Push(op, FarDeadline()));
    }
  }
  moved_.Close();
  const MutexLock lock(mutex_);
  network_running_ = false;
  network_ended_.NotifyAll();
}

void Pipeline::DecodeLoop() {
  while (const std::optional<Operation*> op = moved_.Pop()) stages_.decode(**op);
}

}  // namespace weir
