// SPDX-License-Identifier: Apache-2.0
// Every registered codec under a C interface, so that Python checks it against NumPy and trains
// with it (tests/support/codec_shim.py). Errors: a negative number, text in weir_codec_error. Not
// thread-safe.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "datapath/base/check.h"
#include "datapath/codec/codec_names.h"
#include "tests/support/codec_world.h"

using weir::Codec;
using weir::Codecs;
using weir::CodecSetting;
using weir::CodecTraits;
using weir::EncodeContext;
using weir::Status;
using weir::StrCat;

namespace {

std::string last_error;
std::string last_text;

int64_t Fail(const Status& status) {
  last_error = weir::ToString(status);
  return -1;
}

const char* Text(std::string text) {
  last_text = std::move(text);
  return last_text.c_str();
}

/// Visits fields into the inside of a JSON object.
struct FieldsToJson {
  std::string& text;
  void operator()(const char* name, std::string_view value) const {
    WEIR_CHECK(value.find_first_of("\"\\") == value.npos);
    Add(name, StrCat("\"", value, "\""));
  }
  void operator()(const char* name, bool value) const { Add(name, value ? "true" : "false"); }
  void operator()(const char* name, int value) const { Add(name, StrCat(value)); }
  void operator()(const char* name, double value) const { Add(name, StrCat(value)); }
  void operator()(const char* name, const std::vector<uint8_t>& values) const {
    std::string list;
    for (const uint8_t value : values) list += StrCat(list.empty() ? "" : ",", int{value});
    Add(name, StrCat("[", list, "]"));
  }

 private:
  void Add(const char* name, const std::string& value) const {
    text += StrCat(text.empty() ? "" : ",", "\"", name, "\":", value);
  }
};

std::string TraitsJson(const CodecTraits& t) {
  std::string settings, fields;
  for (const CodecSetting& each : t.settings) {
    std::string setting;
    weir::VisitFields(each, FieldsToJson{setting});
    settings += StrCat(settings.empty() ? "{" : ",{", setting, "}");
  }
  weir::VisitFields(t, FieldsToJson{fields});
  return StrCat("{", fields, ",\"settings\":[", settings, "]}");
}

/// The parameters of both kinds of handle; layout as in codec_shim.py.
struct Arguments {
  const char* name;
  double ratio;
  int32_t bits, world, rank;
  uint64_t seed, elements;
  const uint64_t* shape;  // rows and columns in turn
  uint64_t tensors;
};

std::vector<weir::TensorShape> ShapeOf(const Arguments& arguments) {
  std::vector<weir::TensorShape> shape;
  for (uint64_t i = 0; i < arguments.tensors; ++i) {
    shape.push_back({arguments.shape[2 * i], arguments.shape[2 * i + 1]});
  }
  return shape;
}

/// One rank's codec: the steps of an encode one by one.
struct Single {
  const Codec* codec;
  size_t elements;
  std::vector<weir::TensorShape> shape;
  EncodeContext context;
  std::unique_ptr<weir::CodecState> state;
  std::vector<std::byte> payload;  // of the last encode
};

using weir::testing::CodecWorld;

struct StepOut {
  double encode_s, decode_s, energy_in, energy_lost;
  uint64_t payload_bytes;
  int32_t non_finite;
};

}  // namespace

#define WEIR_SHIM extern "C" __attribute__((visibility("default")))

WEIR_SHIM const char* weir_codec_error() { return last_error.c_str(); }

/// A JSON array of the traits of all codecs.
WEIR_SHIM const char* weir_codec_all() {
  std::string all;
  for (const Codec* codec : Codecs().All()) {
    all += StrCat(all.empty() ? "" : ",", TraitsJson(codec->Traits()));
  }
  return Text(StrCat("[", all, "]"));
}

WEIR_SHIM void* weir_codec_open(const Arguments* arguments) {
  const auto codec = Codecs().Find(arguments->name);
  if (!codec.ok()) return Fail(codec.status()), nullptr;
  auto single = std::make_unique<Single>();
  single->codec = *codec;
  single->elements = arguments->elements;
  single->shape = ShapeOf(*arguments);
  EncodeContext& context = single->context;
  context.params = {.ratio = arguments->ratio, .bits = arguments->bits};
  context.world = arguments->world;
  context.rank = arguments->rank;
  context.seed = arguments->seed;
  context.shape = single->shape;
  const Status valid = single->codec->Validate(context.params, context.world);
  if (!valid.ok()) return Fail(valid), nullptr;
  return single.release();
}

WEIR_SHIM void weir_codec_close(void* handle) { delete static_cast<Single*>(handle); }

