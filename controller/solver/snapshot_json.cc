// SPDX-License-Identifier: Apache-2.0
// Snapshots as canonical JSON: keys in alphabetical order, doubles in the shortest form that reads
// back to the same bits. One list of fields serves both directions.

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "controller/solver/solver.h"

namespace weir {
namespace {

using Json = nlohmann::json;
constexpr size_t kSnapshotBytesMax = 16u << 20;

class Writer {
 public:
  static constexpr bool kReads = false;
  explicit Writer(Json* json) : json_(json) { *json_ = Json::object(); }
  template <typename T>
  void operator()(const char* key, T& value) {
    Json inner;
    Put(&inner, value);
    (*json_)[key] = std::move(inner);
  }

 private:
  // JSON has no infinity and no NaN. The largest number stands for infinity, and zero for NaN.
  static void Put(Json* json, double value) {
    if (std::isnan(value)) value = 0;
    if (std::isinf(value)) value = value > 0 ? 1e300 : -1e300;
    *json = value;
  }
  static void Put(Json* json, std::string& value) { *json = value; }
  static void Put(Json* json, bool value) { *json = value; }
  static void Put(Json* json, int value) { *json = value; }
  static void Put(Json* json, uint32_t value) { *json = value; }
  static void Put(Json* json, uint64_t value) { *json = value; }
  template <typename T>
  static void Put(Json* json, std::vector<T>& values) {
    *json = Json::array();
    for (T& value : values) {
      Json inner;
      Put(&inner, value);
      json->push_back(std::move(inner));
    }
  }
  template <typename T>
  static void Put(Json* json, T& value) {
    Writer writer(json);
    Fields(writer, value);
  }

  Json* json_;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json_.is_object()) Fail("an object", json_);
  }
  /// A key that is absent keeps its default: snapshots outlive versions of this program.
  template <typename T>
  void operator()(const char* key, T& value) {
    ++known_;
    if (!status_.ok()) return;
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    ++read_;
    Get(*found, path_ + "." + key, value);
  }
  Status Finish() {
    if (status_.ok() && read_ != json_.size()) {
      status_ = InvalidArgument(StrCat(path_, ": expected at most ", known_, " known keys, found ",
                                       json_.size() - read_, " unknown"));
    }
    return status_;
  }

 private:
  void Fail(const char* expected, const Json& found) {
    if (status_.ok()) {
      status_ =
          InvalidArgument(StrCat(path_, ": expected ", expected, ", found ", found.type_name()));
    }
  }
  Status Wrong(const std::string& path, const char* expected, const Json& found) {
    return InvalidArgument(StrCat(path, ": expected ", expected, ", found ", found.type_name()));
  }
  void Get(const Json& json, const std::string& path, double& value) {
    if (json.is_number()) {
      value = json.get<double>();
    } else {
      status_ = Wrong(path, "a number", json);
    }
  }
  void Get(const Json& json, const std::string& path, std::string& value) {
    if (json.is_string()) {
      value = json.get<std::string>();
    } else {
      status_ = Wrong(path, "a string", json);
    }
  }
  void Get(const Json& json, const std::string& path, bool& value) {
    if (json.is_boolean()) {
      value = json.get<bool>();
    } else {
      status_ = Wrong(path, "true or false", json);
    }
  }
  template <typename Integer>
  requires std::is_integral_v<Integer>
  void Get(const Json& json, const std::string& path, Integer& value) {
    using Limits = std::numeric_limits<Integer>;
    const bool unsigned_json = json.is_number_unsigned();
    bool fits = json.is_number_integer();
    if (fits && unsigned_json) fits = json.get<uint64_t>() <= static_cast<uint64_t>(Limits::max());
    // The library stores every integer without a minus sign as unsigned.
    if (fits && !unsigned_json) {
      fits =
          std::is_signed_v<Integer> && json.get<int64_t>() >= static_cast<int64_t>(Limits::min());
    }
    if (!fits) {
      status_ = Wrong(path, "an integer in range", json);
    } else {
      value = json.get<Integer>();
    }
  }
  template <typename T>
  void Get(const Json& json, const std::string& path, std::vector<T>& values) {
    if (!json.is_array()) {
      status_ = Wrong(path, "a list", json);
      return;
    }
    values.clear();
    for (size_t i = 0; i < json.size() && status_.ok(); ++i) {
      values.emplace_back();
      Get(json[i], StrCat(path, "[", i, "]"), values.back());
    }
  }
  template <typename T>
  requires std::is_class_v<T>
  void Get(const Json& json, const std::string& path, T& value) {
    Reader reader(json, path);
    if (reader.status_.ok()) Fields(reader, value);
    status_ = reader.Finish();
  }

