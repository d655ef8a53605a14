#pragma once
// Inputs and small operations that the codec tests share.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/codec/codec.h"

namespace weir::test {

inline const Codec& FindCodec(std::string_view name) {
  const StatusOr<const Codec*> codec = Codecs().Find(name);
  WEIR_CHECK(codec.ok());
  return **codec;
}

inline std::vector<float> NormalVector(size_t n, uint64_t seed, double scale = 1) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(scale * random.Normal());
  return x;
}

/// The seven distributions of the histogram's accuracy claim.
struct Distribution {
  std::string name;
  std::function<double(Random&, size_t index)> draw;
};

inline double Sign(Random& random) { return random.Next() >> 63 ? 1.0 : -1.0; }
inline double Exponential(Random& random) { return -std::log(1 - random.Uniform()); }

inline std::vector<Distribution> SevenDistributions() {
  return {
      {"laplace", [](Random& r, size_t) { return Sign(r) * Exponential(r); }},
      {"gaussian", [](Random& r, size_t) { return r.Normal(); }},
      // Gamma with shape 1/2 is half a squared normal.
      {"double_gamma", [](Random& r, size_t) { return Sign(r) * 0.5 * std::pow(r.Normal(), 2); }},
      // |x|^0.5 is gamma with shape 2.
      {"generalised_normal",
       [](Random& r, size_t) { return Sign(r) * std::pow(Exponential(r) + Exponential(r), 2); }},
      {"student_t3",
       [](Random& r, size_t) {
         const double z = r.Normal(), a = r.Normal(), b = r.Normal(), c = r.Normal();
         return z / std::sqrt((a * a + b * b + c * c) / 3);
       }},
      {"layers",
       [](Random& r, size_t i) {
         Random layer(i / 5000 + 77);
         return r.Normal() * std::exp(1.5 * layer.Normal());
       }},
      {"mostly_zero", [](Random& r, size_t) { return r.Uniform() < 0.9 ? 0.0 : r.Normal(); }},
  };
}

inline std::vector<float> Draw(const Distribution& distribution, size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(distribution.draw(random, i));
  return x;
}

inline double SquaredNorm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return sum;
}

/// A context fit for `codec`: ratio 0.1, fixed seed, the shared maximum of `x` where it is needed.
inline EncodeContext ContextFor(const Codec& codec, std::span<const float> x, int world = 1,
                                double ratio = 0.1) {
  EncodeContext context;
  context.params.ratio = codec.Traits().uses_ratio ? ratio : 1;
  context.world = world;
  context.seed = 0x5EED;
  if (codec.Traits().shared_metadata == SharedMetadata::kMaxAbs) {
    context.shared_max_abs = MaxAbs(x, {});
  }
  return context;
}

struct Encoded {
  std::vector<std::byte> payload;
  EncodeResult result;
};

/// Encodes into a buffer of exactly MaxEncodedBytes.
inline Encoded EncodeOrDie(const Codec& codec, std::span<const float> x,
                           const EncodeContext& context) {
  Encoded encoded;
  encoded.payload.resize(codec.MaxEncodedBytes(x.size(), context.params));
  const auto result = codec.Encode(x, context, encoded.payload);
  if (!result.ok()) std::fprintf(stderr, "%s\n", ToString(result.status()).c_str());
  WEIR_CHECK(result.ok() && result->bytes <= encoded.payload.size());
  encoded.result = *result;
  encoded.payload.resize(result->bytes);
  return encoded;
}

/// What a payload of `codec` stands for. For a selection without values: x at the selected
/// positions.
inline StatusOr<std::vector<float>> DecodeFor(const Codec& codec,
                                              std::span<const std::byte> payload,
                                              const EncodeContext& context,
                                              std::span<const float> x) {
  std::vector<float> decoded(x.size(), 0.0f);
  if (codec.Traits().form == PayloadForm::kSharedIndex) {
    std::vector<uint32_t> indices;
    WEIR_RETURN_IF_ERROR(codec.DecodeIndices(payload, x.size(), &indices));
    for (const uint32_t i : indices) decoded[i] = x[i];
  } else {
    WEIR_RETURN_IF_ERROR(codec.DecodeAdd(payload, context, 1.0f, decoded));
  }
  return decoded;
}

}  // namespace weir::test
