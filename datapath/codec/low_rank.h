// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of PowerSGD that all ranks must compute alike, wherever they multiply their matrices:
// the ranks of the factors, the start of the iteration and the orthonormalisation.
// builtin/power_sgd.cc describes them.

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/codec/matrices.h"
#include "datapath/codec/state_bytes.h"

namespace weir {

/// A part of a bucket and its rank, which is 0 if the part is sent as it is.
struct Factor {
  MatrixPart part;
  size_t rank = 0;

  size_t first_floats() const { return part.rows * rank; }
  size_t last_floats() const { return rank > 0 ? part.columns * rank : part.elements(); }
};

struct FactorLayout {
  std::vector<Factor> factors;
  size_t first_floats = 0, last_floats = 0;
  size_t bytes() const { return (first_floats + last_floats) * sizeof(float); }
};

/// The factors of a bucket. kInvalidArgument as SplitIntoMatrices. O(tensors).
StatusOr<FactorLayout> MakeFactorLayout(const CodecTraits& traits, size_t n,
                                        const EncodeContext& context);

class PowerSgdState : public CodecState {
 public:
  std::vector<std::vector<float>> q;  // for each factor: rank rows of `columns`; initially empty

  std::vector<std::byte> Save() const override;
  Status Load(std::span<const std::byte> bytes) override;
};

/// Q at the start of a step for factor `index` of the layout: the state's or, without a state or
/// when it was made for other parameters, drawn from the seed uniformly in [-1, 1).
std::vector<float> StartOf(const Factor& factor, size_t index, const EncodeContext& context);

/// Applies modified Gram-Schmidt to the columns of `rows` x `rank` floats, in double and a fixed
/// order, so that all ranks get the same bits. O(rows * rank^2).
void Orthonormalise(size_t rank, std::vector<float>& p);

/// Scales the rows to unit length, because only the direction of Q matters to the next step.
void NormaliseRows(size_t rank, std::vector<float>& q);

}  // namespace weir
