// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common part of the device codecs whose payload consists of buckets with their own scales
// (datapath/codec/quantised_buckets.h).

#include "datapath/codec/quantised_buckets.h"
#include "datapath/cuda/passes.h"

namespace weir::cuda {

/// Encoding is one pass whose tiles are the buckets. Derived classes give the programs.
class DeviceBuckets : public DeviceCodec {
 public:
  explicit DeviceBuckets(const Codec& host) : host_(host) {}

  const Codec& host() const override { return host_; }
  size_t WorkspaceBytes(size_t, const DeviceCall&) const override { return kPassWorkspace; }

  /// One pass, O(n).
  Status Encode(const PassOperands& operands, const DeviceCall& call,
                std::span<std::byte> out) const override {
    WEIR_RETURN_IF_ERROR(CheckEncode(*this, operands, call, out));
    return EncodeBuckets(operands, call,
                         out.first(host_.MaxEncodedBytes(operands.gradient.size(), call.context)));
  }

  Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                   std::span<float> out) const override {
    WEIR_RETURN_IF_ERROR(CheckDecode(*this, call, out.size(), payload));
    WEIR_RETURN_IF_ERROR(
        CheckLaneBytes(host_.Traits(), payload, host_.MaxEncodedBytes(out.size(), call.context)));
    return DecodeBuckets(payload, call, scale, out);
  }

 protected:
  virtual Status EncodeBuckets(const PassOperands& operands, const DeviceCall& call,
                               std::span<std::byte> payload) const = 0;
  virtual Status DecodeBuckets(std::span<const std::byte> payload, const DeviceCall& call,
                               float scale, std::span<float> out) const = 0;
  unsigned Bits(const DeviceCall& call) const {
    const EncodeContext& context = call.context;
    return FindSetting(host_.Traits(), context.params, context.world)->bits;
  }

 private:
  const Codec& host_;
};

/// Reads `count` scales of a bucket and lowers *fault where one is not finite. Returns whether all
/// are.
WEIR_DEVICE inline bool ReadScales(const uint8_t* payload, size_t at, unsigned count,
                                   uint64_t* fault, float* scales) {
  bool finite = true;
  for (unsigned i = 0; i < count; ++i) {
    scales[i] = reinterpret_cast<const float*>(payload + at)[i];
    if (IsFinite(scales[i])) continue;
    Team::Lower(fault, at + i * sizeof(float));
    finite = false;
  }
  return finite;
}

}  // namespace weir::cuda
