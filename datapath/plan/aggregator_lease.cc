// SPDX-License-Identifier: Apache-2.0
#include "datapath/plan/aggregator_lease.h"

#include <algorithm>
#include <limits>
#include <span>

#include "datapath/aggregation/io/address.h"
#include "datapath/base/json.h"
#include "datapath/collective/collective.h"

namespace weir {
namespace {

Status CheckSixteenBits(const char* field, uint32_t value) {
  if (value <= std::numeric_limits<uint16_t>::max()) return OkStatus();
  return InvalidArgument(StrCat(field, ": expected at most 65535, found ", value));
}

StatusOr<aggregation::Lease> Terms(const AggregatorLease& lease, int world) {
  WEIR_ASSIGN_OR_RETURN(const Collective* collective, Collectives().Find(lease.collective));
  const std::string& mode = collective->Traits().lease_mode;
  if (mode.empty()) return InvalidArgument("the collective uses no aggregator");
  if (lease.mode != mode) {
    return InvalidArgument(StrCat("mode: expected '", mode, "', found '", lease.mode, "'"));
  }
  const auto address = aggregation::ParseSourceAddress(lease.address);
  if (!address.ok()) return Annotate(address.status(), "address");
  WEIR_RETURN_IF_ERROR(CheckSixteenBits("id", lease.id));
  WEIR_RETURN_IF_ERROR(CheckSixteenBits("slots", lease.slots));
  WEIR_RETURN_IF_ERROR(CheckSixteenBits("lanes", lease.lanes));
  if (lease.columns > aggregation::kColumnsMax) {
    return InvalidArgument(
        StrCat("columns: expected at most ", aggregation::kColumnsMax, ", found ", lease.columns));
  }
  aggregation::Lease terms;
  WEIR_ASSIGN_OR_RETURN(terms.mode, aggregation::ParseMode(lease.mode));
  terms.id = static_cast<uint16_t>(lease.id);
  terms.epoch = lease.epoch;
  terms.cookie = lease.cookie;
  terms.workers = world;
  terms.slots = static_cast<uint16_t>(lease.slots);
  terms.lanes = static_cast<uint16_t>(lease.lanes);
  terms.columns = static_cast<uint8_t>(lease.columns);
  terms.sum_bits = static_cast<int>(std::min<uint32_t>(lease.sum_bits, 255));
  terms.levels = lease.levels;
  terms.quorum = static_cast<int>(std::min<uint32_t>(lease.quorum, INT32_MAX));
  terms.cutoff = std::chrono::microseconds(lease.cutoff_us);
  terms.checked = !lease.unchecked;
  WEIR_RETURN_IF_ERROR(aggregation::Validate(terms));
  return terms;
}

}  // namespace

StatusOr<aggregation::Lease> TermsOf(const AggregatorLease& lease, int world) {
  StatusOr<aggregation::Lease> terms = Terms(lease, world);
  if (terms.ok()) return terms;
  return Annotate(terms.status(), StrCat("lease of collective '", lease.collective, "' on '",
                                         lease.aggregator, "'"));
}

namespace {

std::string LevelsText(std::span<const uint8_t> levels) {
  std::string text;
  for (const uint8_t level : levels) text += StrCat(text.empty() ? "" : ",", int{level});
  return text;
}

}  // namespace

Status CheckTable(const AggregatorLease& lease, const CodecSetting& setting) {
  std::vector<uint8_t> expected = setting.lane_levels;
  if (expected.empty()) return InvalidArgument("the codec's setting has no table of levels");
  expected.resize(aggregation::kTableLevels, expected.back());
  if (static_cast<int>(lease.sum_bits) == setting.bits && lease.levels == expected) {
    return OkStatus();
  }
  return InvalidArgument(StrCat("table of the lease: expected ", setting.bits, " bits and levels ",
                                LevelsText(expected), ", found ", lease.sum_bits,
                                " bits and levels ", LevelsText(lease.levels)));
}

// Columns, table and quorum are left out where a lease has none, so that the texts of leases
// without them have not changed since those were added.
std::string CanonicalText(const AggregatorLease& lease) {
  return StrCat(
      "lease|", lease.collective, "|", lease.aggregator, "|", lease.address, "|", lease.mode, "|",
      lease.id, "|", lease.epoch, "|", Hex64(lease.cookie), "|", lease.slots, "|", lease.lanes,
      lease.columns == 0 ? "" : StrCat("|", lease.columns),
      lease.sum_bits == 0 ? "" : StrCat("|", lease.sum_bits, "|", LevelsText(lease.levels)),
      lease.quorum == 0 ? "" : StrCat("|quorum|", lease.quorum, "|", lease.cutoff_us),
      lease.unchecked ? "|unchecked" : "", "\n");
}

}  // namespace weir
