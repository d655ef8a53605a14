// SPDX-License-Identifier: Apache-2.0
#include "datapath/collective/operands.h"

#include <algorithm>

#include "datapath/collective/group.h"

namespace weir {
namespace {

Status CheckPayload(Group& group, size_t bytes, size_t bytes_max, std::string_view where = "") {
  if (bytes_max == 0 || bytes <= bytes_max) return OkStatus();
  return group.Fail(
      InvalidArgument(StrCat("payload of rank ", group.rank(), where, ": expected at most ",
                             bytes_max, " bytes, found ", bytes)));
}

}  // namespace

Status PrepareOperand(Group& group, const Lanes& lanes) {
  if (lanes.lane_bytes == 0 || lanes.bytes.size() % lanes.lane_bytes != 0) {
    return group.Fail(InvalidArgument(StrCat("expected whole lanes of ", lanes.lane_bytes,
                                             " bytes, found ", lanes.bytes.size(), " bytes")));
  }
  if (lanes.accumulate) return OkStatus();
  return group.Fail(InvalidArgument("expected a function that adds lanes, found none"));
}

Status PrepareOperand(Group& group, GatherOperand& operand) {
  if (operand.gathered == nullptr) {
    return group.Fail(InvalidArgument("expected a place for the gathered payloads, found none"));
  }
  WEIR_RETURN_IF_ERROR(CheckPayload(group, operand.payload.size(), operand.payload_bytes_max));
  operand.gathered->resize(group.size());
  (*operand.gathered)[group.rank()].assign(operand.payload.begin(), operand.payload.end());
  return OkStatus();
}

Status PrepareOperand(Group& group, const SharedIndexOperand& operand) {
  if (operand.open && operand.values != nullptr) return OkStatus();
  return group.Fail(InvalidArgument("expected open and values, found one missing"));
}

Status PrepareOperand(Group& group, const UnionIndexOperand& operand) {
  if (operand.open && operand.values != nullptr) return OkStatus();
  return group.Fail(InvalidArgument("expected open and values, found one missing"));
}

Status PrepareOperand(Group& group, const SparseSumOperand& operand) {
  const auto& [indices, values] = operand.selected;
  const bool ascends =
      std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) == indices.end();
  if (indices.size() == values.size() && ascends &&
      (indices.empty() || indices.back() < operand.elements)) {
    return OkStatus();
  }
  return group.Fail(InvalidArgument(StrCat("expected a value each for ascending indices below ",
                                           operand.elements, ", found ", indices.size(),
                                           " indices and ", values.size(), " values")));
}

Status PrepareOperand(Group& group, const RegionOperand& operand) {
  if (operand.round == SumRound::kDistribute) {
    if (operand.gathered == nullptr) {
      return group.Fail(InvalidArgument("expected a place for the gathered sums, found none"));
    }
    return CheckPayload(group, operand.sum.size(), operand.payload_bytes_max,
                        StrCat(", the sum of region ", group.rank()));
  }
  if (!operand.add) return group.Fail(InvalidArgument("expected a function that adds, found none"));
  if (operand.payloads.size() != static_cast<size_t>(group.size())) {
    return group.Fail(InvalidArgument(
        StrCat("expected ", group.size(), " regions, found ", operand.payloads.size())));
  }
  for (size_t region = 0; region < operand.payloads.size(); ++region) {
    WEIR_RETURN_IF_ERROR(CheckPayload(group, operand.payloads[region].size(),
                                      operand.payload_bytes_max, StrCat(", region ", region)));
  }
  return OkStatus();
}

Status PrepareOperand(Group& group, const NodeSumOperand& operand) {
  WEIR_RETURN_IF_ERROR(PrepareOperand(group, operand.lanes));
  if (operand.round == SumRound::kAdd) return OkStatus();
  if (operand.device == nullptr ? !operand.add : !operand.replace_sum) {
    return group.Fail(InvalidArgument("expected a function that adds, found none"));
  }
  return CheckPayload(group, operand.sum.size(), operand.payload_bytes_max,
                      ", the sum of its node");
}

Status PrepareOperand(Group& /*group*/, const CallerSumOperand& /*operand*/) { return OkStatus(); }

}  // namespace weir
