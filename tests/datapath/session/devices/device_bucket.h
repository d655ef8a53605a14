// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gradients in the memory of a device, for tests of sessions.

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "datapath/base/half.h"
#include "datapath/cuda/device.h"
#include "datapath/cuda/memory.h"
#include "datapath/session/session.h"

namespace weir::testing {

inline bool OnHost() { return cuda::DeviceName().value() == "host"; }

inline std::vector<std::byte> BytesOf(std::span<const float> values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * DtypeBytes(dtype));
  const std::span<uint16_t> lanes(reinterpret_cast<uint16_t*>(bytes.data()), values.size());
  switch (dtype) {
    case Dtype::kFloat32:
      std::copy_n(std::as_bytes(values).data(), bytes.size(), bytes.data());
      break;
    case Dtype::kFloat16:
      FloatToHalf(values, lanes);
      break;
    case Dtype::kBrain16:
      FloatToBrain(values, lanes);
      break;
  }
  return bytes;
}

/// One rank's bucket in one step, in the memory of a device or of the host.
class DeviceGradient {
 public:
  DeviceGradient(std::vector<std::byte> values, bool on_device) : values_(std::move(values)) {
    if (!on_device) return;
    on_device_ = true;
    memory_ = *cuda::DeviceBuffer::Make(values_.size());
    pinned_ = *cuda::PinnedBuffer::Make(values_.size());
    stream_ = *cuda::OwnStream::Make();
    std::copy(values_.begin(), values_.end(), pinned_.data());
    EXPECT_TRUE(cuda::FillDevice(memory_.data(), 0xCD, memory_.size(), stream_.get()).ok());
    EXPECT_TRUE(
        cuda::CopyToDevice(memory_.data(), pinned_.data(), memory_.size(), stream_.get()).ok());
  }
  void* data() { return on_device_ ? memory_.data() : values_.data(); }
  DevicePlace place() {
    if (!on_device_) return {};
    return {.device = *cuda::FindDevice(0), .stream = stream_.get().handle};
  }
  cuda::Stream stream() const { return stream_.get(); }

  /// When the operation has ended, without waiting for any stream. The memory is freed.
  std::vector<std::byte> Take() {
    if (!on_device_) return std::move(values_);
    if (OnHost()) {
      std::copy_n(memory_.data(), values_.size(), values_.data());
    } else {
      const cuda::OwnStream own = *cuda::OwnStream::Make();
      EXPECT_TRUE(cuda::CopyToHost(values_.data(), memory_.data(), values_.size(), own.get()).ok());
      EXPECT_TRUE(cuda::Synchronise(own.get()).ok());
    }
    memory_ = cuda::DeviceBuffer();
    return std::move(values_);
  }

 private:
  std::vector<std::byte> values_;
  bool on_device_ = false;
  cuda::PinnedBuffer pinned_;
  cuda::DeviceBuffer memory_;
  cuda::OwnStream stream_;  // destroyed before what it uses
};

}  // namespace weir::testing
