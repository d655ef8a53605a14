// SPDX-License-Identifier: Apache-2.0
#pragma once
// Devices and NCCL made of host memory: batches of the two ends of a channel are moved when both
// have begun, in order and only if they agree, as a GPU would.

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "datapath/base/mutex.h"
#include "datapath/nccl/transport.h"

namespace weir::testing {

/// The state that the devices of all ranks share. Thread-safe.
class FakeFabric {
 public:
  using Batch = std::vector<std::span<std::byte>>;
  struct Ends {
    int open = 0, closed = 0;
    uint64_t begun[2] = {}, moved = 0;  // batches; [1]: by the sender
    Batch batch[2];
  };

  /// The next channels are never made.
  std::atomic<bool> never_opens = false;
  /// Makes every channel's Done fail with `text`; empty: nothing fails.
  void FailWith(std::string text) {
    MutexLock lock(mutex_);
    failure_ = std::move(text);
  }
  /// Looks at a device until a begun batch is over, at least.
  static constexpr int kLooks = 3;

  uint64_t NewId() {
    MutexLock lock(mutex_);
    return ++last_id_;
  }
  void Open(uint64_t id) {
    MutexLock lock(mutex_);
    ++ends_[id].open;
  }
  void Close(uint64_t id) {
    MutexLock lock(mutex_);
    ++ends_[id].closed;
  }
  void Begin(uint64_t id, bool sends, Batch batch) {
    MutexLock lock(mutex_);
    Ends& ends = ends_[id];
    if (ends.begun[sends] != ends.moved) mistakes_ += "a batch before the last one was over; ";
    ++ends.begun[sends];
    ends.batch[sends] = std::move(batch);
  }
  StatusOr<bool> Done(uint64_t id, bool sends) {
    MutexLock lock(mutex_);
    if (!failure_.empty()) return Unavailable(failure_);
    Ends& ends = ends_[id];
    if (ends.open < 2 || never_opens) return false;
    if (ends.closed == 0 && ends.begun[0] > ends.moved && ends.begun[1] > ends.moved) Move(&ends);
    return ends.begun[sends] == ends.moved;
  }
  /// Uses at which a GPU would have hung or given a wrong result; empty: none.
  std::string mistakes() {
    MutexLock lock(mutex_);
    return mistakes_;
  }
  int largest_batch() {
    MutexLock lock(mutex_);
    return static_cast<int>(largest_batch_);
  }

 private:
  void Move(Ends* ends) WEIR_REQUIRES(mutex_) {
    const Batch &to = ends->batch[0], &from = ends->batch[1];
    largest_batch_ = std::max(largest_batch_, from.size());
    if (to.size() != from.size()) mistakes_ += "batches of different sizes; ";
    for (size_t i = 0; i < std::min(to.size(), from.size()); ++i) {
      if (to[i].size() != from[i].size()) {
        mistakes_ += "buffers of different sizes; ";
        continue;
      }
      std::memcpy(to[i].data(), from[i].data(), to[i].size());
    }
    ++ends->moved;
  }

  Mutex mutex_;
  uint64_t last_id_ WEIR_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Ends> ends_ WEIR_GUARDED_BY(mutex_);
  std::string failure_ WEIR_GUARDED_BY(mutex_);
  std::string mistakes_ WEIR_GUARDED_BY(mutex_);
  size_t largest_batch_ WEIR_GUARDED_BY(mutex_) = 0;
};

class FakeChannel : public nccl::Channel {
 public:
  FakeChannel(FakeFabric* fabric, uint64_t id, bool sends)
      : fabric_(fabric), id_(id), sends_(sends) {
    fabric_->Open(id);
  }
  ~FakeChannel() override { fabric_->Close(id_); }

  StatusOr<bool> Done() override {
    if (++looks_ < FakeFabric::kLooks) return false;
    return fabric_->Done(id_, sends_);
  }
  Status Begin(std::span<const std::span<std::byte>> buffers) override {
    looks_ = 0;
    fabric_->Begin(id_, sends_, {buffers.begin(), buffers.end()});
    return OkStatus();
  }

 private:
  FakeFabric* const fabric_;
  const uint64_t id_;
  const bool sends_;
  int looks_ = 0;
};

/// Buffers that begin with the byte 0xEE are none of its memory.
class FakeDevice : public nccl::Device {
 public:
  explicit FakeDevice(FakeFabric* fabric) : fabric_(fabric) {}

  StatusOr<nccl::UniqueId> NewId() override {
    nccl::UniqueId id = {};
    const uint64_t number = fabric_->NewId();
    std::memcpy(id.data(), &number, sizeof number);
    return id;
  }
  StatusOr<std::unique_ptr<nccl::Channel>> Open(const nccl::UniqueId& id, bool sends) override {
    uint64_t number = 0;
    std::memcpy(&number, id.data(), sizeof number);
    return std::make_unique<FakeChannel>(fabric_, number, sends);
  }
  Status Check(std::span<const std::byte> buffer) const override {
    if (buffer[0] != std::byte{0xEE}) return OkStatus();
    return InvalidArgument("buffer: expected memory of the device");
  }

 private:
  FakeFabric* const fabric_;
};

}  // namespace weir::testing
