// SPDX-License-Identifier: Apache-2.0
#pragma once
// A job of worker threads on loopback, and tensors whose sums are exact.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "datapath/aggregation/io/worker_port.h"
#include "datapath/aggregation/max_worker.h"
#include "datapath/aggregation/quantise.h"
#include "datapath/aggregation/sparse_worker.h"
#include "datapath/aggregation/sum_worker.h"
#include "datapath/base/random.h"

namespace weir::aggregation {

using JobTensors = std::vector<std::vector<float>>;

inline const TimeoutLimits kLoopbackTimeouts = {.first = std::chrono::milliseconds(20),
                                                .min = std::chrono::milliseconds(2),
                                                .max = std::chrono::milliseconds(100)};

/// Small integers, which are exact in floats and on every mode's grid, as are their sums. A share
/// `density` of the blocks of `block` elements is not zero.
inline JobTensors IntegerTensors(int workers, size_t size, uint64_t seed, double density = 1,
                                 size_t block = 64) {
  Random random(seed);
  JobTensors all(static_cast<size_t>(workers), std::vector<float>(size));
  for (auto& tensor : all) {
    for (size_t at = 0; at < size; at += block) {
      if (random.Uniform() >= density) continue;
      for (size_t i = at; i < std::min(size, at + block); ++i) {
        tensor[i] = static_cast<float>(random.Below(2001)) - 1000;
      }
    }
  }
  return all;
}

inline std::vector<float> SumOf(const JobTensors& tensors) {
  std::vector<float> sum(tensors[0].size());
  for (const auto& tensor : tensors) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += tensor[i];
  }
  return sum;
}

/// The sockets of a job's workers.
struct JobPorts {
  std::vector<std::unique_ptr<WorkerPort>> ports;
  std::vector<SourceAddress> addresses;

  explicit JobPorts(int workers, bool rows = true) {
    for (int w = 0; w < workers; ++w) {
      auto port = WorkerPort::Bind({.rows = rows});
      EXPECT_TRUE(port.ok()) << port.status();
      addresses.push_back((*port)->address());
      ports.push_back(std::move(*port));
    }
  }

  /// Calls work(w) on a thread per worker and returns the results.
  template <typename Work>
  std::vector<Status> OnAll(Work work) {
    std::vector<Status> results(ports.size());
    std::vector<std::thread> threads;
    for (size_t w = 0; w < ports.size(); ++w) {
      threads.emplace_back([&, w] { results[w] = work(w); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
};

struct JobRun {
  Lease lease;
  SourceAddress aggregator = 0;
  uint32_t operation = 0;
  Duration deadline = std::chrono::seconds(30);
};

/// One all-reduce by SwitchML on a new epoch.
inline Status RunSum(const JobRun& run, WorkerPort* port, int rank, std::vector<float>* tensor) {
  SumWorker worker(run.lease, kLoopbackTimeouts, rank);
  WEIR_RETURN_IF_ERROR(worker.Begin(*tensor, run.operation, RealClock().Now() + run.deadline));
  return port->Run(run.aggregator, &worker);
}

/// One all-reduce by OmniReduce on a new epoch of two leases: first the scale, then the blocks.
inline Status RunSparse(const JobRun& max, const JobRun& sparse, WorkerPort* port, int rank,
                        std::vector<float>* tensor) {
  std::vector<uint32_t> code = {ExponentCode(*tensor)};
  MaxWorker scale(max.lease, kLoopbackTimeouts, rank);
  WEIR_RETURN_IF_ERROR(scale.Begin(code, max.operation, RealClock().Now() + max.deadline));
  WEIR_RETURN_IF_ERROR(port->Run(max.aggregator, &scale));
  SparseWorker worker(sparse.lease, kLoopbackTimeouts, rank);
  WEIR_RETURN_IF_ERROR(worker.Begin(*tensor, static_cast<uint16_t>(code[0]), sparse.operation,
                                    RealClock().Now() + sparse.deadline));
  return port->Run(sparse.aggregator, &worker);
}

}  // namespace weir::aggregation