  const Json& json_;
  std::string path_;
  size_t known_ = 0, read_ = 0;
  Status status_;
};

template <typename V>
void Fields(V& v, Measured& m) {
  v("value", m.value);
  v("deviation", m.deviation);
  v("age_s", m.age_s);
}

template <typename V>
void Fields(V& v, CodecModel::Time& t) {
  v("base_s", t.base_s);
  v("per_element_s", t.per_element_s);
  v("per_kept_s", t.per_kept_s);
  v("deviation_s_per_element", t.deviation_s_per_element);
}

template <typename V>
void Fields(V& v, CodecModel& c) {
  v("name", c.name);
  v("bits", c.bits);
  v("form", c.form);
  v("forms", c.forms);
  v("sums_without_decoding", c.sums_without_decoding);
  v("indices_apart", c.indices_apart);
  v("lossy", c.lossy);
  v("unbiased", c.unbiased);
  v("needs_error_feedback", c.needs_error_feedback);
  v("shared_metadata", c.shared_metadata);
  v("opt_in", c.opt_in);
  v("rounds", c.rounds);
  v("fixed_bits", c.fixed_bits);
  v("kept_bits", c.kept_bits);
  v("indices_coded", c.indices_coded);
  v("uses_ratio", c.uses_ratio);
  v("ratio_min", c.ratio_min);
  v("ratio_max", c.ratio_max);
  v("error_model", c.error_model);
  v("relative_error_squared", c.relative_error_squared);
  v("levels", c.levels);
  v("levels_divided_by_world", c.levels_divided_by_world);
  v("peak_over_rms", c.peak_over_rms);
  v("error_divisor", c.error_divisor);
  v("tabled", c.tabled);
  v("shared_block", c.shared_block);
  v("sum_error_squared", c.sum_error_squared);
  v("uniform_loss", c.uniform_loss);
  v("encode", c.encode);
  v("decode", c.decode);
  v("on_device", c.on_device);
  v("device_encode", c.device_encode);
  v("device_decode", c.device_decode);
  v("payload_scale", c.payload_scale);
}

template <typename V>
void Fields(V& v, WorldFunctionModel& f) {
  v("constant", f.constant);
  v("n_minus_1", f.n_minus_1);
  v("n_minus_1_over_n", f.n_minus_1_over_n);
  v("log2_n", f.log2_n);
  v("n", f.n);
}

template <typename V>
void Fields(V& v, WithinNodeModel& w) {
  v("latency", w.latency);
  v("payload", w.payload);
  v("reduce", w.reduce);
}

template <typename V>
void Fields(V& v, ExchangeModel& e) {
  v("gathers", e.gathers);
  v("encodes_regions", e.encodes_regions);
  v("encodes_nodes", e.encodes_nodes);
  v("shares_nodes", e.shares_nodes);
  v("needs_table", e.needs_table);
  v("on_devices", e.on_devices);
  v("gain_prior", e.gain_prior);
}

