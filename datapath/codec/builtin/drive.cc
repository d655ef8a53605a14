// DRIVE: the signs of the rotated bucket, one bit an element, and for each rotation of 1024
// elements x the scale ||x||_2^2 / ||R x||_1 that makes the estimate unbiased. Every rank has
// a rotation of its own, from the shared seed and its number. Payload: for each rotation a float32
// scale and the sign bits (set: negative), least significant bit first; see rotated_codebook.h for
// bounds and deviations.
// Source: Vargaftik et al., "DRIVE: one-bit distributed mean estimation", NeurIPS 2021.

#include <numbers>

#include "datapath/codec/rotated_codebook.h"

namespace weir {
namespace {

std::unique_ptr<Codec> MakeDrive() {
  return std::make_unique<RotatedCodebookCodec>(
      CodecTraits{
          .name = "drive",
          .summary = "signs of the rotated bucket, unbiased scale (Vargaftik et al. 2021)",
          .unbiased = true,
          .form = PayloadForm::kOpaque,
          .settings = {{.fixed_bits = RotatedCodebookBits(1),
                        .relative_error_squared = std::numbers::pi / 2 - 1}},
          .error_model = ErrorModel::kRelative,
          .rotated = true,
      },
      std::vector<kernels::Codebook>{{.bits = 1, .centroids = {1.0f}}});
}

}  // namespace

void RegisterDrive(Registry<Codec>& registry, uint8_t id) { registry.Add(id, MakeDrive()); }

}  // namespace weir
