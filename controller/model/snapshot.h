// SPDX-License-Identifier: Apache-2.0
#pragma once
// The complete input of one decision, as plain data. What is not in here cannot influence the
// solver, so a stored snapshot replays to the identical decision.

#include <cstdint>
#include <string>
#include <vector>

#include "controller/model/sync_model.h"

namespace weir {

/// A number with its uncertainty.
struct Measured {
  double value = 0;
  double deviation = 0;  // one standard deviation
  double age_s = 0;
  friend bool operator==(const Measured&, const Measured&) = default;
};

/// One setting of one codec that the job's world size allows; see CodecTraits and CodecSetting in
/// datapath/codec/codec.h. No two have equal name and bits.
struct CodecModel {
  std::string name;
  int bits = 0;                         // value width that a choice names
  std::string form;                     // what its payloads are: for explanations
  std::vector<std::string> forms = {};  // the exchange forms that can carry them
  bool sums_without_decoding = false;   // payloads of all ranks add as they are
  bool indices_apart = false;           // payloads are positions; their values travel beside them
  bool lossy = false, unbiased = false, needs_error_feedback = false, shared_metadata = false;
  bool opt_in = false;  // a candidate only where the policy names it
  int rounds = 1;
  double fixed_bits = 0, kept_bits = 0;
  bool indices_coded = false, uses_ratio = false;
  double ratio_min = 1, ratio_max = 1;
  std::string error_model;
  double relative_error_squared = 0, levels = 0;
  bool levels_divided_by_world = false;
  double peak_over_rms = 0;  // of what is quantised; 0: the bucket's own
  double error_divisor = 12;
  bool tabled = false;      // its lanes are levels of the table that a lease would have
  double shared_block = 0;  // the exchange before encoding has a float for so many elements; 0: one
  double sum_error_squared = 0;  // of adding two payloads, over the square of their sum
  // "uniform_selection": what is lost at kUniformLossRatio over what a random choice would lose;
  // below 1 where ranks measured structure in the gradients.
  double uniform_loss = 1;
  // Calibrated time of encode and of one decode: base + per_element * n + per_kept * kept. On the
  // host, and with the copies of gradients that are on devices.
  struct Time {
    double base_s = 0, per_element_s = 0, per_kept_s = 0;
    double deviation_s_per_element = 0;
    friend bool operator==(const Time&, const Time&) = default;
  } encode, decode;
  bool on_device = false;  // ranks run it on their device, where the exchange form allows it
  Time device_encode, device_decode;
  double payload_scale = 1;  // measured over predicted payload bytes
  friend bool operator==(const CodecModel&, const CodecModel&) = default;
};

/// a + b*(N-1) + c*(N-1)/N + d*ceil(log2 N) + e*N.
struct WorldFunctionModel {
  double constant = 0, n_minus_1 = 0, n_minus_1_over_n = 0, log2_n = 0, n = 0;
  /// Never negative; log2 is rounded up; world >= 1.
  double At(int world) const;
  friend bool operator==(const WorldFunctionModel&, const WorldFunctionModel&) = default;
};

/// Steps within nodes, as functions of the ranks of the fullest node.
struct WithinNodeModel {
  WorldFunctionModel latency, payload, reduce;
  friend bool operator==(const WithinNodeModel&, const WithinNodeModel&) = default;
};

/// The cost of an exchange form beside its collective; see ExchangeTraits in
/// datapath/exchange/exchange.h.
struct ExchangeModel {
  bool gathers = false;          // every rank decodes the payload of every rank
  bool encodes_regions = false;  // each rank encodes the sum of one of N regions again
  bool encodes_nodes = false;    // ranks of a node add their elements, and encode the sum alone
  bool shares_nodes = false;     // of encodes_nodes: by all ranks where nodes hold as many
  bool needs_table = false;
  bool on_devices = false;  // it can encode in the memory of devices
  double gain_prior = 1;    // part of the predicted gain that is left where ranks share positions
  friend bool operator==(const ExchangeModel&, const ExchangeModel&) = default;
};

struct CollectiveModel {
  std::string name;
  std::string form;  // name of the exchange form that it serves
  ExchangeModel exchange;
  WorldFunctionModel latency, payload, index, reduce;
  int world_min = 1, world_max = 0;
  bool uses_ring_order = false;  // payloads go only from each rank to the next in the ring's order
  // Cuts payloads into shards by a layout's shares, in segments of so many bytes; 0: evenly.
  uint32_t shard_segment_bytes = 0;
  bool all_pairs = false;  // each rank exchanges alike with every other at once
  // Otherwise: how the ranks exchange payloads and index payloads, see node_share.h; empty: in a
  // way that does not matter, or that is not known.
  std::string payload_pattern, index_pattern;
  // Works within nodes first and last; the four functions are then of the number of nodes.
  bool by_node = false;
  WithinNodeModel within_even, within_uneven;  // all nodes hold equally many ranks, or not
  // Blocks of so many elements in which all are zero are left out; 0: none are. The shares of the
  // payload term that go with BlockDensityModel::own and with its union.
  uint32_t block_elements = 0;
  double own_block_share = 0, union_block_share = 0;
  // Calibrated multipliers of the three terms; 1 until measured.
  double alpha_scale = 1, beta_scale = 1, gamma_scale = 1;
  double overhead_s = 0;            // fixed software cost per run
  double relative_deviation = 0.3;  // of the predicted time
  double gain_scale = 1;            // measured over predicted gain: one rank's indices serve all
  // Collectives on an aggregator's slots run only while the job has, or could have, a lease of
  // them.
  bool needs_lease = false, lease_available = false;
  std::string lease_why_not;             // "switchml: no aggregator has 64 free slots (a has 12)"
  double bandwidth_max_bytes_per_s = 0;  // of one rank's payload there; 0: no such cap
  bool by_caller = false;                // the training job sums, over a process group of its own
  friend bool operator==(const CollectiveModel&, const CollectiveModel&) = default;
};

/// Shares of a bucket's blocks that hold anything but zeros.
struct BlockDensityModel {
  uint32_t block_elements = 0;
  double own = 1;        // of one rank: the densest
  Measured union_of{1};  // of all ranks together, measured or expected
  friend bool operator==(const BlockDensityModel&, const BlockDensityModel&) = default;
};

/// The gain that a choice was measured to have, beside what was predicted for it then.
struct MeasuredGain {
  std::string codec, collective;
  int bits = 0;  // of the codec's setting
  double ratio = 1, gain = 1, predicted = 1;
  friend bool operator==(const MeasuredGain&, const MeasuredGain&) = default;
};

struct BucketModel {
  std::string key;
  uint64_t elements = 0;
  int order = 0;
  double ready_s = 0;               // since the first bucket of the step was ready
  std::vector<double> gain_ratios;  // descending; with `gains`, the measured curve
  std::vector<double> gains;
  double peak_over_rms = 10;
  double residual_ratio = 0;                       // norm of residual / norm of gradient
  std::vector<BlockDensityModel> block_densities;  // ascending block_elements; empty: dense
  std::vector<MeasuredGain> measured_gains;        // see measured_gain.h
  int element_bytes = 4;                           // of the job's own format, in which callers sum
  bool sharded = false;  // each rank needs a part of the sum only, so callers reduce-scatter
  friend bool operator==(const BucketModel&, const BucketModel&) = default;
};

struct ChoiceModel {
  std::string codec = "identity";
  std::string collective = "ring";
  double ratio = 1;
  int bits = 0;  // 0: the codec's default
  uint32_t segment_bytes = 0;
  friend bool operator==(const ChoiceModel&, const ChoiceModel&) = default;
};

/// The codec of that name and width; bits 0: the first of that name, its default. Null: not there.
const CodecModel* FindCodec(const std::vector<CodecModel>& codecs, const std::string& name,
                            int bits);

/// One choice per bucket, in the snapshot's bucket order.
using PlanModel = std::vector<ChoiceModel>;

/// The sum of the shares of a layout.
inline constexpr uint32_t kShareUnits = 65536;

/// How a plan lays work over the ranks.
struct PlanLayout {
  std::vector<int> ring_order;         // who follows whom; empty: ascending
  std::vector<uint32_t> shard_shares;  // of each rank, in 1/kShareUnits; empty: even
  friend bool operator==(const PlanLayout&, const PlanLayout&) = default;
};

/// Rates of payloads under a layout over what bandwidth_bytes_per_s means for them; 1 where no such
/// layout was ever chosen.
struct LayoutSpeedup {
  double ring = 1;    // around the ring
  double shards = 1;  // where a collective cuts by shares
  friend bool operator==(const LayoutSpeedup&, const LayoutSpeedup&) = default;
};

/// A plan that ran before the incumbent; no choices: dense, without a plan.
struct FormerPlan {
  PlanModel choices;
  PlanLayout layout;
  LayoutSpeedup speedup;
  SyncModel sync;
  friend bool operator==(const FormerPlan&, const FormerPlan&) = default;
};

/// Where ranks are, and what lies between.
struct NodeLinks {
  std::vector<int> nodes;  // of each rank: 0, 1, ... by their first ranks; empty: not known
  // The inverse bandwidth of the link from node i to node j, at [i * nodes + j]; negative: not
  // measured.
  std::vector<double> s_per_byte;
  double relative_deviation = 0;  // of the least certain bandwidth
  friend bool operator==(const NodeLinks&, const NodeLinks&) = default;
};

/// The place at which a bucket is encoded, as EncodedOn in rank.proto. kUnknown: gradients are in
/// the host's memory, or not on all ranks in that of a device.
enum class CodecPlace { kUnknown, kNowhere, kHost, kDevice };

/// Gradients in the memory of devices, as all ranks report.
struct GradientDevices {
  double copy_out_s_per_byte = 0, copy_in_s_per_byte = 0;  // to the host's memory and from it
  bool known = false;                                      // false: they are in the host's memory
  bool linked = false;  // ranks of a node move what is on devices without the host
  friend bool operator==(const GradientDevices&, const GradientDevices&) = default;
};

/// Which ranks share memory, as they found when they connected, and how fast they are among
/// themselves, through that memory and between devices that are linked.
struct SharedMemory {
  std::vector<int> lowest_ranks;  // of each rank: the lowest that it shares with; empty: none does
  double latency_s = 0, s_per_byte = 0;  // one way, 1 / bandwidth; 0: not measured
  double device_latency_s = 0, device_s_per_byte = 0;
  friend bool operator==(const SharedMemory&, const SharedMemory&) = default;
};

/// A change of the plan that did not keep its promise and is not made again for a while; see
/// held_change.h.
struct HeldChange {
  ChoiceModel to;            // of most elements that changed
  bool layout_only = false;  // no choice changed, but the ring's order or the shares did
  uint32_t every = 0;        // steps between synchronisations, if that changed; 0: it did not
  int failures = 1;
  double held_s = 0;  // from now
  friend bool operator==(const HeldChange&, const HeldChange&) = default;
};

/// The knowledge of local steps in a job.
struct LocalSteps {
  bool possible = false;         // every rank can make them
  int unable_rank = -1;          // the first that cannot; -1: none, or not known
  SyncModel sync;                // of the incumbent
  double signal_share = 0;       // see SignalShare, at the last synchronisations; 0: not known
  double consensus_share = 0;    // 1 - |mean D|^2 / mean |D|^2 at these
  std::vector<double> progress;  // log-likelihood of costs in kSyncCostUnit; empty: none
  friend bool operator==(const LocalSteps&, const LocalSteps&) = default;
};

struct Snapshot {
  std::string job;
  int world = 1;
  uint64_t step = 0;
  std::string trigger;               // why a decision is asked for; see admin.proto
  std::vector<BucketModel> buckets;  // in ready order
  std::vector<CodecModel> codecs;    // what every rank offers
  std::vector<CollectiveModel> collectives;
  Measured compute_s;                // step time without any exposed communication
  Measured backward_s;               // first bucket ready to last bucket ready
  Measured latency_s;                // one way, worst link of the job
  Measured bandwidth_bytes_per_s;    // bottleneck link of the job
  double reduce_s_per_byte = 2e-10;  // gamma
  double codec_parallelism = 1;      // free cores per rank for codec threads, 0 < x <= 1 slows them
  std::vector<double> progress;      // log-likelihood of exponents, see progress.h; empty: none
  double progress_gain_seen = 1;     // the lowest gain that they hold for
  PlanModel incumbent;               // empty: no plan yet
  NodeLinks node_links;
  SharedMemory memory;
  GradientDevices devices;
  PlanLayout layout;      // of the incumbent
  LayoutSpeedup speedup;  // of that
  LocalSteps local;
  std::vector<HeldChange> held;
  // One: the incumbent did not keep the promise for which it was chosen, and this ran before.
  std::vector<FormerPlan> former;
  double seconds_since_switch = 1e9;
  double measured_step_s = 0;             // of the incumbent; 0: unknown
  int recent_switches = 0;                // within the flap window
  double metadata_overhead_s = 0;         // software cost of the exchange before encoding
  double window_bytes = 0;                // in flight per connection at most; 0: no such cap
  double host_bandwidth_bytes_per_s = 0;  // what a host can move at most; 0: no such cap
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

}  // namespace weir
