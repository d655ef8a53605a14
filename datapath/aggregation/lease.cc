// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/lease.h"

#include <algorithm>
#include <utility>

namespace weir::aggregation {
namespace {

constexpr std::pair<std::string_view, PacketMode> kModes[] = {{"sum", PacketMode::kSum},
                                                              {"max", PacketMode::kMax},
                                                              {"table", PacketMode::kTable},
                                                              {"sparse", PacketMode::kSparse},
                                                              {"float", PacketMode::kFloat}};

Status Term(std::string_view field, std::string_view expected, int64_t found) {
  return InvalidArgument(StrCat("lease ", field, ": expected ", expected, ", found ", found));
}

Status ValidateTable(const Lease& lease) {
  if (lease.sum_bits != 8 && lease.sum_bits != 16)
    return Term("sum bits", "8 or 16", lease.sum_bits);
  if (lease.lanes % 2 != 0) return Term("lanes", "an even number", lease.lanes);
  const size_t lanes_max = kPacketTableLanesMax * 8 / lease.sum_bits;
  if (lease.lanes > lanes_max) return Term("lanes", StrCat("at most ", lanes_max), lease.lanes);
  if (lease.levels.size() != kTableLevels) {
    return Term("levels", "16", static_cast<int64_t>(lease.levels.size()));
  }
  // Sums must fit their lane, because a carry would silently change the neighbouring lane.
  const int greatest = *std::max_element(lease.levels.begin(), lease.levels.end());
  const int64_t lane_max = (int64_t{1} << lease.sum_bits) - 1;
  if (int64_t{greatest} * lease.workers > lane_max) {
    return Term("levels times workers", StrCat("at most ", lane_max),
                int64_t{greatest} * lease.workers);
  }
  if (lease.cutoff == Duration::zero() && lease.quorum == 0) return OkStatus();
  if (lease.quorum < 1 || lease.quorum > lease.workers) {
    return Term("quorum", "1 .. workers", lease.quorum);
  }
  if (lease.cutoff <= Duration::zero() || lease.cutoff > kCutoffMax) {
    return Term("cut-off", "a time of at most 60 s, in ns", lease.cutoff.count());
  }
  return OkStatus();
}

}  // namespace

std::string_view ModeName(PacketMode mode) {
  for (const auto& [name, known] : kModes) {
    if (known == mode) return name;
  }
  return "unknown";
}

StatusOr<PacketMode> ParseMode(std::string_view name) {
  for (const auto& [known, mode] : kModes) {
    if (known == name) return mode;
  }
  return InvalidArgument(StrCat("lease.mode: expected sum, max, table, sparse or float, found '",
                                name.substr(0, 60), "'"));
}

Status Validate(const Lease& lease) {
  if (lease.epoch == 0) return Term("epoch", "at least 1", 0);
  if (lease.workers < 1 || lease.workers > static_cast<int>(kWorkersMax)) {
    return Term("workers", "1 .. 64", lease.workers);
  }
  const bool tree = lease.mode == PacketMode::kSum || lease.mode == PacketMode::kMax;
  if (lease.world != 0 &&
      (!tree || lease.world < lease.workers || lease.world > static_cast<int>(kWorldMax))) {
    return Term("world", "workers .. 4096, in modes 1 and 2 only", lease.world);
  }
  if (lease.slots == 0) return Term("slots", "at least 1", 0);
  if (lease.lanes == 0) return Term("lanes", "at least 1", 0);
  if (lease.mode != PacketMode::kSparse && lease.columns != 0) {
    return Term("columns", "0", lease.columns);
  }
  if (lease.mode != PacketMode::kTable && (lease.cutoff != Duration::zero() || lease.quorum != 0)) {
    return Term("cut-off and quorum", "in table mode only", lease.quorum);
  }
  switch (lease.mode) {
    case PacketMode::kSum:
    case PacketMode::kMax:
    case PacketMode::kFloat:
      if (lease.lanes > kPacketLanesMax) return Term("lanes", "at most 256", lease.lanes);
      return OkStatus();
    case PacketMode::kTable:
      return ValidateTable(lease);
    case PacketMode::kSparse:
      if (lease.columns == 0 || lease.columns > kColumnsMax) {
        return Term("columns", "1 .. 32", lease.columns);
      }
      if (size_t{lease.lanes} * lease.columns > kPacketLanesMax) {
        return Term("lanes times columns", "at most 256", int64_t{lease.lanes} * lease.columns);
      }
      return OkStatus();
  }
  return Term("mode", "1 .. 5", static_cast<int>(lease.mode));
}

bool Fits(const Lease& lease, const PacketHeader& h) {
  const bool little = (h.flags & kPacketLittleEndian) != 0;
  const bool checked = (h.flags & kPacketChecked) != 0;
  const bool notice = (h.flags & kPacketNotice) != 0;
  return h.lease == lease.id && h.epoch == lease.epoch && h.cookie == lease.cookie &&
         h.mode == lease.mode && h.lanes == lease.lanes && h.columns == lease.columns &&
         h.slot < lease.slots && little == lease.little_endian && (checked || !lease.checked) &&
         (h.mode != PacketMode::kTable || notice ||
          h.detail == static_cast<uint32_t>(lease.sum_bits));
}

PacketHeader RequestHeader(const Lease& lease) {
  PacketHeader h;
  h.mode = lease.mode;
  if (lease.little_endian) h.flags |= kPacketLittleEndian;
  h.columns = lease.columns;
  h.lease = lease.id;
  h.epoch = lease.epoch;
  h.cookie = lease.cookie;
  h.lanes = lease.lanes;
  if (lease.mode == PacketMode::kTable) h.detail = static_cast<uint32_t>(lease.sum_bits);
  return h;
}

size_t StateWords(const Lease& lease) {
  switch (lease.mode) {
    case PacketMode::kSum:
    case PacketMode::kMax:
    case PacketMode::kTable:
      return lease.lanes;
    case PacketMode::kFloat:
      return size_t{lease.lanes} * 2;
    case PacketMode::kSparse:
      return 1 + lease.columns * (1 + size_t{lease.lanes});
  }
  return 0;
}

}  // namespace weir::aggregation
