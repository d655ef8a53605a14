// SPDX-License-Identifier: Apache-2.0
#include "deploy/aggregator/lease_api.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "datapath/aggregation/io/address.h"
#include "datapath/base/json.h"

namespace weir::aggregation {
namespace {

using nlohmann::json;

constexpr uint32_t kCutoffMsMax = 60'000;

/// Reads an integer within 0 .. max into any type that can hold it.
template <typename T>
Status Integer(ObjectReader* reader, const char* key, uint32_t max, T* out) {
  auto value = static_cast<uint32_t>(*out);
  WEIR_RETURN_IF_ERROR(reader->Uint32(key, &value));
  if (value > max) {
    return InvalidArgument(
        StrCat(reader->PathOf(key), ": expected at most ", max, ", found ", value));
  }
  *out = static_cast<T>(value);
  return OkStatus();
}

Status ReadWorkers(ObjectReader* reader, LeaseRequest* request) {
  WEIR_ASSIGN_OR_RETURN(const json* workers, reader->FindArray("workers", kWorkersMax));
  if (workers == nullptr || workers->empty()) {
    return InvalidArgument("lease.workers: expected 1 to 64 addresses, found none");
  }
  for (const json& worker : *workers) {
    if (!worker.is_string()) {
      return InvalidArgument("lease.workers: expected texts IPV4:PORT");
    }
    auto address = ParseSourceAddress(worker.get_ref<const std::string&>());
    if (!address.ok()) return Annotate(address.status(), "lease.workers");
    request->workers.push_back(*address);
  }
  request->terms.workers = static_cast<int>(request->workers.size());
  return OkStatus();
}

Status ReadLevels(ObjectReader* reader, Lease* terms) {
  WEIR_ASSIGN_OR_RETURN(const json* levels, reader->FindArray("levels", kTableLevels));
  if (levels == nullptr) return OkStatus();
  for (const json& level : *levels) {
    if (!level.is_number_unsigned() || level.get<uint64_t>() > 255) {
      return InvalidArgument("lease.levels: expected integers of 0 to 255");
    }
    terms->levels.push_back(static_cast<uint8_t>(level.get<uint64_t>()));
  }
  return OkStatus();
}

Status ReadTerms(ObjectReader* reader, Lease* terms) {
  std::string mode;
  WEIR_RETURN_IF_ERROR(reader->String("mode", 16, &mode));
  WEIR_ASSIGN_OR_RETURN(terms->mode, ParseMode(mode));
  WEIR_RETURN_IF_ERROR(
      Integer(reader, "slots", std::numeric_limits<uint16_t>::max(), &terms->slots));
  WEIR_RETURN_IF_ERROR(Integer(reader, "lanes", kPacketTableLanesMax, &terms->lanes));
  WEIR_RETURN_IF_ERROR(Integer(reader, "columns", kColumnsMax, &terms->columns));
  WEIR_RETURN_IF_ERROR(Integer(reader, "world", kWorldMax, &terms->world));
  WEIR_RETURN_IF_ERROR(Integer(reader, "sum_bits", 16, &terms->sum_bits));
  WEIR_RETURN_IF_ERROR(Integer(reader, "quorum", kWorkersMax, &terms->quorum));
  uint32_t cutoff_ms = 0;
  WEIR_RETURN_IF_ERROR(Integer(reader, "cutoff_ms", kCutoffMsMax, &cutoff_ms));
  terms->cutoff = std::chrono::milliseconds(cutoff_ms);
  WEIR_RETURN_IF_ERROR(reader->Boolean("little_endian", &terms->little_endian));
  WEIR_RETURN_IF_ERROR(reader->Boolean("checked", &terms->checked));
  return ReadLevels(reader, terms);
}

Status ReadParent(ObjectReader* reader, LeaseRequest* request) {
  const json* object = reader->Find("parent");
  if (object == nullptr) return OkStatus();
  WEIR_ASSIGN_OR_RETURN(ObjectReader parent, ObjectReader::Make(*object, "lease.parent"));
  ParentLease lease;
  std::string address;
  WEIR_RETURN_IF_ERROR(parent.String("address", 64, &address));
  const auto parsed = ParseSourceAddress(address);
  if (!parsed.ok()) return Annotate(parsed.status(), "lease.parent.address");
  lease.address = *parsed;
  WEIR_RETURN_IF_ERROR(Integer(&parent, "lease", std::numeric_limits<uint16_t>::max(), &lease.id));
  WEIR_RETURN_IF_ERROR(
      Integer(&parent, "epoch", std::numeric_limits<uint32_t>::max(), &lease.epoch));
  WEIR_RETURN_IF_ERROR(Integer(&parent, "workers", kWorkersMax, &lease.workers));
  std::string cookie;
  WEIR_RETURN_IF_ERROR(parent.String("cookie", 16, &cookie));
  WEIR_ASSIGN_OR_RETURN(lease.cookie, ParseHex64(cookie));
  WEIR_RETURN_IF_ERROR(parent.RejectUnknown());
  request->parent = lease;
  return OkStatus();
}

json LeaseObject(const LeaseGrant& grant) {
  json workers = json::array();
  for (const SourceAddress worker : grant.workers) workers.push_back(AddressText(worker));
  json parent;  // null: none
  if (grant.parent.has_value()) parent = AddressText(grant.parent->address);
  json levels = json::array();
  for (const uint8_t level : grant.lease.levels) levels.push_back(level);
  return {{"job", grant.job},
          {"parent", std::move(parent)},
          {"plane", "software"},
          {"lease", grant.lease.id},
          {"epoch", grant.lease.epoch},
          {"mode", std::string(ModeName(grant.lease.mode))},
          {"address", AddressText(grant.address)},
          {"port", grant.address & 0xFFFF},
          {"shard", grant.shard},
          {"first_slot", grant.range.first},
          {"slots", grant.range.count},
          {"lanes", grant.lease.lanes},
          {"columns", grant.lease.columns},
          {"sum_bits", grant.lease.sum_bits},
          {"levels", std::move(levels)},
          {"quorum", grant.lease.quorum},
          {"cutoff_ms",
           std::chrono::duration_cast<std::chrono::milliseconds>(grant.lease.cutoff).count()},
          {"checked", grant.lease.checked},
          {"workers", std::move(workers)}};
}

json WaitingObject(const LeaseGrant& grant, const StalledRound& stalled) {
  json missing = json::array();
  for (const int worker : stalled.missing) {
    const std::string address = AddressText(grant.workers[static_cast<size_t>(worker)]);
    missing.push_back({{"worker", worker}, {"address", address}});
  }
  return {{"slot", stalled.round.slot},
          {"round", stalled.round.round},
          {"operation", stalled.round.operation},
          {"age_s", ToSeconds(stalled.age)},
          {"missing", std::move(missing)}};
}

}  // namespace

StatusOr<LeaseRequest> ParseLeaseRequest(std::string_view text) {
  WEIR_ASSIGN_OR_RETURN(const json document, ParseJson(text, kLeaseBytesMax));
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(document, "lease"));
  LeaseRequest request;
  WEIR_RETURN_IF_ERROR(reader.String("job", 256, &request.job));
  WEIR_RETURN_IF_ERROR(reader.String("owner", kOwnerMax, &request.owner));
  WEIR_RETURN_IF_ERROR(ReadTerms(&reader, &request.terms));
  WEIR_RETURN_IF_ERROR(ReadWorkers(&reader, &request));
  WEIR_RETURN_IF_ERROR(ReadParent(&reader, &request));
  WEIR_RETURN_IF_ERROR(reader.RejectUnknown());
  return request;
}

