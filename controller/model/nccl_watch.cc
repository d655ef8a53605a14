// SPDX-License-Identifier: Apache-2.0
#include "controller/model/nccl_watch.h"

#include <iterator>

namespace weir {
namespace {

bool Fell(const NcclObservation& before, const NcclObservation& now) {
  return now.operations < before.operations || now.own_gpu_s < before.own_gpu_s ||
         now.peer_s < before.peer_s || now.wire_s < before.wire_s ||
         now.arrival_s < before.arrival_s;
}

double Waited(const NcclObservation& from, const NcclObservation& to) {
  return to.own_gpu_s - from.own_gpu_s + to.peer_s - from.peer_s + to.wire_s - from.wire_s +
         to.arrival_s - from.arrival_s;
}

NcclShares SharesOf(const NcclObservation& from, const NcclObservation& to) {
  const double waited_s = Waited(from, to);
  return {.own_gpu = (to.own_gpu_s - from.own_gpu_s) / waited_s,
          .peer = (to.peer_s - from.peer_s) / waited_s,
          .wire = (to.wire_s - from.wire_s) / waited_s,
          .arrival = (to.arrival_s - from.arrival_s) / waited_s};
}

}  // namespace

void NcclWatch::Add(double now_s, const std::string& node, const NcclObservation& sums) {
  const auto [place, is_first] = nodes_.try_emplace(node);
  Node& known = place->second;
  const bool goes_on = !is_first && now_s - known.newest_s <= kFreshS && !Fell(known.newest, sums);
  known.newest = sums;
  known.newest_s = now_s;
  if (goes_on) {
    const double passed_s = now_s - known.begin_s;
    if (passed_s < kWindowS) return;
    const bool enough = sums.operations - known.begin.operations >= kOperationsMin &&
                        Waited(known.begin, sums) >= kWaitMinS;
    if (!enough && passed_s < kWindowMaxS) return;
    if (enough) EndWindow(now_s, place, SharesOf(known.begin, sums));
  }
  known.begin = sums;
  known.begin_s = now_s;
}

void NcclWatch::EndWindow(double now_s, Nodes::iterator place, const NcclShares& shares) {
  Node& node = place->second;
  const bool in_a_row = node.shares.has_value() && now_s - node.ended_s <= kFreshS;
  if (!in_a_row) {
    node.seen = NcclCause::kNone;
    node.concluded = {};
  }
  node.shares = shares;
  node.ended_s = now_s;
  const NcclConclusion newest = Judge(now_s, place);
  if (newest.cause == node.seen || newest.cause == node.concluded.cause) {
    node.concluded = newest;
  } else if (node.seen != node.concluded.cause) {
    node.concluded = {};  // neither of the last two has shown it
  }
  node.seen = newest.cause;
}

NcclConclusion NcclWatch::Judge(double now_s, Nodes::iterator place) {
  const NcclShares& own = *place->second.shares;
  NcclConclusion found{.shares = own};
  int wait_for_gpus = 0, wait_for_wire = 0;
  for (auto other = std::next(place); found.others < kOthersMax;) {
    if (other == nodes_.end()) other = nodes_.begin();
    if (other == place) break;
    if (now_s - other->second.newest_s > kFreshS) {
      other = nodes_.erase(other);
      continue;
    }
    const Node& node = (other++)->second;
    if (!node.shares.has_value() || now_s - node.ended_s > kFreshS) continue;
    ++found.others;
    if (node.shares->peer + node.shares->arrival < kWaitingMin) continue;
    wait_for_gpus += node.shares->own_gpu <= own.own_gpu - kApart ? 1 : 0;
    wait_for_wire += node.shares->wire <= own.wire - kApart ? 1 : 0;
  }
  if (own.own_gpu >= kShareMin && 2 * wait_for_gpus > found.others) {
    found.cause = NcclCause::kGpusLate;
    found.waiting = wait_for_gpus;
  } else if (own.wire >= kShareMin) {
    found.cause = NcclCause::kWireBinds;
    found.waiting = wait_for_wire;
  }
  return found;
}

std::optional<NcclConclusion> NcclWatch::Of(const std::string& node, double now_s) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || now_s - found->second.ended_s > kFreshS ||
      found->second.concluded.cause == NcclCause::kNone) {
    return std::nullopt;
  }
  return found->second.concluded;
}

}  // namespace weir