/// Makes all later steps stateful.
WEIR_SHIM void weir_codec_keep_state(void* handle) {
  auto* self = static_cast<Single*>(handle);
  self->state = self->codec->NewState(self->elements, self->context);
  self->context.state = self->state.get();
}

/// Encodes all rounds, alone in its world; with residual (or null) as error feedback, in place.
/// Returns the payload's size, -1 on errors, -2 for input that is not finite. shared_max below 0:
/// this rank's own. energies: in, lost.
WEIR_SHIM int64_t weir_codec_encode(void* handle, uint64_t seed, float shared_max,
                                    const float* gradient, float* residual, double* energies) {
  auto* self = static_cast<Single*>(handle);
  const std::span<const float> g(gradient, self->elements);
  const std::span<float> r(residual, residual == nullptr ? 0 : self->elements);
  EncodeContext& context = self->context;
  context.seed = seed;
  context.previous = {};
  context.shared_max =
      shared_max >= 0 ? weir::SharedMax(shared_max) : self->codec->LocalMax(g, r, context);
  self->payload.resize(self->codec->MaxEncodedBytes(self->elements, context));
  size_t at = 0;
  for (context.round = 0; context.round < self->codec->Traits().rounds; ++context.round) {
    const std::span<std::byte> all(self->payload);
    context.previous = all.first(at);
    const auto result = r.empty()
                            ? self->codec->Encode(g, context, all.subspan(at))
                            : self->codec->EncodeWithFeedback(g, r, r, context, all.subspan(at));
    if (!result.ok()) return Fail(result.status());
    if (result->non_finite) return -2;
    at += result->bytes;
    energies[0] = result->energy_in;
    energies[1] = result->energy_lost;
  }
  context.round = 0;
  context.previous = {};
  self->payload.resize(at);
  return static_cast<int64_t>(at);
}

/// out += scale * decode(last payload).
WEIR_SHIM int64_t weir_codec_decode_add(void* handle, float scale, float* out) {
  auto* self = static_cast<Single*>(handle);
  const Status status =
      self->codec->DecodeAdd(self->payload, self->context, scale, {out, self->elements});
  return status.ok() ? 0 : Fail(status);
}

/// The selected positions of the last payload; returns their number. `out` holds `room`.
WEIR_SHIM int64_t weir_codec_indices(void* handle, uint32_t* out, uint64_t room) {
  auto* self = static_cast<Single*>(handle);
  std::vector<uint32_t> indices;
  const Status status = self->codec->DecodeIndices(self->payload, self->elements, &indices);
  if (!status.ok()) return Fail(status);
  std::copy_n(indices.begin(), std::min<size_t>(indices.size(), room), out);
  return static_cast<int64_t>(indices.size());
}

WEIR_SHIM int64_t weir_codec_payload(void* handle, void* out, uint64_t room) {
  auto* self = static_cast<Single*>(handle);
  if (room > 0)
    std::memcpy(out, self->payload.data(), std::min<size_t>(self->payload.size(), room));
  return static_cast<int64_t>(self->payload.size());
}

// --- A world of ranks: CodecWorld ----------------------------------------------------------------

WEIR_SHIM void* weir_world_open(const Arguments* arguments) {
  const auto codec = Codecs().Find(arguments->name);
  if (!codec.ok()) return Fail(codec.status()), nullptr;
  CodecWorld::Options options;
  options.codec = *codec;
  options.params = {.ratio = arguments->ratio, .bits = arguments->bits};
  options.world = arguments->world;
  options.elements = arguments->elements;
  options.shape = ShapeOf(*arguments);
  options.seed = arguments->seed;
  auto world = CodecWorld::Make(std::move(options));
  if (!world.ok()) return Fail(world.status()), nullptr;
  return std::move(world).value().release();
}

WEIR_SHIM void weir_world_close(void* handle) { delete static_cast<CodecWorld*>(handle); }

/// gradients: one pointer per rank. mean: their decoded mean.
WEIR_SHIM int64_t weir_world_step(void* handle, const float* const* gradients, uint64_t world,
                                  uint64_t elements, float* mean, StepOut* out) {
  std::vector<std::span<const float>> spans;
  for (uint64_t rank = 0; rank < world; ++rank) spans.push_back({gradients[rank], elements});
  const auto step = static_cast<CodecWorld*>(handle)->Exchange(spans, {mean, elements});
  if (!step.ok()) return Fail(step.status());
  *out = {step->encode_s,    step->decode_s,      step->energy_in,
          step->energy_lost, step->payload_bytes, step->non_finite};
  return 0;
}
