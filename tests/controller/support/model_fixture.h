// SPDX-License-Identifier: Apache-2.0
#pragma once
// Codecs, collectives and snapshots as a real job would advertise them, for tests of the
// controller's pure parts. The numbers are those of the traits in datapath/.

#include <ctime>
#include <string>
#include <vector>

#include "controller/model/cost_model.h"
#include "controller/model/snapshot.h"

namespace weir::test {

/// CPU time of the process: neighbours on the machine do not count.
inline double CpuMilliseconds() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Sets the traits of codecs whose payloads have this form.
inline void SetForm(std::string form, CodecModel* codec) {
  codec->sums_without_decoding = form == "lanes";
  codec->indices_apart = form == "shared_index" || form == "union_index";
  codec->forms = {form};
  if (codec->sums_without_decoding && !codec->lossy && codec->fixed_bits == 32) {
    codec->forms.insert(codec->forms.end(), {"float_lanes", "caller_sums"});
  }
  if (form == "opaque")
    codec->forms.insert(codec->forms.end(), {"regions", "node_sums", "node_shards"});
  codec->form = std::move(form);
}

inline CodecModel Lanes(std::string name, double bits, bool lossy) {
  CodecModel codec;
  codec.name = std::move(name);
  codec.lossy = lossy;
  codec.fixed_bits = bits;
  SetForm("lanes", &codec);
  codec.error_model = lossy ? "relative" : "exact";
  return codec;
}

inline CodecModel Selecting(std::string name, std::string form, double kept_bits, bool coded) {
  CodecModel codec;
  codec.name = std::move(name);
  SetForm(std::move(form), &codec);
  codec.lossy = codec.needs_error_feedback = codec.uses_ratio = true;
  codec.kept_bits = kept_bits;
  codec.indices_coded = coded;
  codec.ratio_min = 1e-6;
  codec.ratio_max = 1;
  codec.error_model = "selection";
  return codec;
}

inline std::vector<CodecModel> Codecs() {
  CodecModel fp16 = Lanes("fp16", 16, true);
  fp16.relative_error_squared = 3.67e-8;
  CodecModel qsgd = Lanes("qsgd", 8, true);
  qsgd.error_model = "max_scaled";
  qsgd.levels = 127;
  qsgd.levels_divided_by_world = qsgd.shared_metadata = true;
  qsgd.error_divisor = 6;
  CodecModel random_k = Selecting("random_k", "lanes", 32, false);
  random_k.error_model = "uniform_selection";
  std::vector<CodecModel> codecs = {Lanes("identity", 32, false),
                                    fp16,
                                    Selecting("top_k", "opaque", 16, true),
                                    Selecting("shared_top_k", "shared_index", 32, true),
                                    random_k,
                                    qsgd};
  for (CodecModel& codec : codecs) ApplyPriorTimes(&codec);
  return codecs;
}

/// Sets the traits of collectives of this exchange form.
inline void SetForm(std::string form, CollectiveModel* collective) {
  collective->exchange.gathers = form == "opaque";
  collective->exchange.encodes_regions = form == "regions";
  collective->exchange.encodes_nodes = form == "node_sums" || form == "node_shards";
  collective->exchange.shares_nodes = form == "node_shards";
  collective->exchange.needs_table = form == "table_lanes";
  collective->exchange.gain_prior = form == "shared_index" ? 0.7 : form == "union_index" ? 0.85 : 1;
  collective->form = std::move(form);
}

inline CollectiveModel Collective(std::string name, std::string form) {
  CollectiveModel collective;
  collective.name = std::move(name);
  SetForm(std::move(form), &collective);
  collective.relative_deviation = 0.1;
  return collective;
}

inline std::vector<CollectiveModel> Collectives() {
  CollectiveModel ring = Collective("ring", "lanes");
  ring.latency.n_minus_1 = 2;
  ring.payload.n_minus_1_over_n = 2;
  ring.reduce.n_minus_1_over_n = 1;
  CollectiveModel tree = Collective("tree", "lanes");
  tree.latency.log2_n = 2;
  tree.payload.constant = 2;
  tree.reduce.constant = 1;
  CollectiveModel gather = Collective("sparse_all_gather", "opaque");
  gather.latency.constant = 1;
  gather.payload.n_minus_1 = 1;
  CollectiveModel star = Collective("ar_topk_star", "shared_index");
  star.latency.n_minus_1 = 2;
  star.latency.log2_n = 1;
  star.payload.n_minus_1_over_n = 2;
  star.index.log2_n = 1;
  star.reduce.n_minus_1_over_n = 1;
  star.gain_scale = 0.7;
  return {ring, tree, gather, star};
}

/// The sums that callers make over a process group of their own.
inline CollectiveModel ByCaller() {
  CollectiveModel collective = Collective("framework", "caller_sums");
  collective.latency.log2_n = 2;
  collective.payload.n_minus_1_over_n = 2;
  collective.by_caller = true;
  return collective;
}

/// Sums within nodes, then across them; no overhead.
inline CollectiveModel ByNode() {
  CollectiveModel collective = Collective("hierarchical", "lanes");
  collective.latency.log2_n = 2;
  collective.payload.n_minus_1_over_n = 2;
  collective.reduce.n_minus_1_over_n = 1;
  collective.by_node = true;
  collective.within_even = {collective.latency, collective.payload, collective.reduce};
  WithinNodeModel& uneven = collective.within_uneven;
  uneven.latency.constant = 2;
  uneven.latency.log2_n = uneven.payload.n_minus_1 = uneven.reduce.n_minus_1 = 1;
  uneven.payload.n_minus_1_over_n = 2;
  return collective;
}

/// Sums nodes and encodes the sums: by first ranks ("node_sums") or all ranks ("node_shards").
inline CollectiveModel NodeSums(std::string form) {
  CollectiveModel collective = Collective(form, form);
  collective.latency.constant = collective.payload.n_minus_1 = 1;
  collective.by_node = true;
  WithinNodeModel& uneven = collective.within_uneven;
  uneven.latency.constant = uneven.payload.n_minus_1_over_n = 2;
  uneven.latency.log2_n = uneven.payload.n_minus_1 = uneven.reduce.n_minus_1 = 1;
  collective.within_even = uneven;
  if (form == "node_shards") {
    collective.within_even = {};
    collective.within_even.latency.constant = collective.within_even.payload.n_minus_1_over_n = 2;
    collective.within_even.reduce.n_minus_1_over_n = 1;
  }
  return collective;
}

/// Energy kept of exponential magnitudes, at the ratios that ranks report.
inline void FillCurve(BucketModel* bucket) {
  bucket->gain_ratios = {1.0,  0.5,  0.3,   0.2,   0.1,   0.05,  0.03,
                         0.02, 0.01, 0.005, 0.003, 0.001, 0.0003};
  bucket->gains.clear();
  for (const double ratio : bucket->gain_ratios) {
    BucketModel empty;
    bucket->gains.push_back(PredictGain(Selecting("x", "opaque", 16, true),
                                        Collective("y", "opaque"), empty, ratio, 4));
  }
}

/// `buckets` equal buckets of 10 MB in all (float32), ready evenly over 40 ms, 100 ms of compute.
inline Snapshot MakeSnapshot(int world, double latency_s, double bandwidth, int buckets = 1) {
  Snapshot snapshot;
  snapshot.job = "test";
  snapshot.world = world;
  snapshot.step = 100;
  snapshot.trigger = "periodic";
  snapshot.codecs = Codecs();
  snapshot.collectives = Collectives();
  snapshot.compute_s = {0.1, 0.002, 0};
  snapshot.backward_s = {buckets > 1 ? 0.04 : 0, 0.001, 0};
  snapshot.latency_s = {latency_s, 0.05 * latency_s, 0};
  snapshot.bandwidth_bytes_per_s = {bandwidth, 0.05 * bandwidth, 0};
  for (int b = 0; b < buckets; ++b) {
    BucketModel bucket;
    bucket.key = "bucket" + std::to_string(b);
    bucket.elements = 2500000 / buckets;
    bucket.order = b;
    bucket.ready_s = buckets > 1 ? 0.04 * b / (buckets - 1) : 0;
    FillCurve(&bucket);
    snapshot.buckets.push_back(bucket);
  }
  return snapshot;
}

}  // namespace weir::test