std::string GrantJson(const LeaseGrant& grant) {
  json object = LeaseObject(grant);
  object["cookie"] = Hex64(grant.lease.cookie);
  object["owner"] = grant.owner;
  return DumpJson(object) + "\n";
}

std::string LeasesJson(const std::vector<LeaseStatus>& leases) {
  json all = json::array();
  for (const LeaseStatus& status : leases) {
    json object = LeaseObject(status.grant);
    object["idle_s"] = ToSeconds(status.idle);
    if (status.oldest.has_value()) object["waiting"] = WaitingObject(status.grant, *status.oldest);
    all.push_back(std::move(object));
  }
  return DumpJson({{"leases", std::move(all)}}) + "\n";
}

std::string CapacityJson(const AggregatorLimits& limits, const std::vector<ShardStatus>& shards,
                         double goodput_bits_per_s) {
  uint64_t slots_free = 0, slots_free_of_shard = 0, leases_free = 0;
  for (const ShardStatus& shard : shards) {
    const uint64_t free = limits.slots - std::min(limits.slots, shard.slots_granted);
    slots_free += free;
    slots_free_of_shard = std::max(slots_free_of_shard, free);
    leases_free += limits.leases - std::min(limits.leases, shard.leases);
  }
  return DumpJson({{"shards", shards.size()},
                   {"slots", uint64_t{limits.slots} * shards.size()},
                   {"slots_free", slots_free},
                   {"slots_free_of_shard", slots_free_of_shard},
                   {"slots_per_job", limits.slots_per_job},
                   {"leases_free", leases_free},
                   {"lanes_max", kPacketLanesMax},
                   {"workers_max", kWorkersMax},
                   {"goodput_bits_per_s", goodput_bits_per_s}}) +
         "\n";
}

std::string ErrorBody(const Status& status) {
  return DumpJson({{"code", static_cast<int>(status.code())},
                   {"message", Message(status)},
                   {"details", json::array()}}) +
         "\n";
}

int HttpStatus(StatusCode code) {
  switch (static_cast<int>(code)) {
    case static_cast<int>(StatusCode::kOk):
      return 200;
    case static_cast<int>(StatusCode::kInvalidArgument):
    case static_cast<int>(StatusCode::kFailedPrecondition):
      return 400;
    case static_cast<int>(StatusCode::kUnauthenticated):
      return 401;
    case static_cast<int>(StatusCode::kPermissionDenied):
      return 403;
    case static_cast<int>(StatusCode::kNotFound):
      return 404;
    case static_cast<int>(StatusCode::kResourceExhausted):
      return 429;
    case static_cast<int>(StatusCode::kUnavailable):
      return 503;
    case static_cast<int>(StatusCode::kDeadlineExceeded):
      return 504;
  }
  return 500;
}

}  // namespace weir::aggregation
