// SPDX-License-Identifier: Apache-2.0
// Tensor homomorphic compression with non-uniform levels. It is like thc_uniform, but a coordinate
// takes one of at most 16 levels, which are chosen among the points of a finer grid so that
// rounding errors are smallest where normal coordinates are dense. Lanes hold the grid number of
// the level, from -g/2 to g/2. A switch or server makes the same of the paper's four-bit index by
// its table, so the sum decodes like that of a uniform grid.
// Payload: RotatedElements(n) lanes of 8 or 16 bits.
// Source: Li et al., "THC", NSDI 2024, section 5.3; deviates: lanes are sent as grid numbers,
// because an all-reduce adds on the way (where nothing but ranks reads the octets, thc_uniform
// loses less; this codec is for aggregators that hold a table); granularity and range depend on the
// world size, are always even, and were found by search (the paper: 30 and a tail of 1/32).

#include <array>

#include "datapath/codec/rotated_lanes.h"
#include "datapath/codec/thc_table.h"

namespace weir {
namespace {

constexpr int kIndexBits = 4;

/// Lanes hold world_max * granularity / 2. Ranges are the normal quantiles of the tails 1/64
/// (2.4177), 1/32, 1/16 and 1/8.
struct Shape {
  int lane_bits;
  int granularity;
  float range;
  int world_min, world_max;
};
constexpr std::array kShapes = {
    Shape{8, 58, 2.4177f, 1, 4},   Shape{8, 38, 2.4177f, 5, 6},   Shape{8, 36, 2.4177f, 7, 7},
    Shape{8, 18, 2.4177f, 8, 14},  Shape{8, 16, 2.4177f, 15, 15}, Shape{8, 14, 2.1539f, 16, 18},
    Shape{8, 12, 2.1539f, 19, 21}, Shape{8, 10, 2.1539f, 22, 25}, Shape{8, 8, 1.8627f, 26, 31},
    Shape{8, 6, 1.8627f, 32, 42},  Shape{8, 4, 1.5341f, 43, 63},  Shape{16, 58, 2.4177f, 1, 1129},
};

/// For each cell of the grid, the level at or below it and the distance to the next one, in the
/// layout of the kernels.
std::vector<int32_t> Cells(const std::vector<int>& levels) {
  std::vector<int32_t> cells;
  for (size_t i = 1; i < levels.size(); ++i) {
    const int width = levels[i] - levels[i - 1];
    for (int cell = 0; cell < width; ++cell) cells.push_back(levels[i - 1] | width << 16);
  }
  return cells;
}

std::unique_ptr<Codec> MakeThc() {
  CodecTraits traits = {
      .name = "thc",
      .summary = "rotated, shared norm, 16 levels of a finer summable grid (Li et al. 2024)",
      .needs_error_feedback = true,
      .form = PayloadForm::kLanes,
      .shared_metadata = SharedMetadata::kMax,
      .shared_block = static_cast<int>(kernels::kRotationElements),
      .settings = {},
      .error_model = ErrorModel::kRelative,
      .rotated = true,
  };
  std::vector<RotatedLevels> levels;
  for (const Shape& shape : kShapes) {
    const ThcTableSpec spec{
        .bits = kIndexBits, .granularity = shape.granularity, .range = shape.range};
    const std::vector<int> table = OptimalThcTable(spec);
    traits.settings.push_back(
        {.bits = shape.lane_bits,
         .fixed_bits = static_cast<double>(shape.lane_bits),
         .relative_error_squared = ThcRoundingError(spec, table) + ThcClippingError(shape.range),
         .world_min = shape.world_min,
         .world_max = shape.world_max,
         .lane_levels = {table.begin(), table.end()}});
    levels.push_back(
        {.range = shape.range, .centre = shape.granularity / 2, .cells = Cells(table)});
  }
  return std::make_unique<RotatedLaneCodec>(std::move(traits), std::move(levels));
}

}  // namespace

void RegisterThc(Registry<Codec>& registry, uint8_t id) { registry.Add(id, MakeThc()); }

}  // namespace weir
