// SPDX-License-Identifier: Apache-2.0
#pragma once
// The codecs and collectives of simulated ranks.

#include "weir/v1/rank.pb.h"

namespace weir {

inline v1::Capabilities FakeCapabilities() {
  v1::Capabilities out;
  auto* identity = out.add_codecs();
  identity->set_name("identity");
  identity->set_form("lanes");
  identity->add_forms("lanes");
  identity->set_sums_without_decoding(true);
  identity->add_settings()->set_fixed_bits(32);
  identity->set_ratio_min(1);
  identity->set_ratio_max(1);
  identity->set_error_model("exact");
  identity->set_rounds(1);
  auto* top_k = out.add_codecs();
  top_k->set_name("top_k");
  top_k->set_form("opaque");
  top_k->add_forms("opaque");
  top_k->set_lossy(true);
  top_k->set_needs_error_feedback(true);
  top_k->add_settings()->set_kept_bits(16);
  top_k->set_indices_coded(true);
  top_k->set_uses_ratio(true);
  top_k->set_ratio_min(1e-4);
  top_k->set_ratio_max(1);
  top_k->set_error_model("selection");
  top_k->set_rounds(1);
  auto* ring = out.add_collectives();
  ring->set_name("ring");
  ring->set_form("lanes");
  ring->mutable_latency()->set_n_minus_1(2);
  ring->mutable_payload()->set_n_minus_1_over_n(2);
  ring->mutable_reduce()->set_n_minus_1_over_n(1);
  ring->set_world_min(1);
  ring->set_uses_ring_order(true);
  auto* gather = out.add_collectives();
  gather->set_name("sparse_all_gather");
  gather->set_form("opaque");
  gather->mutable_exchange()->set_gathers(true);
  gather->mutable_latency()->set_n_minus_1(1);
  gather->mutable_payload()->set_n_minus_1(1);
  gather->set_world_min(1);
  return out;
}

/// A codec that halves payloads and is declared to lose next to nothing.
inline void AddHalf(v1::Capabilities* capabilities) {
  auto* half = capabilities->add_codecs();
  *half = capabilities->codecs(0);
  half->set_name("fp16");
  half->clear_forms();
  half->add_forms("lanes");
  half->mutable_settings(0)->set_fixed_bits(16);
  half->mutable_settings(0)->set_relative_error_squared(3.67e-8);
  half->set_lossy(true);
  half->set_error_model("relative");
}

/// Adds collectives that sum on an aggregator.
inline void AddSwitch(v1::Capabilities* capabilities) {
  auto* through = capabilities->add_collectives();
  through->set_name("switchml");
  through->set_form("lanes");
  through->mutable_latency()->set_constant(2);
  through->mutable_latency()->set_log2_n(2);
  through->mutable_payload()->set_constant(1);
  through->set_world_min(2);
  through->set_world_max(64);
  const v1::CollectiveCapability sums = *through;
  auto* sparse = capabilities->add_collectives();
  *sparse = sums;
  sparse->set_name("omnireduce");
  sparse->mutable_payload()->set_constant(1.02);
}

}  // namespace weir
