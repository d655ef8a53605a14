// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory of one bucket's residual: the host's, or that of the device which encodes the bucket.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "datapath/codec/device.h"
#include "datapath/codec/residual/error_feedback.h"

namespace weir {

/// Zeroed floats, aligned for the kernels; empty until allocated. Pages that are never written take
/// no memory, so an aggregate residual costs a rank only its own region.
class ResidualStore::Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(whole_, other.whole_);
    std::swap(floats_, other.floats_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
    std::swap(held, other.held);
    return *this;
  }
  ~Buffer() { Free(); }

  /// In the host's memory. Has no effect if there is memory, wherever it is.
  void Allocate(size_t size) {
    if (floats_ != nullptr || size == 0) return;
    whole_.reset(std::calloc(size * sizeof(float) + kAlignment, 1));
    if (whole_ == nullptr) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(whole_.get());
    floats_ = reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
    size_ = size;
  }
  /// The same in the memory of `device`, or of the host if that is null. Memory elsewhere is
  /// replaced by zeros here.
  Status AllocateOn(Device* device, size_t size) {
    if (floats_ != nullptr && device_ != device) Free();
    if (device == nullptr) {
      Allocate(size);
      return OkStatus();
    }
    if (floats_ != nullptr || size == 0) return OkStatus();
    WEIR_ASSIGN_OR_RETURN(floats_, device->Allocate(size));
    device_ = device;
    size_ = size;
    return OkStatus();
  }
  /// Moves the content to the memory of `device`, or of the host if that is null. On error nothing
  /// changes.
  Status MoveTo(Device* device) {
    if (floats_ == nullptr || device_ == device) return OkStatus();
    Buffer moved;
    WEIR_RETURN_IF_ERROR(moved.AllocateOn(device, size_));
    if (device_ != nullptr && device != nullptr) {
      Buffer between;
      between.Allocate(size_);
      WEIR_RETURN_IF_ERROR(device_->ReadFloats(between.floats_, floats_, size_));
      WEIR_RETURN_IF_ERROR(device->WriteFloats(moved.floats_, between.floats_, size_));
    } else if (device_ != nullptr) {
      WEIR_RETURN_IF_ERROR(device_->ReadFloats(moved.floats_, floats_, size_));
    } else if (device != nullptr) {
      WEIR_RETURN_IF_ERROR(device->WriteFloats(moved.floats_, floats_, size_));
    }
    moved.held = held;
    *this = std::move(moved);
    return OkStatus();
  }
  void Free() {
    if (device_ != nullptr) device_->Free(floats_);
    whole_.reset();
    floats_ = nullptr;
    size_ = 0;
    device_ = nullptr;
    held = {};
  }
  /// Sets all elements to zero but those of `region`, which are unspecified then.
  Status HoldOnly(const Range& region) {
    if (held == region) return OkStatus();
    if (device_ == nullptr) {
      std::fill_n(floats_ + held.begin, held.size, 0.0f);
    } else if (held.size > 0) {
      Device* const device = device_;
      const size_t size = size_;
      Free();
      WEIR_RETURN_IF_ERROR(AllocateOn(device, size));
    }
    held = region;
    return OkStatus();
  }
  /// sum[i] += the element i, from `begin` to `end`. `sum` is in the same memory. Without memory,
  /// elements are zero.
  Status AddTo(std::span<float> sum, size_t begin, size_t end) const {
    if (floats_ == nullptr || begin >= end) return OkStatus();
    if (device_ != nullptr) return device_->AddFloats(&sum[begin], floats_ + begin, end - begin);
    for (size_t i = begin; i < end; ++i) sum[i] += floats_[i];
    return OkStatus();
  }
  float* data() const { return floats_; }
  bool on_host() const { return device_ == nullptr; }

  /// For the aggregate residual: the range outside of which all elements are zero.
  Range held;

 private:
  static constexpr size_t kAlignment = 64;
  struct Release {
    void operator()(void* whole) const { std::free(whole); }
  };
  std::unique_ptr<void, Release> whole_;
  float* floats_ = nullptr;
  size_t size_ = 0;
  Device* device_ = nullptr;  // null: the host
};

}  // namespace weir
