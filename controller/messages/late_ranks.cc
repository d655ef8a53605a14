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

}  // namespace

std::vector<LateRanks> LateRanksOf(const v1::Job& job) {
  std::vector<LateRanks> late;
  for (const v1::Rank& rank : job.ranks()) {
    if (!(rank.slower() > 1)) continue;
    late.push_back({StrCat("rank ", rank.rank(), " on ", rank.node(), " computes ",
                           std::round(rank.slower() * 10) / 10,
                           " times slower than the middle rank, and the others wait for it"),
                    rank.node()});
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

}  // namespace weir
