// SPDX-License-Identifier: Apache-2.0
#pragma once
// Buckets in the memory of an accelerator. A session, its exchange forms and the residual store see
// a device through these two classes only; datapath/cuda implements them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "datapath/base/half.h"
#include "datapath/base/scratch_pool.h"
#include "datapath/base/status.h"
#include "datapath/codec/codec.h"

namespace weir {

/// The elements of a bucket in the memory of a device, which stays the caller's.
struct DeviceData {
  void* data = nullptr;
  uint64_t elements = 0;
  Dtype dtype = Dtype::kFloat32;
  void* stream = nullptr;  // the elements are complete when it has done what it was given by now
};

class Device;

/// One bucket on a device during one operation. Functions return when their work is done, unless
/// they say otherwise. When the object is destroyed, nothing on the device uses the data any more.
/// One thread at a time uses it. Errors of all functions: kUnavailable: the device failed;
/// kResourceExhausted: its memory is full.
class DeviceBucket {
 public:
  virtual ~DeviceBucket() = default;
  virtual Device& device() const = 0;

  /// Whether the stream has done its work, before which no other function may be called. Never
  /// waits.
  virtual StatusOr<bool> IsReady() = 0;

  /// Copies the data as it is, DtypeBytes for each element. Host memory is best Device::pinned's.
  virtual Status CopyToHost(std::span<std::byte> to) = 0;
  virtual Status CopyFromHost(std::span<const std::byte> from) = 0;

  /// The elements as float32, in the device's memory: the data itself, or for 16 bits a copy. The
  /// functions below work on them.
  virtual StatusOr<std::span<float>> Floats() = 0;

  /// As Codec::LocalMax of the host codec of that name, which Device::Runs. `residual` is empty or
  /// in the device's memory.
  virtual StatusOr<SharedMax> LocalMax(const Codec& codec, std::span<const float> residual,
                                       const EncodeContext& context) = 0;
  /// As Codec::Encode (`residual` and `rest` empty) or EncodeWithFeedback, with the same bytes.
  /// Residual and rest are in the device's memory, `out` is in the host's.
  virtual StatusOr<EncodeResult> Encode(const Codec& codec, std::span<const float> residual,
                                        std::span<float> rest, const EncodeContext& context,
                                        std::span<std::byte> out) = 0;
  /// Replaces the elements by scale times the sum of the payloads of ranks 0, 1 and so on, added in
  /// this order as by Codec::DecodeSum. Returns whether all are finite. kDataLoss: a payload is
  /// malformed; names its rank.
  virtual StatusOr<bool> DecodeSum(const Codec& codec,
                                   std::span<const std::span<const std::byte>> payloads,
                                   const EncodeContext& context, float scale) = 0;
  /// After DecodeSum: writes the elements to the data. Returns false, and does not, if the data's
  /// dtype cannot hold them.
  virtual StatusOr<bool> Deliver() = 0;
  /// Sets the data to NaN.
  virtual Status FillNan() = 0;
};

/// An accelerator. Lives as long as the program. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;
  /// Whether the codec works on the device, so that a bucket need not be copied to the host.
  virtual bool Runs(const Codec& codec) const = 0;
  /// Begins an operation on a bucket. Never waits. kInvalidArgument: the data is not aligned to its
  /// elements; kFailedPrecondition: the stream records a graph; kUnavailable: the device failed.
  virtual StatusOr<std::unique_ptr<DeviceBucket>> Open(const DeviceData& data) = 0;

  /// Host memory from and to which the device copies fastest.
  virtual ScratchPool& pinned() = 0;

  /// Memory of the device for `count` floats, set to zero; freed by Free. kResourceExhausted,
  /// kUnavailable as above.
  virtual StatusOr<float*> Allocate(size_t count) = 0;
  virtual void Free(float* floats) noexcept = 0;
  /// Copies between the device's memory and the host's, and waits for it.
  virtual Status ReadFloats(float* to, const float* from, size_t count) = 0;
  virtual Status WriteFloats(float* to, const float* from, size_t count) = 0;
};

}  // namespace weir
