// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of one bucket under one choice: bytes, seconds and gain, from data that agents advertise
// and the estimators calibrate. It knows no codec and no collective by name.

#include <algorithm>
#include <string>

#include "controller/model/node_layout.h"
#include "controller/model/snapshot.h"

namespace weir {

/// The network that a prediction assumes.
struct NetworkState {
  double alpha_s = 0;           // one-way latency of one message
  double beta_s_per_byte = 0;   // 1 / bottleneck bandwidth
  double gamma_s_per_byte = 0;  // reduction cost
};

/// The snapshot's own estimates. Bandwidth 0 gives beta 0 (a world of one needs no network).
NetworkState NetworkOf(const Snapshot& snapshot);

/// Bandwidth that a flow really gets: min(link, window / round-trip time, host).
/// 0 for a cap means that the snapshot knows none.
double EffectiveBandwidth(const Snapshot& snapshot, const NetworkState& network);

/// How often the busiest rank encodes and decodes a bucket's worth of elements.
struct CodecWork {
  double encodes = 1, decodes = 1;                // outside of the collective
  double encodes_inside = 0, decodes_inside = 0;  // while the collective runs
  double mean_share = 1;                          // of all of it, what the mean rank does
  double payload_share = 1;                       // of a bucket's payload, in the mean over ranks

  double MeanEncodes() const { return (encodes + encodes_inside) * mean_share; }
  double MeanDecodes() const { return (decodes + decodes_inside) * mean_share; }
};

/// Opaque payloads are decoded one for each rank. A collective of regions sums and encodes one N-th
/// of the bucket again, for which it decodes N parts of that size. Where the sums of n nodes are
/// encoded, all is done inside: each node encodes the bucket once and decodes it n times, by its
/// first rank, or where all hold p ranks and the form shares nodes a p-th by each. Sums of callers
/// need no work: they are made where the gradients are, and as these are.
CodecWork WorkOf(const CodecModel& codec, const CollectiveModel& collective, int world,
                 const NodeLayout& layout = {});

/// The bytes that one rank sends for one bucket.
struct WireBytes {
  double payload = 0;
  double index = 0;  // forms that share indices send them apart from the values
};

/// payload = (fixed_bits + ratio * kept_bits + H(ratio) if indices_coded) * elements / 8, times the
/// codec's measured payload_scale. Where indices_apart the H(ratio)
/// part goes to `index`.
WireBytes PredictWireBytes(const CodecModel& codec, double elements, double ratio);

/// Where CodecModel.uniform_loss was measured (CodecLoss in rank.proto).
inline constexpr double kUniformLossRatio = 0.05;

/// Share of the gradient's energy that survives, in [0, 1]. Selection reads the bucket's measured
/// curve, interpolated in log(ratio); without a curve it assumes exponential magnitudes:
/// r (1 + L + L^2/2), L = ln 1/r. Where a collective encodes twice, the square of that.
double PredictGain(const CodecModel& codec, const CollectiveModel& collective,
                   const BucketModel& bucket, double ratio, int world);

/// Encode or one decode, before dividing by the snapshot's codec_parallelism.
double CodecSeconds(const CodecModel::Time& time, double elements, double kept);
double KeptElements(const CodecModel& codec, double elements, double ratio);

/// The payload that remains if blocks of zeros are left out.
struct BlockSaving {
  double share = 1;      // of the dense payload term that is left
  double deviation = 0;  // one standard deviation of `share`
};

/// 1 - a - b + a own + b union, with a, b the collective's shares. Of lanes that are the float32
/// elements themselves, and once the bucket's densities were measured; else everything travels.
/// Source: Fei et al., SIGCOMM 2021, section 3.1: only non-zero blocks are sent, and those of the
/// union come back.
BlockSaving PredictBlockSaving(const CodecModel& codec, const CollectiveModel& collective,
                               const std::vector<BlockDensityModel>& densities);

/// The parts of a collective's terms that count where callers sum; all of them for other
/// collectives. Callers sum in the job's own format, and where each rank needs a part of the sum
/// only, they do the first of the two phases of an all-reduce, a reduce-scatter.
struct CallerScale {
  double payload = 1;  // of the payload of float32 elements
  double rounds = 1;   // of the latency and the overhead
};
CallerScale CallerScaleOf(const CollectiveModel& collective, int element_bytes, bool sharded);

/// Returns the place at which ranks encode a bucket under this choice. It is not a device if
/// gradients are not there, the codec does not run there, or the exchange form or an aggregator
/// needs payloads of the host.
CodecPlace PlaceOf(const Snapshot& snapshot, const CodecModel& codec,
                   const CollectiveModel& collective);

/// "on the GPU", "on the host (copies 3.1 ms)", "not encoded (copies 3.1 ms)"; empty where that is
/// not known. `copies_s`: see BucketCost.
std::string PlaceText(CodecPlace place, double copies_s);

/// One bucket under one choice, kept linear in alpha and effective beta so that "what if the
/// network were different" costs nothing.
struct BucketCost {
  double encode_fixed_s = 0, encode_alphas = 0;  // encode plus the metadata exchange before it
  double network_fixed_s = 0, network_alphas = 0, network_beta_bytes = 0;
  double network_bytes_min_s = 0;  // what the bytes take at least, whatever the network
  double decode_s = 0;
  double gain = 1;
  double relative_deviation = 0;  // of the network time
  double codec_deviation_s = 0;
  CodecPlace place = CodecPlace::kUnknown;
  double copies_s = 0;  // of the gradient between device and host, which the times above include

