// SPDX-License-Identifier: Apache-2.0
#pragma once
// The node's GPUs by NVIDIA's management library (NVML), which is opened when the agent runs.
// Without it, or without a driver, there are simply no GPUs.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir::agent {

inline constexpr size_t kGpusMax = 32;

/// Numbers that the device or driver does not tell are 0.
struct GpuInfo {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  std::string uuid;
  uint64_t memory_bytes = 0;
  // These describe the fastest link that device and slot support; an idle link runs slower.
  uint32_t pcie_generation = 0, pcie_width = 0;
  uint32_t nvlinks = 0, nvlink_version = 0;  // active links

  /// Bytes a second of one direction after line coding, which copies cannot exceed; 0: unknown.
  double pcie_bytes_per_s() const;
};

/// A measurement of one GPU.
struct GpuSample {
  double utilisation = 0;         // share of the time in which a kernel ran
  double memory_utilisation = 0;  // share of the time in which memory was read or written
  uint64_t memory_used_bytes = 0;
  double sm_clock_hz = 0, memory_clock_hz = 0;
  uint32_t pcie_generation = 0, pcie_width = 0;  // at present
};

struct Gpus {
  std::vector<GpuInfo> info;
  std::vector<GpuSample> samples;  // of the same GPUs
};

/// Asks on a thread of its own ("weir-gpus"), because drivers in trouble let calls wait.
class GpuMonitor {
 public:
  /// `library` is a file name for dlopen, usually "libnvidia-ml.so.1"; empty: no GPUs. Never fails:
  /// why there are none is logged once.
  GpuMonitor(const std::string& library, Duration interval);
  /// Waits for a call that runs.
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// The newest measurement, after waiting until the first one is there, at most `wait`. Empty when
  /// there is none. Thread-safe.
  Gpus Newest(Duration wait = Duration(0));

 private:
  class Nvml;
  void Run(const std::stop_token& stop);

  const Duration interval_;
  std::unique_ptr<Nvml> nvml_;  // used by the thread only; null: there is none
  std::mutex mutex_;  // std::mutex, because condition_variable_any waits with a stop token
  std::condition_variable_any changed_;
  Gpus newest_;
  bool measured_ = false;
  std::jthread thread_;
};

}  // namespace weir::agent
