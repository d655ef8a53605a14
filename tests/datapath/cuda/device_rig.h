// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a device codec and the host codec of the same name on the same input.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "datapath/cuda/device_codec.h"
#include "datapath/cuda/memory.h"
#include "tests/datapath/codec/codec_test_support.h"
#include "tests/datapath/codec/golden_input.h"

namespace weir::cuda::test {

inline bool OnHost() { return DeviceName().value() == "host"; }

/// Memory of the device with a copy of `values`.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::span<const T> values) : OnDevice(values.size()) {
    WEIR_CHECK(CopyToDevice(buffer_.data(), values.data(), values.size_bytes(), {}).ok());
  }
  explicit OnDevice(size_t count) : count_(count) {
    StatusOr<DeviceBuffer> made = DeviceBuffer::Make(count * sizeof(T));
    WEIR_CHECK(made.ok());
    buffer_ = *std::move(made);
    WEIR_CHECK(FillDevice(buffer_.data(), 0xCD, count * sizeof(T), {}).ok());
  }
  ~OnDevice() { (void)Synchronise({}); }  // work that a test did not wait for
  OnDevice(OnDevice&&) = default;
  OnDevice& operator=(OnDevice&&) = default;
  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  std::span<T> span() const { return {data(), count_}; }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    WEIR_CHECK(CopyToHost(values.data(), data(), count_ * sizeof(T), {}).ok());
    WEIR_CHECK(Synchronise({}).ok());
    return values;
  }

 private:
  DeviceBuffer buffer_;
  size_t count_;
};

struct DeviceEncoded {
  std::vector<std::byte> payload;
  EncodeResult result;
  std::vector<float> rest;
  GradientStatistics statistics;
};

/// The call of `context`, whose buffers live as long as this.
class Caller {
 public:
  Caller(const DeviceCodec& codec, const EncodeContext& context, size_t n, Stream stream = {})
      : codec_(codec),
        outcome_(1),
        fault_(1),
        bins_(size_t{GradientStatistics::kBins}),
        maxima_(std::span<const float>(context.shared_max.values())) {
    call_.context = context;
    call_.shared_max = maxima_.span();
    call_.outcome = outcome_.data();
    call_.fault = fault_.data();
    call_.stream = stream;
    workspace_.emplace(codec.WorkspaceBytes(n, call_));
    call_.workspace = workspace_->span();
    const size_t pinned_bytes = codec.PinnedBytes(n, call_);
    StatusOr<PinnedBuffer> pinned = PinnedBuffer::Make(pinned_bytes);
    WEIR_CHECK(pinned.ok());
    pinned_ = *std::move(pinned);
    call_.pinned = {pinned_.data(), pinned_bytes};
    WEIR_CHECK(FillDevice(fault_.data(), 0xFF, sizeof(uint64_t), {}).ok());
  }

  DeviceCall& call() { return call_; }
  uint64_t fault() const { return fault_.Read()[0]; }
  Outcome outcome() const { return outcome_.Read()[0]; }

  /// `residual` empty: plain Encode. With feedback, the rest is written to the residual's memory if
  /// `in_place`.
  StatusOr<DeviceEncoded> Encode(std::span<const float> gradient, std::span<const float> residual,
                                 bool feedback, bool in_place = false) {
    const OnDevice<float> g(gradient), r(residual), apart(feedback ? gradient.size() : 0);
    const OnDevice<float>& rest = in_place ? r : apart;
    const OnDevice<std::byte> out(codec_.host().MaxEncodedBytes(gradient.size(), call_.context) -
                                  call_.context.previous.size());
    PassOperands operands{.gradient = g.span()};
    if (feedback) {
      operands.residual = r.span();
      operands.rest = rest.span();
    }
    call_.bins = bins_.data();
    WEIR_RETURN_IF_ERROR(codec_.Encode(operands, call_, out.span()));
    WEIR_ASSIGN_OR_RETURN(const Outcome outcome, codec_.Resolve(operands, call_, out.span()));
    WEIR_RETURN_IF_ERROR(Synchronise(call_.stream));  // the statistics
    DeviceEncoded encoded;
    encoded.payload = out.Read();
    encoded.result = ResultOf(outcome);
    WEIR_CHECK(encoded.result.bytes <= encoded.payload.size());
    encoded.payload.resize(encoded.result.bytes);
    encoded.rest = rest.Read();
    encoded.statistics = StatisticsOf(outcome, bins_.Read(), gradient.size());
    return encoded;
  }

  /// out += scale * decode(payload), as on the host; the fault stays for fault().
  Status DecodeAdd(std::span<const std::byte> payload, float scale, std::span<float> out) {
    const OnDevice<std::byte> from(payload);
    const OnDevice<float> sum{std::span<const float>(out)};
    call_.payload_on_host = payload;
    WEIR_RETURN_IF_ERROR(codec_.DecodeAdd(from.span(), call_, scale, sum.span()));
    WEIR_RETURN_IF_ERROR(Synchronise(call_.stream));
    const std::vector<float> read = sum.Read();
    std::copy(read.begin(), read.end(), out.begin());
    return OkStatus();
  }

 private:
  const DeviceCodec& codec_;
  DeviceCall call_;
  OnDevice<Outcome> outcome_;
  OnDevice<uint64_t> fault_;
  OnDevice<uint32_t> bins_;
  OnDevice<float> maxima_;
  std::optional<OnDevice<std::byte>> workspace_;
  PinnedBuffer pinned_;
};

inline std::vector<uint32_t> Patterns(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(),
                 [](float value) { return std::bit_cast<uint32_t>(value); });
  return bits;
}

/// A golden payload of the codecs as text; empty: there is no file of this name.
inline std::string GoldenPayload(const std::string& name) {
  return weir::test::ReadPayloadFile(std::string(WEIR_TEST_SOURCE_DIR) + "/golden/codec/" + name +
                                     ".hex");
}

}  // namespace weir::cuda::test
