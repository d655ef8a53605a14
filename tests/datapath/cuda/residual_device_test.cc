// SPDX-License-Identifier: Apache-2.0
// Residuals in the memory of a device: whatever else uses them finds them on the host.

#include <gtest/gtest.h>

#include "datapath/codec/residual/error_feedback.h"
#include "datapath/cuda/device.h"
#include "tests/datapath/cuda/device_rig.h"

namespace weir::cuda {
namespace {

constexpr uint64_t kKey = 5;
constexpr size_t kElements = 1000;

class ResidualDeviceTest : public ::testing::Test {
 protected:
  ResidualDeviceTest() { EXPECT_TRUE(store_.Define(kKey, {{"a", 400}, {"b", 600}}).ok()); }

  /// A step on the device or the host, which finds `expected` and leaves `left` everywhere.
  void Step(Device* device, float expected, float left) {
    const StatusOr<ResidualBuffers> buffers = store_.BeginEncode(kKey, device);
    ASSERT_TRUE(buffers.ok()) << ToString(buffers.status());
    std::vector<float> current(kElements);
    const std::vector<float> next(kElements, left);
    if (device == nullptr) {
      std::copy(buffers->current.begin(), buffers->current.end(), current.begin());
      std::copy(next.begin(), next.end(), buffers->next.begin());
    } else {
      ASSERT_TRUE(device->ReadFloats(current.data(), buffers->current.data(), kElements).ok());
      ASSERT_TRUE(device->WriteFloats(buffers->next.data(), next.data(), kElements).ok());
    }
    EXPECT_EQ(current, std::vector<float>(kElements, expected));
  }

  Device* const device_ = *FindDevice(0);
  ResidualStore store_;
};

TEST_F(ResidualDeviceTest, FollowsTheStepsBetweenHostAndDevice) {
  float left = 0;
  for (Device* const device :
       {device_, device_, static_cast<Device*>(nullptr), device_, static_cast<Device*>(nullptr)}) {
    Step(device, left, left + 1);
    store_.Commit();
    Step(device, left + 1, 100);
    store_.Discard();
    left += 1;
  }
}

/// Gradients of zeros in the memory of a device, or of the host.
class Zeros {
 public:
  explicit Zeros(Device* device) : device_(device), host_(kElements) {
    if (device != nullptr) floats_ = *device->Allocate(kElements);
  }
  ~Zeros() {
    if (device_ != nullptr) device_->Free(floats_);
  }
  std::span<float> floats() {
    return device_ == nullptr ? std::span<float>(host_) : std::span<float>(floats_, kElements);
  }
  std::vector<float> Take() {
    if (device_ != nullptr) {
      EXPECT_TRUE(device_->ReadFloats(host_.data(), floats_, kElements).ok());
    }
    return host_;
  }

