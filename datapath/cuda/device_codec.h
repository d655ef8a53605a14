// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface of the codecs that work on a GPU's memory. Each has the name, the parameters and,
// where the arithmetic allows it, the payload bytes of a host codec, so that ranks with and without
// a GPU take part in one job.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"
#include "datapath/codec/block_pass.h"
#include "datapath/codec/codec.h"
#include "datapath/cuda/stream.h"

namespace weir::cuda {

/// The required alignment of payloads and workspaces.
inline constexpr size_t kDeviceAlignment = 16;

/// The result of an encoding, in device memory. ResultOf converts it.
struct Outcome {
  uint64_t bytes;
  double energy_in, energy_lost;
  uint32_t max_bits;  // pattern of the largest magnitude
  uint32_t missed;    // 1: the payload is not valid yet, and Resolve makes it
};
EncodeResult ResultOf(const Outcome& outcome);
/// The statistics of a pass over n elements from its outcome and its bins, both copied to the host.
GradientStatistics StatisticsOf(const Outcome& outcome, std::span<const uint32_t> bins, size_t n);

/// Everything that a call needs besides its operands. All pointers and spans outside of `context`
/// are device memory; they belong to the caller and must stay valid until the stream has done the
/// call's work.
struct DeviceCall {
  // params, world, seed, rank, shape, round, previous (host memory) and state; the rest is not
  // used. The state is that of the host codec, so that both continue from each other's steps.
  EncodeContext context;
  // If Traits().shared_metadata == kMax: the maxima over ranks, with as many values as LocalMax
  // gives, or one. A value that is not finite or below 0 makes the outcome non-finite.
  std::span<const float> shared_max = {};
  uint32_t* bins = nullptr;    // if set, GradientStatistics::kBins counts, replaced by Encode
  Outcome* outcome = nullptr;  // Encode
  uint64_t* fault = nullptr;   // DecodeAdd: lowered to the offset of a fault; begin with ~0
  // DecodeAdd, if Traits().rounds > 1: the payload in the host's memory. Used during the call only.
  std::span<const std::byte> payload_on_host = {};
  // At least WorkspaceBytes. Its content is lost, and from Encode to Resolve it must not change.
  std::span<std::byte> workspace{};
  // Pinned host memory of at least PinnedBytes, which belongs to the call as the workspace does.
  // Without it Encode does not begin to read the outcome, so Resolve waits longer. Codecs with
  // several rounds need it.
  std::span<std::byte> pinned{};
  Stream stream = {};
};

/// A codec on the device. Const methods are thread-safe. Calls queue their work on the stream and
/// return; only Resolve waits. Spans of floats and payloads are device memory, payloads aligned to
/// kDeviceAlignment. Deterministic: for the same input, call and device the same bytes.
/// Errors of all calls: kInvalidArgument: parameters, world, alignment or sizes are wrong;
/// kFailedPrecondition: the stream records a CUDA graph, of which the codec cannot be a part;
/// kUnavailable: CUDA failed.
class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;

  /// The codec on the host with the same traits, parameters and payloads.
  virtual const Codec& host() const = 0;

  /// The scratch memory that calls with n elements need, in bytes; about a hundred kilobytes unless
  /// said otherwise. O(1).
  virtual size_t WorkspaceBytes(size_t n, const DeviceCall& call) const = 0;
  /// The size of DeviceCall::pinned for n elements; 0: it is not used. O(1).
  virtual size_t PinnedBytes(size_t n, const DeviceCall& call) const;

  /// The number of values that LocalMax writes for n elements.
  virtual size_t MaxCount(size_t n) const;
  /// This rank's contribution to shared_max as Codec::LocalMax defines it, written to `maxima`
  /// (MaxCount values, device memory). `residual` is empty or as long as `gradient`.
  virtual Status LocalMax(std::span<const float> gradient, std::span<const float> residual,
                          const DeviceCall& call, float* maxima) const;

  /// Encodes gradient + residual into `out`, which has at least host().MaxEncodedBytes less
  /// context.previous, and in the last round writes what the payload lacks to `rest` (as
  /// EncodeWithFeedback does; both empty: plain Encode). Writes *call.outcome. As on the host, a
  /// non-finite input gives a payload of zeros and unspecified `rest`. rest is the same span as
  /// residual or overlaps nothing.
  virtual Status Encode(const PassOperands& operands, const DeviceCall& call,
                        std::span<std::byte> out) const = 0;
  /// Waits for Encode's work on the stream and returns the outcome. A codec whose first attempt may
  /// miss encodes again here; `operands`, `call` and `out` are those of Encode. Needed only where
  /// payload sizes depend on data (PayloadForm::kOpaque with a ratio); otherwise the outcome
  /// may be read at any later time.
  virtual StatusOr<Outcome> Resolve(const PassOperands& operands, const DeviceCall& call,
                                    std::span<std::byte> out) const;

  /// out += scale * decode(payload). Trusts nothing in `payload`: where the content is malformed,
  /// *call.fault is lowered to an offset in it and `out` may hold a partial sum. kDataLoss: the
  /// size is wrong.
  virtual Status DecodeAdd(std::span<const std::byte> payload, const DeviceCall& call, float scale,
                           std::span<float> out) const = 0;

  /// PayloadForm::kLanes: sum += addend over whole lanes, as Codec::Accumulate. Not used by
  /// sessions, whose collectives add on the host. kUnimplemented: payloads add on the host only, or
  /// not at all.
  virtual Status Accumulate(const DeviceCall& call, std::span<std::byte> sum,
                            std::span<const std::byte> addend) const;
};

/// All device codecs of this build: device_codecs.def. Thread-safe.
const std::vector<const DeviceCodec*>& DeviceCodecs();
/// The device codec of this name, or null when there is none. Thread-safe.
const DeviceCodec* FindDeviceCodec(std::string_view name);

}  // namespace weir::cuda
