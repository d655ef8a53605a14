#include "datapath/session/pipeline.h"

#include "datapath/base/caught.h"
#include "datapath/base/check.h"

namespace weir {
namespace {

constexpr Duration kInterruptEvery = std::chrono::milliseconds(20);

// A stage waits for room as long as the next stage works; that one is bounded by the operation's
// deadline. This bound only catches our own mistakes.
TimePoint FarDeadline() { return RealClock().Now() + std::chrono::hours(24 * 365); }

}  // namespace

Pipeline::Pipeline(Stages stages, int encode_workers)
    : stages_(std::move(stages)), encoders_(encode_workers) {
  encode_.reserve(static_cast<size_t>(encode_workers));
  try {
    for (int worker = 0; worker < encode_workers; ++worker) {
      encode_.push_back(StartThread("weir-encode", [this] { EncodeLoop(); }));
    }
    decode_ = StartThread("weir-decode", [this] { DecodeLoop(); });
    network_ = StartThread("weir-network", [this] { NetworkLoop(); });
  } catch (...) {
    submitted_.Close();
    moved_.Close();
    for (std::thread& worker : encode_) worker.join();
    if (decode_.joinable()) decode_.join();
    throw;
  }
}

Pipeline::~Pipeline() { WEIR_CHECK(!network_.joinable()); }

Status Pipeline::Submit(Operation* op) {
  if (submitted_.TryPush(op)) return OkStatus();
  if (submitted_.closed()) return FailedPrecondition("the session is closed");
  return ResourceExhausted(StrCat("at most ", kSubmittedMax, " operations can wait to be encoded"));
}

void Pipeline::Nudge() { encoded_.TryPush(nullptr); }

void Pipeline::Drain(const std::function<void()>& interrupt) {
  if (!network_.joinable()) return;
  submitted_.Close();
  {
    MutexLock lock(mutex_);
    while (network_running_) {
      network_ended_.WaitUntil(mutex_, RealClock().Now() + kInterruptEvery);
      if (network_running_ && interrupt) interrupt();
    }
  }
  for (std::thread& worker : encode_) worker.join();
  network_.join();
  decode_.join();
}

void Pipeline::EncodeLoop() {
  while (true) {
    std::optional<Operation*> op;
    uint64_t turn;
    {
      MutexLock lock(taking_);
      op = submitted_.Pop();
      turn = taken_++;
    }
    if (!op.has_value()) break;
    stages_.encode(**op);
    MutexLock lock(handing_);
    while (handed_ != turn) handed_on_.Wait(handing_);
    WEIR_CHECK(encoded_.Push(*op, FarDeadline()));
    ++handed_;
    handed_on_.NotifyAll();
  }
  MutexLock lock(handing_);
  if (--encoders_ == 0) encoded_.Close();
}

void Pipeline::NetworkLoop() {
  while (std::optional<Operation*> op = encoded_.Pop()) {
    stages_.network(*op);
    if (*op != nullptr) WEIR_CHECK(moved_.Push(*op, FarDeadline()));
  }
  moved_.Close();
  MutexLock lock(mutex_);
  network_running_ = false;
  network_ended_.NotifyAll();
}

void Pipeline::DecodeLoop() {
  while (std::optional<Operation*> op = moved_.Pop()) stages_.decode(**op);
}

}  // namespace weir
