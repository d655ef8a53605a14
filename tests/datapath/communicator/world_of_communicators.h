// SPDX-License-Identifier: Apache-2.0
#pragma once
// A world of communicators in one process, one thread per rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "datapath/communicator/communicator.h"
#include "tests/support/world.h"

namespace weir::testing {

/// A completion that can be waited for. Outlives the operation.
class Outcome {
 public:
  Communicator::Done Done() {
    return [this](const Status& status, int peer) {
      std::lock_guard lock(mutex_);
      status_ = status;
      peer_ = peer;
      ++calls_;
      changed_.notify_all();
    };
  }
  /// The status; kDeadlineExceeded "the test's patience ended" after 30 s.
  Status Wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return calls_ > 0; })) {
      return DeadlineExceeded("the test's patience ended");
    }
    EXPECT_EQ(calls_, 1);
    return status_;
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return calls_ > 0;
  }
  int peer() {
    std::lock_guard lock(mutex_);
    return peer_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Status status_;
  int peer_ = -2;
  int calls_ = 0;
};

using Communicators = std::vector<std::unique_ptr<Communicator>>;

inline Communicators MakeCommunicators(int world, const std::string& transport = "auto",
                                       double timeout_s = 20) {
  static std::atomic<int> jobs = 0;
  Communicators all;
  const std::string job = StrCat("communicator-", ++jobs);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < world; ++rank) {
    CommunicatorOptions options;
    options.job = job;
    options.rank = rank;
    options.world = world;
    options.transport = transport;
    options.operation_timeout = FromSeconds(timeout_s);
    options.connect_timeout = std::chrono::seconds(20);
    auto created = Communicator::Create(options);
    EXPECT_TRUE(created.ok()) << created.status();
    if (!created.ok()) return {};
    all.push_back(std::move(*created));
    addresses.push_back(all.back()->address());
  }
  RunRanks(world, [&](int rank) {
    const Status status = all[rank]->Connect(addresses);
    EXPECT_TRUE(status.ok()) << status;
  });
  return all;
}

template <typename T>
std::span<std::byte> Bytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

}  // namespace weir::testing
