// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/gpus.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace weir::agent {
namespace {

constexpr Duration kPatience = std::chrono::seconds(20);
constexpr Duration kInterval = std::chrono::milliseconds(5);

TEST(GpusTest, ReadsWhatTheLibraryTells) {
  GpuMonitor monitor(WEIR_FAKE_NVML, kInterval);
  const Gpus gpus = monitor.Newest(kPatience);
  ASSERT_EQ(gpus.info.size(), 2u);
  ASSERT_EQ(gpus.samples.size(), 2u);
  const GpuInfo& first = gpus.info[0];
  EXPECT_EQ(first.name, "Fake H100");
  EXPECT_EQ(first.uuid, "GPU-0123");
  EXPECT_EQ(first.memory_bytes, 80ull << 30);
  EXPECT_EQ(first.pcie_generation, 5u);
  EXPECT_EQ(first.pcie_width, 16u);
  EXPECT_EQ(first.nvlinks, 12u);
  EXPECT_EQ(first.nvlink_version, 4u);
  const GpuSample& sample = gpus.samples[0];
  EXPECT_DOUBLE_EQ(sample.utilisation, 0.75);
  EXPECT_DOUBLE_EQ(sample.memory_utilisation, 0.3);
  EXPECT_EQ(sample.memory_used_bytes, 20ull << 30);
  EXPECT_DOUBLE_EQ(sample.sm_clock_hz, 1980e6);
  EXPECT_DOUBLE_EQ(sample.memory_clock_hz, 2619e6);
  EXPECT_EQ(sample.pcie_generation, 1u);
}

TEST(GpusTest, UnsupportedQuestionsGiveZero) {
  GpuMonitor monitor(WEIR_FAKE_NVML, kInterval);
  const Gpus gpus = monitor.Newest(kPatience);
  ASSERT_EQ(gpus.info.size(), 2u);
  EXPECT_EQ(gpus.info[1].name, "Fake vGPU");
  EXPECT_EQ(gpus.info[1].uuid, "");
  EXPECT_EQ(gpus.info[1].nvlinks, 0u);
  EXPECT_EQ(gpus.info[1].pcie_bytes_per_s(), 0);
  EXPECT_EQ(gpus.samples[1].utilisation, 0);
  EXPECT_EQ(gpus.samples[1].sm_clock_hz, 0);
}

TEST(GpusTest, WithoutTheLibraryThereAreNone) {
  EXPECT_TRUE(GpuMonitor("libdoes-not-exist.so.1", kInterval).Newest(kPatience).info.empty());
  EXPECT_TRUE(GpuMonitor("", kInterval).Newest(kPatience).info.empty());
  EXPECT_TRUE(GpuMonitor("libm.so.6", kInterval).Newest(kPatience).info.empty());
  setenv("WEIR_FAKE_NVML_BROKEN", "1", 1);
  EXPECT_TRUE(GpuMonitor(WEIR_FAKE_NVML, kInterval).Newest(kPatience).info.empty());
  unsetenv("WEIR_FAKE_NVML_BROKEN");
}

TEST(GpusTest, BandwidthFollowsFromGenerationAndLanes) {
  GpuInfo info;
  EXPECT_EQ(info.pcie_bytes_per_s(), 0);
  info.pcie_generation = 3;
  info.pcie_width = 8;
  EXPECT_NEAR(info.pcie_bytes_per_s(), 7.88e9, 1e7);
  info.pcie_generation = 99;
  EXPECT_EQ(info.pcie_bytes_per_s(), 0);
}

}  // namespace
}  // namespace weir::agent