  double EncodeSeconds(double alpha_s) const { return encode_fixed_s + encode_alphas * alpha_s; }
  double NetworkSeconds(double alpha_s, double beta_s_per_byte) const {
    return network_fixed_s + network_alphas * alpha_s +
           std::max(network_beta_bytes * beta_s_per_byte, network_bytes_min_s);
  }
};

/// The cost of a collective for the placement of the job's ranks, whatever it carries; made once
/// per decision.
struct Placement {
  NodeLayout nodes;
  CollectiveFeatures features;
  CollectiveFeatures by_devices;  // where linked devices move what is within nodes
};
/// Pure. O(N log N) for N ranks.
Placement PlacementOf(const Snapshot& snapshot, const CollectiveModel& collective);

/// network = overhead + alpha_scale (latency alpha + within_latency_s)
///           + beta_scale ((payload bytes + index index_bytes) / B_eff + within_s_per_byte bytes)
///           + gamma_scale reduce gamma bytes
/// (where nodes are summed, within nodes the bytes are those of float32 elements)
/// with the collective's FeaturesOf the job's nodes, the payload less what PredictBlockSaving saves
/// of it, per codec round; nothing in a world of one; and what codecs do inside of the collective.
/// Codecs take the time of the place where they run (PlaceOf). Sums of nodes on devices move
/// between linked devices, and where these are not linked through copies in the host's memory.
/// B_eff is no more than the collective's aggregator has for one rank; payloads that go around a
/// ring or are cut by shares move as many times as fast as `speedup` says. The metadata exchange is
/// a small all-reduce: overhead
/// + 2 ceil(log2 N) alpha.
BucketCost PredictBucket(const Snapshot& snapshot, const BucketModel& bucket,
                         const CodecModel& codec, const CollectiveModel& collective,
                         const Placement& placement, double ratio,
                         const LayoutSpeedup& speedup = {});
/// With PlacementOf(snapshot, collective).
BucketCost PredictBucket(const Snapshot& snapshot, const BucketModel& bucket,
                         const CodecModel& codec, const CollectiveModel& collective, double ratio,
                         const LayoutSpeedup& speedup = {});

/// True when the collective's form is one of those that carry the codec's payloads, and where that
/// needs the table of a lease, the lease would have this one. Codecs that only a policy names are
/// not looked for where sums are encoded, though ranks may take them.
bool Carries(const CollectiveModel& collective, const CodecModel& codec);

/// True when the collective carries the codec's payloads and allows the world size.
bool Compatible(const CodecModel& codec, const CollectiveModel& collective, int world);

/// A codec without times on a device does not run there. Replaces an all-zero encode or decode time
/// on the host by a prior, so that a codec that never ran is not
/// free: 0.3 ns per element to copy or cast, 1.5 ns to select, 3 ns per kept element to scatter.
void ApplyPriorTimes(CodecModel* codec);

}  // namespace weir
