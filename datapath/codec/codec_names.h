// SPDX-License-Identifier: Apache-2.0
#pragma once
// The names of traits outside of C++: for the controller, in messages, and in tables.

#include <string_view>

#include "datapath/codec/codec.h"

namespace weir {

/// "lanes", "opaque", "shared_index" or "union_index". Static text. Thread-safe.
std::string_view NameOf(PayloadForm form);
/// "exact", "selection", "uniform_selection", "relative", "max_scaled" or "unknown". Static text.
/// Thread-safe.
std::string_view NameOf(ErrorModel model);

/// Calls visit(name, value) for every field of a setting, in order. Values are int, double or
/// std::vector<uint8_t>.
template <typename Visit>
void VisitFields(const CodecSetting& setting, Visit&& visit) {
  const auto& [bits, fixed_bits, kept_bits, relative_error_squared, levels, world_min, world_max,
               lane_levels] = setting;
  visit("bits", bits);
  visit("fixed_bits", fixed_bits);
  visit("kept_bits", kept_bits);
  visit("relative_error_squared", relative_error_squared);
  visit("levels", levels);
  visit("world_min", world_min);
  visit("world_max", world_max);
  visit("lane_levels", lane_levels);
}

/// Calls visit(name, value) for every trait except the settings, in order. Messages and tools use
/// this one list; its names are those of CodecCapability in proto/weir/v1/rank.proto. Values are
/// std::string, std::string_view, bool, int or double. The structured binding fails to compile when
/// a trait was added but is not listed.
template <typename Visit>
void VisitFields(const CodecTraits& traits, Visit&& visit) {
  const auto& [name, summary, lossy, unbiased, needs_error_feedback, needs_momentum, ef21, opt_in,
               form, shared_metadata, shared_block, lanes_are_votes, sum_error_squared, rounds,
               settings, indices_coded, size_in_steps, uses_ratio, ratio_min, ratio_max,
               count_tolerance, kept_block, error_model, levels_divided_by_world, peak_over_rms,
               error_divisor, contraction, rotated] = traits;
  static_cast<void>(settings);
  visit("name", name);
  visit("summary", summary);
  visit("lossy", lossy);
  visit("unbiased", unbiased);
  visit("needs_error_feedback", needs_error_feedback);
  visit("needs_momentum", needs_momentum);
  visit("ef21", ef21);
  visit("opt_in", opt_in);
  visit("form", NameOf(form));
  visit("shared_metadata", shared_metadata != SharedMetadata::kNone);
  visit("shared_block", shared_block);
  visit("lanes_are_votes", lanes_are_votes);
  visit("sum_error_squared", sum_error_squared);
  visit("rounds", rounds);
  visit("indices_coded", indices_coded);
  visit("size_in_steps", size_in_steps);
  visit("uses_ratio", uses_ratio);
  visit("ratio_min", ratio_min);
  visit("ratio_max", ratio_max);
  visit("count_tolerance", count_tolerance);
  visit("kept_block", kept_block);
  visit("error_model", NameOf(error_model));
  visit("levels_divided_by_world", levels_divided_by_world);
  visit("peak_over_rms", peak_over_rms);
  visit("error_divisor", error_divisor);
  visit("contraction", contraction);
  visit("rotated", rotated);
}

}  // namespace weir
