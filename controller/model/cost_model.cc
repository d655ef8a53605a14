// SPDX-License-Identifier: Apache-2.0
// See cost_model.h. Source of the features: the alpha-beta-gamma model of collectives; the window
// cap is the bandwidth-delay product of one connection.

#include "controller/model/cost_model.h"

#include <algorithm>
#include <cmath>

#include "controller/model/deterministic_math.h"
#include "controller/model/format.h"
#include "controller/model/measured_gain.h"
#include "controller/model/node_layout.h"
#include "controller/model/plan_layout.h"

namespace weir {
namespace {

/// Entropy of a coin of probability p, in bits.
double BinaryEntropy(double p) {
  if (p <= 0 || p >= 1) return 0;
  constexpr double kLn2 = 0.693147180559945309417232121458;
  return -(p * DetLog(p) + (1 - p) * DetLog(1 - p)) / kLn2;
}

/// Energy share of the largest `ratio` of exponentially distributed magnitudes.
double ExponentialGain(double ratio) {
  const double depth = -DetLog(ratio);
  return ratio * (1 + depth + 0.5 * depth * depth);
}

double CurveGain(const BucketModel& bucket, double ratio) {
  if (ratio >= 1) return 1;
  const auto& ratios = bucket.gain_ratios;
  const auto& gains = bucket.gains;
  const size_t n = std::min(ratios.size(), gains.size());
  if (n == 0) return ExponentialGain(ratio);
  if (ratio >= ratios[0]) return gains[0];
  for (size_t i = 1; i < n; ++i) {
    if (ratio < ratios[i]) continue;
    const double above = DetLog(ratios[i - 1]), below = DetLog(ratios[i]);
    const double weight = above > below ? (DetLog(ratio) - below) / (above - below) : 0;
    return gains[i] + weight * (gains[i - 1] - gains[i]);
  }
  // Past the curve: fewer elements hold at most a proportional share.
  return gains[n - 1] * ratio / ratios[n - 1];
}

// Below that other terms decide, however little is known of the share.
constexpr double kShareMin = 0.01;

bool AllZero(const CodecModel::Time& time) {
  return time.base_s == 0 && time.per_element_s == 0 && time.per_kept_s == 0;
}

}  // namespace

double WorldFunctionModel::At(int world) const {
  const double ranks = std::max(1, world);
  int levels = 0;
  while ((int64_t{1} << levels) < world) ++levels;
  const double value = constant + n_minus_1 * (ranks - 1) + n_minus_1_over_n * (ranks - 1) / ranks +
                       log2_n * levels + n * ranks;
  return std::max(0.0, value);
}

const CodecModel* FindCodec(const std::vector<CodecModel>& codecs, const std::string& name,
                            int bits) {
  for (const CodecModel& codec : codecs) {
    if (codec.name == name && (bits == 0 || codec.bits == bits)) return &codec;
  }
  return nullptr;
}

CodecWork WorkOf(const CodecModel& codec, const CollectiveModel& collective, int world,
                 const NodeLayout& layout) {
  CodecWork work;
  if (collective.by_caller) {
    work.encodes = work.decodes = 0;
  } else if (collective.exchange.encodes_nodes) {
    const double ranks = std::max(1, world), nodes = layout.nodes > 0 ? layout.nodes : ranks;
    const bool shared = collective.exchange.shares_nodes && layout.even;
    work.encodes = work.decodes = 0;
    work.encodes_inside = shared ? nodes / ranks : 1;
    work.decodes_inside = nodes * work.encodes_inside;
    work.payload_share = nodes / ranks;
    work.mean_share = work.payload_share / work.encodes_inside;
  } else if (collective.exchange.encodes_regions) {
    work.encodes_inside = 1.0 / std::max(1, world);
    work.decodes_inside = 1;
  } else if (collective.exchange.gathers) {
    work.decodes = std::max(1, world);
  }
  return work;
}

NetworkState NetworkOf(const Snapshot& snapshot) {
  NetworkState network;
  network.alpha_s = std::max(0.0, snapshot.latency_s.value);
  if (snapshot.bandwidth_bytes_per_s.value > 0) {
    network.beta_s_per_byte = 1 / snapshot.bandwidth_bytes_per_s.value;
  }
  network.gamma_s_per_byte = std::max(0.0, snapshot.reduce_s_per_byte);
  return network;
}

double EffectiveBandwidth(const Snapshot& snapshot, const NetworkState& network) {
  double bandwidth = network.beta_s_per_byte > 0 ? 1 / network.beta_s_per_byte : 1e18;
  if (snapshot.window_bytes > 0 && network.alpha_s > 0) {
    bandwidth = std::min(bandwidth, snapshot.window_bytes / (2 * network.alpha_s));
  }
  if (snapshot.host_bandwidth_bytes_per_s > 0) {
    bandwidth = std::min(bandwidth, snapshot.host_bandwidth_bytes_per_s);
  }
  return bandwidth;
}

WireBytes PredictWireBytes(const CodecModel& codec, double elements, double ratio) {
  const double kept = codec.uses_ratio ? std::clamp(ratio, 0.0, 1.0) : 1;
  const double index_bits = codec.indices_coded ? BinaryEntropy(kept) : 0;
  double payload_bits = codec.fixed_bits + kept * codec.kept_bits;
  WireBytes bytes;
  if (codec.indices_apart) {
    bytes.index = codec.payload_scale * index_bits * elements / 8;
  } else {
    payload_bits += index_bits;
  }
  bytes.payload = codec.payload_scale * payload_bits * elements / 8;
  return bytes;
}

/// The bytes that cross a rank's link before encoding; see datapath/collective/maximum.h.
double MetadataBytes(const CodecModel& codec, double elements, double world) {
  if (!codec.shared_metadata || codec.shared_block <= 0) return 0;
  constexpr double kGatheredBytesMax = 64 << 10;
  const double own = sizeof(float) * std::ceil(elements / codec.shared_block);
  return own * (own * world <= kGatheredBytesMax ? world - 1 : 2 * (world - 1) / world);
}

/// Largest first, every further kept part adds no more than the one before, so that the gain lies
/// above the chords from the measured point to (0, 0) and (1, 1). Those are taken.
double UniformSelectionGain(double loss, double ratio) {
  if (!(loss < 1)) return ratio;
  const double measured = std::clamp(1 - loss * (1 - kUniformLossRatio), 0.0, 1.0);
  if (ratio <= kUniformLossRatio) return measured * ratio / kUniformLossRatio;
  return measured + (1 - measured) * (ratio - kUniformLossRatio) / (1 - kUniformLossRatio);
}

/// The loss when payloads that add at random are summed one after the other, as in a ring, relative
/// to the square of the sum. Contributions of ranks count as independent: the sum of k of them has
/// k times the energy of one, and every addition loses its part of that.
double SumLoss(double sum_error_squared, int world) {
  const double ranks = std::max(1, world);
  return sum_error_squared * (ranks * (ranks + 1) / 2 - 1) / ranks;
}

double PredictGain(const CodecModel& codec, const CollectiveModel& collective,
                   const BucketModel& bucket, double ratio, int world) {
  double gain = 1;
  if (codec.error_model == "selection") {
    gain = CurveGain(bucket, ratio) * (1 - codec.relative_error_squared);
  } else if (codec.error_model == "uniform_selection") {
    gain = UniformSelectionGain(codec.uniform_loss, std::clamp(ratio, 0.0, 1.0));
  } else if (codec.error_model == "relative") {
    gain = 1 - codec.relative_error_squared;
  } else if (codec.error_model == "max_scaled" && codec.levels > 0 && codec.error_divisor > 0) {
    double levels = codec.levels;
    if (codec.levels_divided_by_world) levels /= std::max(1, world);
    const double peak = codec.peak_over_rms > 0 ? codec.peak_over_rms : bucket.peak_over_rms;
    const double step = peak / levels;
    gain = 1 - step * step / codec.error_divisor;
  }
  // Below 0 where more is lost than sent, which twice is no gain either.
  gain = std::max(0.0, gain - SumLoss(codec.sum_error_squared, world));
  // The second encoding keeps about the same share of the sum as the first of each part.
  if (collective.exchange.encodes_regions) gain *= gain;
  if (codec.lossy && ratio < 1) gain *= collective.gain_scale;
  return std::clamp(gain, 0.0, 1.0);
}

double KeptElements(const CodecModel& codec, double elements, double ratio) {
  return codec.uses_ratio ? elements * std::clamp(ratio, 0.0, 1.0) : elements;
}

double CodecSeconds(const CodecModel::Time& time, double elements, double kept) {
  return std::max(0.0, time.base_s + time.per_element_s * elements + time.per_kept_s * kept);
}

BlockSaving PredictBlockSaving(const CodecModel& codec, const CollectiveModel& collective,
                               const std::vector<BlockDensityModel>& densities) {
  const bool floats = codec.sums_without_decoding && !codec.lossy && codec.fixed_bits == 32;
  if (collective.block_elements == 0 || !floats) return {};
  for (const BlockDensityModel& density : densities) {
    if (density.block_elements != collective.block_elements) continue;
    const double own = 1 - std::clamp(density.own, 0.0, 1.0);
    const double all = 1 - std::clamp(density.union_of.value, 0.0, 1.0);
    return {
        std::max(0.0, 1 - collective.own_block_share * own - collective.union_block_share * all),
        collective.union_block_share * std::max(0.0, density.union_of.deviation)};
  }
  return {};
}

CallerScale CallerScaleOf(const CollectiveModel& collective, int element_bytes, bool sharded) {
  if (!collective.by_caller) return {};
  const double phases = sharded ? 0.5 : 1;
  return {phases * element_bytes / static_cast<double>(sizeof(float)), phases};
}

CodecPlace PlaceOf(const Snapshot& snapshot, const CodecModel& codec,
                   const CollectiveModel& collective) {
  if (!snapshot.devices.known) return CodecPlace::kUnknown;
  if (codec.on_device && collective.exchange.on_devices && !collective.needs_lease) {
    return CodecPlace::kDevice;
  }
  const bool raw = !codec.lossy && !codec.uses_ratio && codec.fixed_bits == 32;
  return raw ? CodecPlace::kNowhere : CodecPlace::kHost;
}

std::string PlaceText(CodecPlace place, double copies_s) {
  const std::string copies = copies_s > 0 ? " (copies " + SecondsText(copies_s) + ")" : "";
  switch (place) {
    case CodecPlace::kUnknown:
      return "";
    case CodecPlace::kNowhere:
      return "not encoded" + copies;
    case CodecPlace::kHost:
      return "on the host" + copies;
    case CodecPlace::kDevice:
      return "on the GPU";
  }
  return "";
}

namespace {

/// The copies of `bytes` of a bucket on a device: all of it where it is encoded on the host. Sums
/// of nodes on devices that are not linked are copied for what moves within nodes, see
/// datapath/collective/device_parts.h.
double CopySeconds(const Snapshot& snapshot, const CollectiveModel& collective,
                   const NodeLayout& nodes, CodecPlace place, double bytes) {
  const GradientDevices& devices = snapshot.devices;
  if (place == CodecPlace::kUnknown || collective.by_caller) return 0;
  if (place != CodecPlace::kDevice) {
    return bytes * (devices.copy_out_s_per_byte + devices.copy_in_s_per_byte);
  }
  if (!collective.exchange.encodes_nodes || devices.linked || nodes.ranks_max == 1) return 0;
  const double part = collective.exchange.shares_nodes && nodes.even ? 1.0 / nodes.ranks_max : 1;
  return bytes * ((1 + part) * devices.copy_out_s_per_byte + devices.copy_in_s_per_byte);
}

}  // namespace

Placement PlacementOf(const Snapshot& snapshot, const CollectiveModel& collective) {
  Placement placement;
  placement.nodes = LayoutOf(snapshot.memory);
  const int world = std::max(1, snapshot.world);
  placement.features = FeaturesOf(collective, world, placement.nodes);
  placement.by_devices = FeaturesOf(collective, world, BetweenDevices(placement.nodes));
  return placement;
}

BucketCost PredictBucket(const Snapshot& snapshot, const BucketModel& bucket,
                         const CodecModel& codec, const CollectiveModel& collective, double ratio,
                         const LayoutSpeedup& speedup) {
  return PredictBucket(snapshot, bucket, codec, collective, PlacementOf(snapshot, collective),
                       ratio, speedup);
}

BucketCost PredictBucket(const Snapshot& snapshot, const BucketModel& bucket,
                         const CodecModel& codec, const CollectiveModel& collective,
                         const Placement& placement, double ratio, const LayoutSpeedup& speedup) {
  const double elements = static_cast<double>(bucket.elements);
  const double kept = KeptElements(codec, elements, ratio);
  const int world = std::max(1, snapshot.world);
  BucketCost cost;
  cost.gain = CorrectedGain(bucket, codec, collective, ratio,
                            PredictGain(codec, collective, bucket, ratio, world));
  const CodecWork work = WorkOf(codec, collective, world, placement.nodes);
  cost.place = PlaceOf(snapshot, codec, collective);
  const bool there = cost.place == CodecPlace::kDevice;
  const CodecModel::Time& encode = there ? codec.device_encode : codec.encode;
  const CodecModel::Time& decode = there ? codec.device_decode : codec.decode;
  // A device does not share the host's cores.
  const double slowdown = there ? 1 : 1 / std::clamp(snapshot.codec_parallelism, 1e-3, 1.0);
  const double encode_s = CodecSeconds(encode, elements, kept) * slowdown;
  const double decode_s = CodecSeconds(decode, elements, kept) * slowdown;
  cost.encode_fixed_s = encode_s * work.encodes;
  cost.decode_s = decode_s * work.decodes;
  cost.network_fixed_s = work.encodes_inside * encode_s + work.decodes_inside * decode_s;
  cost.codec_deviation_s = (encode.deviation_s_per_element * (work.encodes + work.encodes_inside) +
                            decode.deviation_s_per_element * (work.decodes + work.decodes_inside)) *
                           elements * slowdown;
  const double floats = elements * sizeof(float);
  cost.copies_s = CopySeconds(snapshot, collective, placement.nodes, cost.place, floats);
  if (there) cost.network_fixed_s += cost.copies_s;  // elsewhere the codec's times include them
  if (world == 1) return cost;
  if (codec.shared_metadata) {
    cost.encode_fixed_s += snapshot.metadata_overhead_s;
    WorldFunctionModel levels;
    levels.log2_n = 2;
    cost.encode_alphas = levels.At(world);
  }
  const WireBytes bytes = PredictWireBytes(codec, elements, ratio);
  const CallerScale caller = CallerScaleOf(collective, bucket.element_bytes, bucket.sharded);
  const double rounds = caller.rounds * std::max(1, codec.rounds);
  const bool by_devices = there && collective.exchange.encodes_nodes && snapshot.devices.linked;
  const CollectiveFeatures& features = by_devices ? placement.by_devices : placement.features;
  const double within_bytes = features.floats_within ? floats : bytes.payload;
  cost.network_fixed_s +=
      rounds *
          (collective.overhead_s + collective.alpha_scale * features.within_latency_s +
           collective.gamma_scale * features.reduce * snapshot.reduce_s_per_byte * within_bytes) +
      collective.beta_scale * features.within_s_per_byte * within_bytes;
  cost.network_alphas = rounds * collective.alpha_scale * features.latency;
  const BlockSaving saving = PredictBlockSaving(codec, collective, bucket.block_densities);
  cost.network_beta_bytes =
      collective.beta_scale * (features.payload * caller.payload * saving.share * bytes.payload /
                                   SpeedupOf(speedup, collective) +
                               features.index * bytes.index + features.dense * floats) +
      MetadataBytes(codec, elements, world);
  if (collective.bandwidth_max_bytes_per_s > 0) {
    cost.network_bytes_min_s = cost.network_beta_bytes / collective.bandwidth_max_bytes_per_s;
  }
  cost.relative_deviation = collective.relative_deviation;
  if (saving.deviation > 0) {
    const double open = saving.deviation / std::max(saving.share, kShareMin);
    cost.relative_deviation =
        std::min(1.0, DetSqrt(cost.relative_deviation * cost.relative_deviation + open * open));
  }
  return cost;
}

bool Carries(const CollectiveModel& collective, const CodecModel& codec) {
  const ExchangeModel& exchange = collective.exchange;
  if (exchange.needs_table && !codec.tabled) return false;
  if (codec.opt_in && (exchange.encodes_regions || exchange.encodes_nodes)) return false;
  return std::find(codec.forms.begin(), codec.forms.end(), collective.form) != codec.forms.end();
}

bool Compatible(const CodecModel& codec, const CollectiveModel& collective, int world) {
  if (!Carries(collective, codec)) return false;
  if (world < collective.world_min) return false;
  return collective.world_max <= 0 || world <= collective.world_max;
}

void ApplyPriorTimes(CodecModel* codec) {
  if (AllZero(codec->device_encode) || AllZero(codec->device_decode)) codec->on_device = false;
  if (AllZero(codec->encode)) {
    codec->encode.base_s = 1e-5;
    codec->encode.per_element_s = codec->uses_ratio ? 1.5e-9 : 3e-10;
    codec->encode.per_kept_s = codec->uses_ratio ? 3e-9 : 0;
    codec->encode.deviation_s_per_element = 0.5 * codec->encode.per_element_s;
  }
  if (AllZero(codec->decode)) {
    codec->decode.base_s = 1e-5;
    codec->decode.per_element_s = codec->sums_without_decoding || !codec->uses_ratio ? 3e-10 : 0;
    codec->decode.per_kept_s = codec->uses_ratio ? 3e-9 : 0;
    codec->decode.deviation_s_per_element = 0.5 * codec->decode.per_element_s;
  }
}

}  // namespace weir