template <typename V>
void Fields(V& v, CollectiveModel& c) {
  v("name", c.name);
  v("form", c.form);
  v("exchange", c.exchange);
  v("latency", c.latency);
  v("payload", c.payload);
  v("index", c.index);
  v("reduce", c.reduce);
  v("world_min", c.world_min);
  v("world_max", c.world_max);
  v("walks_ring", c.uses_ring_order);  // stored snapshots have this key
  v("shard_segment_bytes", c.shard_segment_bytes);
  v("all_pairs", c.all_pairs);
  v("payload_pattern", c.payload_pattern);
  v("index_pattern", c.index_pattern);
  v("by_node", c.by_node);
  v("within_even", c.within_even);
  v("within_uneven", c.within_uneven);
  v("block_elements", c.block_elements);
  v("own_block_share", c.own_block_share);
  v("union_block_share", c.union_block_share);
  v("alpha_scale", c.alpha_scale);
  v("beta_scale", c.beta_scale);
  v("gamma_scale", c.gamma_scale);
  v("overhead_s", c.overhead_s);
  v("relative_deviation", c.relative_deviation);
  v("gain_scale", c.gain_scale);
  v("needs_lease", c.needs_lease);
  v("lease_available", c.lease_available);
  v("lease_why_not", c.lease_why_not);
  v("bandwidth_max_bytes_per_s", c.bandwidth_max_bytes_per_s);
  if (V::kReads || c.by_caller) v("by_caller", c.by_caller);  // stored records are short
}

template <typename V>
void Fields(V& v, BlockDensityModel& d) {
  v("block_elements", d.block_elements);
  v("own", d.own);
  v("union_of", d.union_of);
}

template <typename V>
void Fields(V& v, MeasuredGain& m) {
  v("codec", m.codec);
  v("collective", m.collective);
  v("bits", m.bits);
  v("ratio", m.ratio);
  v("gain", m.gain);
  v("predicted", m.predicted);
}

template <typename V>
void Fields(V& v, BucketModel& b) {
  v("key", b.key);
  v("elements", b.elements);
  v("order", b.order);
  v("ready_s", b.ready_s);
  v("gain_ratios", b.gain_ratios);
  v("gains", b.gains);
  v("peak_over_rms", b.peak_over_rms);
  v("residual_ratio", b.residual_ratio);
  v("block_densities", b.block_densities);
  v("measured_gains", b.measured_gains);
  if (V::kReads || b.element_bytes != 4) v("element_bytes", b.element_bytes);
  if (V::kReads || b.sharded) v("sharded", b.sharded);
}

template <typename V>
void Fields(V& v, ChoiceModel& c) {
  v("codec", c.codec);
  v("collective", c.collective);
  v("ratio", c.ratio);
  v("bits", c.bits);
  v("segment_bytes", c.segment_bytes);
}

template <typename V>
void Fields(V& v, HeldChange& h) {
  v("to", h.to);
  v("layout_only", h.layout_only);
  v("failures", h.failures);
  v("held_s", h.held_s);
  if (V::kReads || h.every != 0) v("every", h.every);
}

/// Most plans have none.
template <typename V>
void SyncFields(V& v, SyncModel& s) {
  std::vector<double> numbers;
  if (s.local()) {
    numbers = {static_cast<double>(s.every),
               static_cast<double>(s.overlap),
               s.outer == OuterKind::kSgdNesterov ? 1.0 : 0.0,
               s.rate,
               s.momentum,
               static_cast<double>(s.fragments),
               s.mix};
  }
  if (V::kReads || !numbers.empty()) v("sync", numbers);
  if (numbers.size() != 7) return;
  const auto count = [](double number) {
    return static_cast<uint32_t>(std::clamp(number, 0.0, 1.0 * kSyncEveryMax));
  };
  s = {.every = std::max(1u, count(numbers[0])),
       .overlap = count(numbers[1]),
       .outer = numbers[2] != 0 ? OuterKind::kSgdNesterov : OuterKind::kAverage,
       .rate = numbers[3],
       .momentum = numbers[4],
       .fragments = std::max(1u, count(numbers[5])),
       .mix = numbers[6]};
}

template <typename V>
void LocalFields(V& v, LocalSteps& l) {
  SyncFields(v, l.sync);
  if (V::kReads || l.possible) v("local_steps", l.possible);
  if (V::kReads || l.unable_rank >= 0) v("local_unable_rank", l.unable_rank);
  if (V::kReads || l.signal_share > 0) v("signal_share", l.signal_share);
  if (V::kReads || l.consensus_share > 0) v("consensus_share", l.consensus_share);
  if (V::kReads || !l.progress.empty()) v("sync_progress", l.progress);
}

