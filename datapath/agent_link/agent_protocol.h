// SPDX-License-Identifier: Apache-2.0
#pragma once
// The messages between a rank and its agent: the JSON forms of weir.v1.RankMessage (sent) and
// weir.v1.RankCommand (received). Pure; proto/weir/v1/rank.proto gives the meaning of every field.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/status.h"
#include "datapath/codec/measure/codec_loss.h"
#include "datapath/codec/measure/codec_timing.h"
#include "datapath/plan/plan.h"
#include "datapath/plan/plan_activation.h"
#include "datapath/transport/transport.h"
#include "datapath/wire/channel_keys.h"

namespace weir {

inline constexpr size_t kCommandBytesMax = 4u << 20;
inline constexpr size_t kParameterNamesSentMax = 64;
inline constexpr size_t kEventParameterBytesMax = 256;
inline constexpr size_t kJobLabelsMax = 32;

struct RankHello {
  std::string job;
  int rank = 0, world = 1;
  uint32_t pid = 0;
  std::string library_version;
  std::string datapath_address;
  std::string aggregation_address;  // empty: none
  int lowest_rank = -1;             // the lowest one that shares memory with it; -1: not known
  uint64_t active_plan_version = 0;
  uint64_t step = 0;
  uint64_t epoch = 0;
  std::shared_ptr<const Plan> active_plan;  // may be null
  std::optional<RankProof> proof;           // none: the job has no key
  Protection protection = Protection::kChecked;
  int unauthenticated_peers = 0;  // see Transport
  std::map<std::string, std::string> labels = {};
  bool caller_sums = false;  // the callers of all ranks can sum over a group of their own
  bool local_steps = false;  // the caller does what a plan's `sync` says
  // Outlives the message; null: not measured.
  const std::map<std::string, CodecTiming>* codec_timings = nullptr;
  // The same for gradients on a device, in its place; null: they are in the host's memory.
  const DeviceCodecTimings* device_timings = nullptr;
  bool device_linked = false;  // with the devices of its node
};

struct BucketDescription {
  uint64_t key = 0;
  uint64_t elements = 0;
  uint32_t order = 0;
  std::string dtype;
  std::vector<std::string> parameters;
  bool sharded = false;
};
struct BucketTable {
  std::vector<BucketDescription> buckets;
};

/// The memory in which a bucket was encoded. kNowhere: it was summed without a codec.
enum class EncodedOn { kNowhere, kHost, kDevice };

/// One bucket in one step; seconds are measured with the monotonic clock.
struct BucketSample {
  uint64_t bucket = 0;
  std::string codec, collective;
  double ratio = 1;
  uint32_t bits = 0;
  double ready_s = 0, metadata_s = 0, encode_s = 0, network_s = 0, decode_s = 0;
  uint64_t payload_bytes = 0, bytes_sent = 0;
  double gain = 1;
  double residual_ratio = 0;
  double entry_offset_s = 0;
  EncodedOn encoded_on = EncodedOn::kHost;
};

struct GainCurve {
  uint64_t bucket = 0;
  std::vector<double> ratios, gains;
  double peak_over_rms = 0;
};

/// The shares of a bucket's blocks that are not zero; negative: not measured.
struct BlockDensity {
  uint64_t bucket = 0;
  uint32_t block_elements = 0;
  double own = -1, combined = -1;
};

/// The steps that one of the session spans with local steps; see LocalPeriod in rank.proto.
struct LocalPeriod {
  uint32_t steps = 1, overlap_steps = 0;
  double waited_s = 0, moved_square = 0, mean_square = 0;
};

struct StepReport {
  uint64_t step = 0, plan_version = 0;
  double step_s = 0, compute_s = 0, backward_s = 0, exposed_s = 0;
  bool skipped = false;
  double loss = 0;
  bool has_loss = false;
  std::vector<BucketSample> buckets;
  std::vector<GainCurve> gains;
  std::vector<CodecLoss> codec_losses;
  std::vector<BlockDensity> block_densities;
  std::vector<ArrivalSample> arrivals;
  double device_link_bytes = 0, device_link_s = 0;  // of what devices of a node exchanged
  LocalPeriod period = {};
};

struct PathReport {
  std::vector<PathSample> paths;
  std::vector<TransportAddress> addresses;  // of every rank, as given to Connect
};

struct RankEvent {
  std::string kind;  // as listed in rank.proto
  std::string detail;
  uint64_t step = 0;
  int guilty_rank = -1;
  uint64_t bucket = 0;         // 0: none
  std::string parameter = {};  // at most kEventParameterBytesMax are sent
};

using RankMessage = std::variant<RankHello, BucketTable, StepReport, PathReport, PlanAck, PlanNack,
                                 PlanActive, RankEvent>;

/// Returns the JSON text of a message. Never fails: NaN and infinities become the texts that proto3
/// defines for them, and invalid UTF-8 is replaced. Thread-safe.
std::string EncodeRankMessage(const RankMessage& message);

struct PlanOffer {
  uint64_t version = 0;  // also known when the plan is bad
  std::string nonce;
  StatusOr<Plan> plan = Plan{};  // an error if only the plan is wrong, which is then NACKed
  std::optional<Plan> lease_plan = {};
};
struct PlanArm {
  uint64_t version = 0;
};
struct PlanWithdraw {
  uint64_t version = 0;
};
/// Renews the time for which the active plan may run without word from the controller.
struct PlanLease {
  double lease_s = 0;  // finite; 0: without limit
};
struct RankRefusal {
  std::string reason;
  double retry_after_s = 0;  // 0: the link's default
};
/// The nonce that the agent gives each connection to sign.
struct RankChallenge {
  std::string node, challenge;
};
/// std::monostate: a command of a later version of the protocol, to be ignored.
using RankCommand = std::variant<std::monostate, PlanOffer, PlanArm, PlanWithdraw, RankRefusal,
                                 PlanLease, RankChallenge>;

/// Reads one command. kInvalidArgument: not JSON, or a known command with wrong types. Unknown
/// fields are ignored. Thread-safe.
StatusOr<RankCommand> ParseRankCommand(std::string_view text);

/// This build's codecs and collectives as the JSON of weir.v1.Capabilities, without those that need
/// a process group of the caller. Static text.
const std::string& CapabilitiesJson();
/// The same for ranks that have such a process group and gradients on devices, which run the codecs
/// of these names. Thread-safe.
std::string DeviceCapabilitiesJson(const std::vector<std::string>& on_device);

}  // namespace weir
