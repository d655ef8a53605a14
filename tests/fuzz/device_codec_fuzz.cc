// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: every decoder of the device codecs, compiled for the host, on arbitrary bytes,
// against the host codec of the same name. The first bytes choose the codec and the parameters; the
// rest is the payload.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "datapath/cuda/device_codec.h"
#include "datapath/cuda/memory.h"

namespace {

using namespace weir;
using namespace weir::cuda;

/// A copy of exactly these bytes, aligned as device memory is.
DeviceBuffer CopyOf(const void* from, size_t bytes) {
  StatusOr<DeviceBuffer> buffer = DeviceBuffer::Make(bytes);
  if (!buffer.ok() || !CopyToDevice(buffer->data(), from, bytes, {}).ok()) std::abort();
  return *std::move(buffer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const DeviceCodec& codec = *DeviceCodecs()[data[0] % DeviceCodecs().size()];
  const CodecTraits& traits = codec.host().Traits();
  DeviceCall call;
  EncodeContext& context = call.context;
  context.world = 1 + data[1] % 64;
  context.params.ratio = traits.uses_ratio ? (1 + data[2]) / 256.0 : 1;
  context.shared_max = 1;
  context.params.bits = traits.settings[data[3] % traits.settings.size()].bits;
  if (!codec.host().Validate(context.params, context.world).ok()) context.world = 1;
  if (!codec.host().Validate(context.params, context.world).ok()) return 0;
  const std::span<const uint8_t> payload = std::span(data, size).subspan(4);
  // n follows the payload's size for lane codecs, so that more than the size check is reached.
  const size_t lane = codec.host().LaneBytes(context);
  const size_t n = lane > 0 && !traits.uses_ratio ? payload.size() / lane : size_t{data[3]} * 16;

  std::vector<float> expected(n, 1.0f);
  const bool host_accepts =
      codec.host().DecodeAdd(std::as_bytes(payload), context, 0.5f, expected).ok();

  const float maximum = 1;
  const uint64_t sound = UINT64_MAX;
  const std::vector<float> ones(n, 1.0f);
  const DeviceBuffer from = CopyOf(payload.data(), payload.size());
  const DeviceBuffer sum = CopyOf(ones.data(), n * sizeof(float));
  const DeviceBuffer maxima = CopyOf(&maximum, sizeof(maximum));
  const DeviceBuffer fault = CopyOf(&sound, sizeof(sound));
  StatusOr<DeviceBuffer> workspace = DeviceBuffer::Make(codec.WorkspaceBytes(n, call));
  if (!workspace.ok()) std::abort();
  call.workspace = workspace->bytes();
  call.shared_max = {reinterpret_cast<const float*>(maxima.data()), 1};
  call.fault = reinterpret_cast<uint64_t*>(fault.data());
  const std::span<float> out(reinterpret_cast<float*>(sum.data()), n);
  const bool accepts =
      codec.DecodeAdd(from.bytes(), call, 0.5f, out).ok() && *call.fault == UINT64_MAX;

  // The device refuses more elements than the ratio permits, and some formats of values.
  const bool may_be_stricter = traits.form == PayloadForm::kOpaque && traits.uses_ratio;
  if (accepts && !host_accepts) std::abort();
  if (host_accepts && !accepts && !may_be_stricter) std::abort();
  if (accepts && n > 0 && std::memcmp(expected.data(), out.data(), n * sizeof(float)) != 0) {
    std::abort();
  }
  return 0;
}