template <typename V>
void Fields(V& v, FormerPlan& f) {
  v("choices", f.choices);
  v("ring_order", f.layout.ring_order);
  v("ring_speedup", f.speedup.ring);
  v("shard_shares", f.layout.shard_shares);
  v("shard_speedup", f.speedup.shards);
  SyncFields(v, f.sync);
}

template <typename V>
void Fields(V& v, NodeLinks& n) {
  v("nodes", n.nodes);
  v("s_per_byte", n.s_per_byte);
  v("relative_deviation", n.relative_deviation);
}

template <typename V>
void Fields(V& v, SharedMemory& m) {
  v("lowest_ranks", m.lowest_ranks);
  v("latency_s", m.latency_s);
  v("s_per_byte", m.s_per_byte);
}

/// Most jobs have no devices, and records of decisions are to be small.
template <typename V>
void DeviceFields(V& v, GradientDevices& d, SharedMemory& m) {
  std::vector<double> numbers;
  if (d.known) {
    numbers = {d.copy_out_s_per_byte, d.copy_in_s_per_byte, d.linked ? 1.0 : 0.0,
               m.device_latency_s, m.device_s_per_byte};
  }
  v("devices", numbers);
  if (numbers.size() != 5) return;
  d = {.copy_out_s_per_byte = numbers[0],
       .copy_in_s_per_byte = numbers[1],
       .known = true,
       .linked = numbers[2] != 0};
  m.device_latency_s = numbers[3];
  m.device_s_per_byte = numbers[4];
}

template <typename V>
void Fields(V& v, Snapshot& s) {
  v("job", s.job);
  v("world", s.world);
  v("step", s.step);
  v("trigger", s.trigger);
  v("buckets", s.buckets);
  v("codecs", s.codecs);
  v("collectives", s.collectives);
  v("compute_s", s.compute_s);
  v("backward_s", s.backward_s);
  v("latency_s", s.latency_s);
  v("bandwidth_bytes_per_s", s.bandwidth_bytes_per_s);
  v("reduce_s_per_byte", s.reduce_s_per_byte);
  v("codec_parallelism", s.codec_parallelism);
  v("progress", s.progress);
  v("progress_gain_seen", s.progress_gain_seen);
  v("incumbent", s.incumbent);
  v("node_links", s.node_links);
  v("memory", s.memory);
  DeviceFields(v, s.devices, s.memory);
  v("ring_order", s.layout.ring_order);
  v("ring_speedup", s.speedup.ring);
  v("shard_shares", s.layout.shard_shares);
  v("shard_speedup", s.speedup.shards);
  LocalFields(v, s.local);
  v("held", s.held);
  v("former", s.former);
  v("seconds_since_switch", s.seconds_since_switch);
  v("measured_step_s", s.measured_step_s);
  v("recent_switches", s.recent_switches);
  v("metadata_overhead_s", s.metadata_overhead_s);
  v("window_bytes", s.window_bytes);
  v("host_bandwidth_bytes_per_s", s.host_bandwidth_bytes_per_s);
}

}  // namespace

std::string SerializeSnapshot(const Snapshot& snapshot) {
  Json json;
  Snapshot copy = snapshot;  // the field list is shared with the reader and so takes references
  Writer writer(&json);
  Fields(writer, copy);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

StatusOr<Snapshot> ParseSnapshot(std::string_view text) {
  if (text.size() > kSnapshotBytesMax) {
    return InvalidArgument(
        StrCat("snapshot: expected at most ", kSnapshotBytesMax, " bytes, found ", text.size()));
  }
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return InvalidArgument(
        StrCat("snapshot: expected JSON, found ", text.size(), " bytes that are not"));
  }
  Snapshot snapshot;
  Reader reader(json, "snapshot");
  if (json.is_object()) Fields(reader, snapshot);
  WEIR_RETURN_IF_ERROR(reader.Finish());
  return snapshot;
}

}  // namespace weir