 private:
  Device* const device_;
  std::vector<float> host_;
  float* floats_ = nullptr;
};

TEST_F(ResidualDeviceTest, AggregatesFollowTheStepsAndWhatIsOutsideOfTheRegionIsAdded) {
  using Range = ResidualStore::Range;
  Step(device_, 0, 2);  // an ordinary residual, which the first sum takes over
  store_.Commit();
  std::vector<float> owed(kElements);  // the aggregate residual
  float residual = 2;
  const std::vector<std::pair<Device*, Range>> steps = {
      {device_, {0, 500}}, {device_, {0, 500}},   {device_, {300, 400}}, {nullptr, {300, 400}},
      {nullptr, {0, 500}}, {device_, {600, 400}}, {nullptr, {0, 0}},     {device_, {0, 1000}}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [device, region] = steps[i];
    const size_t end = region.begin + region.size;
    for (const bool commits : {false, true}) {
      Zeros gradient(device);
      const auto buffers = store_.BeginSum(kKey, region, gradient.floats(), device);
      ASSERT_TRUE(buffers.ok()) << ToString(buffers.status());
      std::vector<float> current(region.size);
      const std::vector<float> next(region.size, static_cast<float>(i + 1));
      if (device == nullptr) {
        std::copy(buffers->current.begin(), buffers->current.end(), current.begin());
        std::copy(next.begin(), next.end(), buffers->next.begin());
      } else if (region.size > 0) {
        ASSERT_TRUE(device->ReadFloats(current.data(), buffers->current.data(), region.size).ok());
        ASSERT_TRUE(device->WriteFloats(buffers->next.data(), next.data(), region.size).ok());
      }
      const std::vector<float> added = gradient.Take();
      for (size_t k = 0; k < kElements; ++k) {
        const bool inside = k >= region.begin && k < end;
        ASSERT_EQ(added[k], residual + (inside ? 0 : owed[k])) << i << ", " << k;
        ASSERT_EQ(inside ? current[k - region.begin] : owed[k], owed[k]) << i << ", " << k;
      }
      if (commits) {
        store_.Commit();
      } else {
        store_.Discard();
      }
    }
    residual = 0;
    std::fill(owed.begin(), owed.end(), 0.0f);
    std::fill_n(owed.begin() + static_cast<ptrdiff_t>(region.begin), region.size,
                static_cast<float>(i + 1));
  }
  Zeros flushed(nullptr);  // a dense step
  ASSERT_TRUE(*store_.Flush(kKey, flushed.floats()));
  EXPECT_EQ(flushed.Take(), owed);
}

TEST_F(ResidualDeviceTest, UndoGivesBackTheOneBeforeWhereverItIs) {
  for (Device* const second : {device_, static_cast<Device*>(nullptr)}) {
    Step(device_, 0, 1);
    store_.Commit();
    Step(second, 1, 2);
    store_.Commit();
    ASSERT_TRUE(store_.Undo().ok());
    Step(device_, 1, 0);
    store_.Commit();
  }
}

TEST_F(ResidualDeviceTest, AFlushAddsIt) {
  Step(device_, 0, 3);
  store_.Commit();
  std::vector<float> gradient(kElements, 0.5f);
  ASSERT_TRUE(store_.Flush(kKey, gradient).ok());
  EXPECT_EQ(gradient, std::vector<float>(kElements, 3.5f));
  store_.Commit();
  Step(device_, 0, 1);
}

TEST_F(ResidualDeviceTest, ParametersKeepItWhenBucketsAreMadeAgain) {
  Step(device_, 0, 3);
  store_.Commit();
  ASSERT_TRUE(store_.Define(kKey + 1, {{"b", 600}, {"a", 400}}).ok());
  std::vector<float> gradient(kElements);
  ASSERT_TRUE(store_.Flush(kKey + 1, gradient).ok());
  EXPECT_EQ(gradient, std::vector<float>(kElements, 3.0f));
}

TEST_F(ResidualDeviceTest, ExportAndScaleSeeIt) {
  Step(device_, 0, 3);
  store_.Commit();
  ASSERT_TRUE(store_.Scale(2).ok());
  Step(device_, 6, 6);
  store_.Commit();
  std::vector<std::byte> bytes(store_.ExportBytes());
  ASSERT_TRUE(store_.Export(bytes).ok());
  ResidualStore other;
  ASSERT_TRUE(other.Define(kKey, {{"a", 400}, {"b", 600}}).ok());
  ASSERT_TRUE(other.Import(bytes).ok());
  std::vector<float> gradient(kElements);
  ASSERT_TRUE(other.Flush(kKey, gradient).ok());
  EXPECT_EQ(gradient, std::vector<float>(kElements, 6.0f));
  Step(device_, 6, 0);
}

TEST_F(ResidualDeviceTest, MomentumAndTheMemoryOfEf21FollowTheStepsToo) {
  const auto fill = [](Device* device, std::span<float> to, float value) {
    const std::vector<float> values(to.size(), value);
    if (device == nullptr) {
      std::copy(values.begin(), values.end(), to.begin());
    } else {
      ASSERT_TRUE(device->WriteFloats(to.data(), values.data(), to.size()).ok());
    }
  };
  const auto read = [](Device* device, std::span<const float> from) {
    std::vector<float> values(from.begin(), device == nullptr ? from.end() : from.begin());
    values.resize(from.size());
    if (device != nullptr) {
      EXPECT_TRUE(device->ReadFloats(values.data(), from.data(), from.size()).ok());
    }
    return values;
  };
  const auto all = [](float value) { return std::vector<float>(kElements, value); };
  const std::vector<Device*> places = {device_, device_, nullptr, device_, nullptr};
  for (size_t i = 0; i < places.size(); ++i) {
    Device* const device = places[i];
    const auto found = static_cast<float>(i);
    Step(device, 2 * found, 2 * found + 2);
    const auto momentum = store_.BeginMomentum(kKey, device);
    ASSERT_TRUE(momentum.ok()) << ToString(momentum.status());
    EXPECT_EQ(read(device, momentum->current), all(found)) << i;
    fill(device, momentum->next, found + 1);
    store_.Commit();
  }
  // The residual goes into the gradient of the first step of EF21.
  const auto step = [&](Device* device, int i, float flushed) {
    const auto found = static_cast<float>(i);
    Zeros gradient(device);
    const auto buffers = store_.BeginEf21(kKey, gradient.floats(), device);
    ASSERT_TRUE(buffers.ok()) << ToString(buffers.status());
    EXPECT_EQ(gradient.Take(), all(flushed));
    EXPECT_EQ(read(device, buffers->negative), all(-found));
    EXPECT_EQ(read(device, buffers->estimate), all(3 * found));
    fill(device, buffers->next_negative, -found - 1);
    fill(device, buffers->next_estimate, 3 * found + 3);
  };
  for (size_t i = 0; i < places.size(); ++i) {
    step(places[i], static_cast<int>(i), i == 0 ? 10.0f : 0.0f);
    store_.Commit();
  }
  ASSERT_TRUE(store_.Undo().ok());
  step(device_, 4, 0);
  store_.Commit();
  std::vector<std::byte> bytes(store_.ExportBytes());
  ASSERT_TRUE(store_.Export(bytes).ok());
  step(device_, 5, 0);
  store_.Commit();
  ASSERT_TRUE(store_.Import(bytes).ok());
  step(device_, 5, 0);
}

TEST_F(ResidualDeviceTest, OnlyMemoryOfTheHostIsCounted) {
  Step(nullptr, 0, 1);
  store_.Commit();
  EXPECT_EQ(store_.MemoryBytes(), 2 * kElements * sizeof(float));
  for (int step = 1; step < 3; ++step) {  // the first keeps what Undo would need
    Step(device_, step, step + 1);
    store_.Commit();
  }
  EXPECT_EQ(store_.MemoryBytes(), 0u);
}

}  // namespace
}  // namespace weir::cuda
