// SPDX-License-Identifier: Apache-2.0
#pragma once
// Posted operations and their queues: fixed slots and intrusive lists, so that posting and
// finishing an operation neither allocates nor locks.

#include <array>
#include <deque>
#include <vector>

#include "datapath/base/check.h"
#include "datapath/transport/transport.h"
#include "datapath/wire/frame_seal.h"

namespace weir::mesh {

/// One posted send or receive. Lives in an OperationPool.
struct Operation {
  Ticket ticket = 0;
  int peer = -1;
  bool send = false;
  bool done = false;
  bool encoded = false;                // send: `wire`, `body` and `tag` hold what is sent
  bool corrupt = false;                // send: fault injection spoils checksum or tag
  FrameHeader header;                  // receive: the verified header once done
  std::span<const std::byte> payload;  // send
  std::span<std::byte> buffer;         // receive
  std::array<std::byte, kFrameHeaderBytes> wire;
  std::span<const std::byte> body;  // send: the payload, or its encrypted form in `sealed`
  std::vector<std::byte> sealed;
  FrameTag tag;       // send: of authenticated connections
  uint64_t ends = 0;  // send: where it ends among all bytes sent to the peer
  Operation* next = nullptr;
};

/// A first-in, first-out list through Operation::next. It does not own the operations.
class OperationQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  Operation* front() const { return first_; }
  void Push(Operation* op) {
    op->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = op;
    last_ = op;
  }
  void Pop() {
    first_ = first_->next;
    if (first_ == nullptr) last_ = nullptr;
  }

 private:
  Operation* first_ = nullptr;
  Operation* last_ = nullptr;
};

/// Holds at most kPostedMax operations and finds them by ticket in O(1). A ticket is never issued
/// twice.
class OperationPool {
 public:
  /// Null if all are in use.
  Operation* Take() {
    size_t index = operations_.size();
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (index < kPostedMax) {
      operations_.emplace_back();
    } else {
      return nullptr;
    }
    Operation& op = operations_[index];
    op = Operation();
    op.ticket = ++issued_ * kPostedMax + index;
    return &op;
  }

  /// Null if `ticket` was never issued or its operation was returned.
  Operation* Find(Ticket ticket) {
    const size_t index = ticket % kPostedMax;
    if (index >= operations_.size() || operations_[index].ticket != ticket) return nullptr;
    return &operations_[index];
  }

  void Return(Operation* op) {
    WEIR_CHECK(op->ticket != 0);
    free_.push_back(static_cast<uint32_t>(op->ticket % kPostedMax));
    op->ticket = 0;
  }

 private:
  uint64_t issued_ = 0;
  std::deque<Operation> operations_;  // a deque, so that addresses stay valid
  std::vector<uint32_t> free_;
};

}  // namespace weir::mesh
