// SPDX-License-Identifier: Apache-2.0
#pragma once
// Buckets in the memory of an accelerator. A session, its exchange forms and the residual store see
// a device through these two classes only; datapath/cuda implements them.

#include <array>
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
  /// Residual, rest and the context's momentum are in the device's memory, `out` is in the host's.
  virtual StatusOr<EncodeResult> Encode(const Codec& codec, std::span<const float> residual,
                                        std::span<float> rest, const EncodeContext& context,
                                        std::span<std::byte> out) = 0;
  /// Replaces the elements by scale times the sum of the payloads, added in their order as by
  /// Codec::DecodeSum. Payload i is of rank ranks[i]; `ranks` empty: of rank i, or where there is
  /// only one, of the rank that the context names. Returns whether all are finite. kDataLoss: a
  /// payload is malformed; names its rank.
  virtual StatusOr<bool> DecodeSum(const Codec& codec,
                                   std::span<const std::span<const std::byte>> payloads,
                                   std::span<const int> ranks, const EncodeContext& context,
                                   float scale) = 0;
  /// to = from - the decoded payload, which is this rank's own. Both are as long as the bucket, in
  /// the device's memory, and do not overlap. The elements of the bucket do not change. kDataLoss
  /// as above.
  virtual Status Subtract(const Codec& codec, std::span<const std::byte> payload,
                          const EncodeContext& context, std::span<const float> from,
                          std::span<float> to) = 0;
  /// After DecodeSum: next = estimate + the elements, which become scale * next. The spans are as
  /// those of Subtract. Returns whether all elements are finite.
  virtual StatusOr<bool> AddToEstimate(std::span<const float> estimate, std::span<float> next,
                                       float scale) = 0;
  /// Multiplies the elements by `scale`. Returns whether all are finite.
  virtual StatusOr<bool> Scale(float scale) = 0;
  /// The elements begin .. begin + size - 1 (at least one) as a bucket of its own: its functions
  /// work on the same memory. It is ready. No function of it may be called once this bucket is
  /// destroyed.
  virtual StatusOr<std::unique_ptr<DeviceBucket>> Part(size_t begin, size_t size) = 0;
  /// After DecodeSum, AddToEstimate or Scale: writes the elements to the data. Returns false, and
  /// does not, if the data's dtype cannot hold them.
  virtual StatusOr<bool> Deliver() = 0;
  /// Sets the data to NaN.
  virtual Status FillNan() = 0;
};

/// By which the devices of a group find each other. Made by one of them.
using DeviceGroupId = std::array<std::byte, 128>;

/// One device's end of a group of devices on one node, among which memory moves without the host.
/// One thread at a time uses it. Errors: kUnavailable: a device, the library that moves the memory
/// or another end failed; nothing more can be begun. The destructor aborts.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  /// Ends what is in progress, whatever the other ends do: no memory is used any more. Nothing more
  /// can be begun.
  virtual void Abort() noexcept = 0;
  /// Whether what was begun last, which at first is the group itself, has ended. Never waits.
  virtual StatusOr<bool> IsDone() = 0;
  /// Begins to send outgoing[i] to member i, and to receive incoming[i] from it. There is one entry
  /// for each member, those of this one are empty, and sizes agree pairwise. All is memory of the
  /// device, complete before the call, and unused by others until IsDone. All members begin the
  /// same exchanges in the same order. To be called only when IsDone.
  virtual Status Exchange(std::span<const std::span<const float>> outgoing,
                          std::span<const std::span<float>> incoming) = 0;
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

  /// Memory of the device from a pool, for one operation; of unspecified content.
  /// kResourceExhausted: it is full.
  virtual StatusOr<ScratchBuffer> TakeMemory(size_t bytes) = 0;

  /// Memory of the device for `count` floats, set to zero; freed by Free. kResourceExhausted,
  /// kUnavailable as above.
  virtual StatusOr<float*> Allocate(size_t count) = 0;
  virtual void Free(float* floats) noexcept = 0;
  /// Copies between the device's memory and the host's, and waits for it.
  virtual Status ReadFloats(float* to, const float* from, size_t count) = 0;
  virtual Status WriteFloats(float* to, const float* from, size_t count) = 0;
  /// to[i] += from[i], both in the device's memory. Returns when it is done.
  virtual Status AddFloats(float* to, const float* from, size_t count) = 0;

  /// kUnavailable: no library is there that could move memory between devices; says which one.
  virtual StatusOr<DeviceGroupId> NewGroupId() = 0;
  /// Begins to form a group of `size` devices, as its member `place`. It may be used once it
  /// IsDone; all members have joined then. kUnavailable as above, or the library refuses, for
  /// example because another member is the same device.
  virtual StatusOr<std::unique_ptr<DeviceGroup>> Join(const DeviceGroupId& id, int place,
                                                      int size) = 0;
};

}  // namespace weir
