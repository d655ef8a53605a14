// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: every decoder of the registry and the residual state importer on arbitrary
// bytes. The first bytes choose the codec and the parameters; the rest is the payload.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "datapath/codec/codec.h"
#include "datapath/codec/residual/error_feedback.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const std::vector<const weir::Codec*> codecs = weir::Codecs().All();
  const size_t choice = data[0] % (codecs.size() + 1);
  const std::span<const std::byte> payload = std::as_bytes(std::span(data, size)).subspan(4);
  if (choice == codecs.size()) {
    weir::ResidualStore store;
    if (!store.Define(1, {{"a", data[1]}, {"b", data[2]}}).ok()) std::abort();
    (void)store.Import(payload).ok();
    return 0;
  }
  const weir::Codec& codec = *codecs[choice];
  weir::EncodeContext context;
  context.world = 1 + data[1] % 64;
  context.params.ratio = codec.Traits().uses_ratio ? (1 + data[2]) / 256.0 : 1;
  context.shared_max = 1;
  const std::vector<weir::CodecSetting>& settings = codec.Traits().settings;
  context.params.bits = settings[data[3] % settings.size()].bits;
  if (!codec.Validate(context.params, context.world).ok()) context.world = 1;
  // n follows the payload's size for lane codecs, so that more than the size check is reached.
  const size_t n = codec.LaneBytes(context) > 0 && !codec.Traits().uses_ratio
                       ? payload.size() / codec.LaneBytes(context)
                       : size_t{data[3]} * 16;
  std::vector<float> out(n, 0.0f);
  (void)codec.DecodeAdd(payload, context, 0.5f, out).ok();
  if (codec.Traits().form == weir::PayloadForm::kOpaque) {
    const std::vector<std::vector<std::byte>> both(2, {payload.begin(), payload.end()});
    size_t told = 0;
    const auto count = [&](std::span<float> part) { told += part.size(); };
    if (codec.DecodeSum(both, context, 0.5f, out, count).ok() && told != n) std::abort();
  }
  std::vector<uint32_t> indices;
  if (codec.DecodeIndices(payload, n, &indices).ok()) {
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] >= n || (i > 0 && indices[i] <= indices[i - 1])) std::abort();
    }
  }
  return 0;
}
