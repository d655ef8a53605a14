// SPDX-License-Identifier: Apache-2.0
#include "controller/messages/late_ranks.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "datapath/base/status.h"

namespace weir {
namespace {

int Percent(double ratio) { return static_cast<int>(std::lround(100 * ratio)); }

bool Taken(const v1::Rank& rank) {
  return rank.starved() || rank.cores().wait_ratio() >= kTakenWaitRatio ||
         rank.cores().steal_ratio() >= kTakenStealRatio;
}

std::string Evidence(const v1::Rank& rank) {
  const v1::CoreUse& cores = rank.cores();
  std::string text;
  if (cores.steal_ratio() >= kTakenStealRatio) {
    text = StrCat("steal ", Percent(cores.steal_ratio()), " %");
  }
  if (cores.wait_ratio() == 0) {  // its agent cannot see the process
    return text.empty() ? StrCat("steal ", Percent(cores.steal_ratio()), " %") : text;
  }
  return StrCat(text, text.empty() ? "" : ", ", "rank ", rank.rank(), " waits for one for ",
                Percent(cores.wait_ratio()), " % of the time in which it could run");
}

// "the other 3 nodes wait for it".
std::string Waiting(const v1::NcclConclusion& nccl) {
  if (nccl.others() == 1) return "the other node waits for it";
  const std::string all = nccl.waiting() == nccl.others() ? "" : StrCat(nccl.waiting(), " of ");
  return StrCat(all, "the other ", nccl.others(), " nodes wait for it");
}

}  // namespace

std::vector<LateRanks> LateRanksOf(const v1::Job& job) {
  std::vector<LateRanks> late;
  std::set<std::string> gpus;  // nodes whose late GPUs are told
  for (const v1::Rank& rank : job.ranks()) {
    if (!(rank.slower() > 1)) continue;
    std::string text = StrCat("rank ", rank.rank(), " on ", rank.node(), " computes ",
                              std::round(rank.slower() * 10) / 10,
                              " times slower than the middle rank, and the others wait for it");
    const bool seen = rank.nccl().cause() == v1::NCCL_CAUSE_GPUS_LATE;
    if (seen) {
      gpus.insert(rank.node());
      text += StrCat("; ", Percent(rank.nccl().own_gpu_ratio()),
                     " % of NCCL's waiting there is for its own GPUs");
    }
    late.push_back({std::move(text), rank.node(), false, seen});
  }
  for (const v1::Rank& rank : job.ranks()) {
    const v1::NcclConclusion& nccl = rank.nccl();
    if (nccl.cause() != v1::NCCL_CAUSE_GPUS_LATE || !gpus.insert(rank.node()).second) continue;
    late.push_back(
        {StrCat("the GPUs of ", rank.node(), " are late: ", Percent(nccl.own_gpu_ratio()),
                " % of NCCL's waiting there is for its own GPUs, and ", Waiting(nccl)),
         rank.node(), false, true});
  }
  std::set<std::string> taken;  // of the ranks of a node the first is named
  for (const v1::Rank& rank : job.ranks()) {
    if (!rank.has_cores() || !Taken(rank)) continue;
    if (!taken.insert(rank.node()).second) continue;
    const bool steal = rank.cores().steal_ratio() >= kTakenStealRatio;
    std::string text = StrCat("the cores of ", rank.node(), " are taken (", Evidence(rank), ")");
    if (rank.starved()) text += "; until that ends, slow steps count against no link and no codec";
    late.push_back({std::move(text), rank.node(), steal});
  }
  return late;
}

std::vector<BindingWire> BindingWiresOf(const v1::Job& job) {
  std::vector<BindingWire> wires;
  std::set<std::string> told;
  for (const v1::Rank& rank : job.ranks()) {
    const v1::NcclConclusion& nccl = rank.nccl();
    if (nccl.cause() != v1::NCCL_CAUSE_WIRE_BINDS || !told.insert(rank.node()).second) continue;
    const bool alone = 2 * nccl.waiting() > nccl.others();
    wires.push_back({StrCat("the wire of ", rank.node(), " binds: ", Percent(nccl.wire_ratio()),
                            " % of NCCL's waiting there is for the network",
                            alone ? ", and " + Waiting(nccl) : ""),
                     rank.node(), alone});
  }
  return wires;
}

}  // namespace weir
