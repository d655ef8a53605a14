// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inputs and small operations that the codec tests share.

#include <gtest/gtest.h>

#include <algorithm>
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

/// The name of a codec or variant as an identifier in names of tests and files: "sidco_fit_gp".
inline std::string IdentifierOf(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ':' || c == '='; }, '_');
  return name;
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

/// Calls check(codec, bits) for every codec and every setting that differs in its bits.
inline void ForEachSetting(const std::function<void(const Codec&, int bits)>& check) {
  for (const Codec* codec : Codecs().All()) {
    std::vector<int> seen;
    for (const CodecSetting& setting : codec->Traits().settings) {
      if (std::find(seen.begin(), seen.end(), setting.bits) != seen.end()) continue;
      seen.push_back(setting.bits);
      SCOPED_TRACE(codec->Traits().name + " with bits " + std::to_string(setting.bits));
      check(*codec, setting.bits);
    }
  }
}

/// A context for `codec`: ratio 0.1, fixed seed, and the shared maximum of `x` if the codec needs
/// it.
inline EncodeContext ContextFor(const Codec& codec, std::span<const float> x, int world = 1,
                                double ratio = 0.1, int bits = 0) {
  EncodeContext context;
  context.params.ratio = codec.Traits().uses_ratio ? ratio : 1;
  context.params.bits = bits;
  context.world = world;
  context.seed = 0x5EED;
  if (codec.Traits().shared_metadata == SharedMetadata::kMax) {
    context.shared_max = codec.LocalMax(x, {}, context);
  }
  return context;
}

/// The context of the payload that is recorded in tests/golden/codec for a width: that of one of
/// three ranks, or of one alone where the width does not hold sums of three.
inline EncodeContext GoldenContext(const Codec& codec, std::span<const float> x, int bits) {
  const double ratio = codec.Traits().uses_ratio ? 0.1 : 1;
  const int world = codec.Validate({.ratio = ratio, .bits = bits}, 3).ok() ? 3 : 1;
  return ContextFor(codec, x, world, ratio, bits);
}

/// The name of the file: without a width for the codec's first setting.
inline std::string GoldenName(const Codec& codec, int bits) {
  const std::string name = IdentifierOf(codec.Traits().name);
  return bits == codec.Traits().settings.front().bits ? name : name + "_" + std::to_string(bits);
}

struct Encoded {
  std::vector<std::byte> payload;
  EncodeResult result;
};

/// The result of one round of all ranks of a world: every rank's payload (all rounds) and the sum.
struct Exchanged {
  std::vector<Encoded> ranks;
  std::vector<std::byte> sum;  // of lanes; else rank 0's payload
};

/// Encodes every rank's input into a buffer of exactly MaxEncodedBytes, round by round, adding
/// lanes as a collective would. `contexts` may differ in rank only. A payload holds the sums of the
/// rounds before the last, then the rank's own last part.
inline Exchanged ExchangeOrDie(const Codec& codec, std::span<const std::vector<float>> inputs,
                               std::vector<EncodeContext> contexts) {
  Exchanged exchanged;
  exchanged.ranks.resize(inputs.size());
  size_t at = 0;
  for (int round = 0; round < codec.Traits().rounds; ++round) {
    std::vector<std::byte> sum;
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      Encoded& encoded = exchanged.ranks[rank];
      EncodeContext& context = contexts[rank];
      encoded.payload.resize(codec.MaxEncodedBytes(inputs[rank].size(), context));
      std::copy(exchanged.sum.begin(), exchanged.sum.end(), encoded.payload.begin());
      context.round = round;
      context.previous = exchanged.sum;
      const auto result =
          codec.Encode(inputs[rank], context, std::span(encoded.payload).subspan(at));
      if (!result.ok()) std::fprintf(stderr, "%s\n", ToString(result.status()).c_str());
      WEIR_CHECK(result.ok() && at + result->bytes <= encoded.payload.size());
      encoded.result = *result;
      encoded.payload.resize(at + result->bytes);
      const auto part = std::span<const std::byte>(encoded.payload).subspan(at);
      if (rank == 0) {
        sum.assign(part.begin(), part.end());
      } else if (codec.Traits().form == PayloadForm::kLanes) {
        WEIR_CHECK(sum.size() == part.size());
        codec.Accumulate(context, sum, part);
      }
    }
    exchanged.sum.insert(exchanged.sum.end(), sum.begin(), sum.end());
    at = exchanged.sum.size();
  }
  return exchanged;
}

/// Encodes one rank's input, all rounds, with zeros from all other ranks.
inline Encoded EncodeOrDie(const Codec& codec, std::span<const float> x,
                           const EncodeContext& context) {
  const std::vector<float> input(x.begin(), x.end());
  return ExchangeOrDie(codec, std::span(&input, 1), {context}).ranks[0];
}

/// EncodeWithFeedback of one rank, all rounds; *payload holds them all.
inline EncodeResult FeedbackOrDie(const Codec& codec, std::span<const float> gradient,
                                  std::span<const float> residual, std::span<float> residual_out,
                                  EncodeContext context, std::vector<std::byte>* payload) {
  payload->resize(codec.MaxEncodedBytes(gradient.size(), context));
  EncodeResult result;
  size_t at = 0;
  for (context.round = 0; context.round < codec.Traits().rounds; ++context.round) {
    context.previous = std::span(*payload).first(at);
    const auto encoded = codec.EncodeWithFeedback(gradient, residual, residual_out, context,
                                                  std::span(*payload).subspan(at));
    if (!encoded.ok()) std::fprintf(stderr, "%s\n", ToString(encoded.status()).c_str());
    WEIR_CHECK(encoded.ok());
    result = *encoded;
    at += result.bytes;
    if (result.non_finite) break;
  }
  payload->resize(at);
  return result;
}

/// Decodes a payload of `codec`. A selection without values decodes to x at the selected positions.
inline StatusOr<std::vector<float>> DecodeFor(const Codec& codec,
                                              std::span<const std::byte> payload,
                                              const EncodeContext& context,
                                              std::span<const float> x) {
  std::vector<float> decoded(x.size(), 0.0f);
  if (HoldsIndicesOnly(codec.Traits().form)) {
    std::vector<uint32_t> indices;
    WEIR_RETURN_IF_ERROR(codec.DecodeIndices(payload, x.size(), &indices));
    for (const uint32_t i : indices) decoded[i] = x[i];
  } else {
    WEIR_RETURN_IF_ERROR(codec.DecodeAdd(payload, context, 1.0f, decoded));
  }
  return decoded;
}

/// Encodes and decodes x; dies on any error.
inline std::vector<float> RoundTrip(const Codec& codec, std::span<const float> x,
                                    const EncodeContext& context) {
  const Encoded encoded = EncodeOrDie(codec, x, context);
  return DecodeFor(codec, encoded.payload, context, x).value();
}

}  // namespace weir::test
