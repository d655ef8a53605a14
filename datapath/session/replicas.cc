// SPDX-License-Identifier: Apache-2.0
#include "datapath/session/replicas.h"

#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <map>

#include "datapath/base/json.h"
#include "datapath/collective/primitives.h"

namespace weir {
namespace {

constexpr size_t kRanksNamedMax = 16;

// The first message of a comparison, which every rank sends.
struct Summary {
  uint64_t count = 0, sums = 0, has_parameters = 0, parameters = 0;
};
static_assert(sizeof(Summary) == 32);

template <typename T>
StatusOr<std::vector<T>> Gather(Group& group, std::span<const T> own) {
  std::vector<T> all(own.size() * static_cast<size_t>(group.size()));
  WEIR_RETURN_IF_ERROR(
      SmallAllGather(group, std::as_bytes(own), std::as_writable_bytes(std::span(all))));
  return all;
}

// Returns `verdict`, which all ranks have reached, once all ranks are here. A rank that returned
// earlier would end its transport, and others would report its loss instead of the verdict.
Status OnAllRanks(Group& group, Status verdict) {
  (void)Barrier(group);
  return verdict;
}

std::string Names(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kRanksNamedMax); ++i) {
    names += StrCat(i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kRanksNamedMax)
    names += StrCat(" and ", ranks.size() - kRanksNamedMax, " more");
  return names;
}

// Says which ranks hold which hash, the largest set of ranks first: "ranks 0, 2 hold
// 00c0ffee00c0ffee, rank 1 holds 1234123412341234". Empty if all hold the same. hash_of(rank)
// returns nullopt for a rank that takes no part.
std::string Sides(int world, const std::function<std::optional<uint64_t>(int)>& hash_of) {
  std::map<uint64_t, std::vector<int>> holders;
  for (int rank = 0; rank < world; ++rank) {
    if (const auto hash = hash_of(rank)) holders[*hash].push_back(rank);
  }
  if (holders.size() < 2) return "";
  std::vector<std::pair<uint64_t, std::vector<int>>> sides(holders.begin(), holders.end());
  std::stable_sort(sides.begin(), sides.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::string text;
  for (const auto& [hash, ranks] : sides) {
    text += StrCat(text.empty() ? "" : ", ", Names(ranks), ranks.size() == 1 ? " holds " : " hold ",
                   Hex64(hash));
  }
  return text;
}

}  // namespace

uint64_t HashBytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Status CompareReplicas(Group& group, const ReplicaDigest& own) {
  std::vector<uint64_t> hashes;
  for (const ReplicaDigest::Sum& sum : own.sums) hashes.push_back(sum.hash);
  const Summary summary = {hashes.size(), HashBytes(std::as_bytes(std::span(hashes))),
                           own.parameters.has_value(), own.parameters.value_or(0)};
  WEIR_ASSIGN_OR_RETURN(const std::vector<Summary> all,
                        Gather(group, std::span<const Summary>(&summary, 1)));
  const int world = group.size();
  for (int rank = 0; rank < world; ++rank) {
    if (all[rank].count == summary.count) continue;
    return group.Fail(
        Internal(StrCat("rank ", rank, " had ", all[rank].count, " operations in the step, rank ",
                        group.rank(), " had ", summary.count)));
  }
  if (!Sides(world, [&](int rank) { return std::optional(all[rank].sums); }).empty()) {
    const StatusOr<std::vector<uint64_t>> every = Gather(group, std::span<const uint64_t>(hashes));
    if (!every.ok()) {
      return DataLoss(StrCat("the ranks were delivered different sums, of a bucket not known: ",
                             Message(every.status())));
    }
    for (size_t i = 0; i < hashes.size(); ++i) {
      const std::string sides = Sides(world, [&](int rank) {
        return std::optional((*every)[static_cast<size_t>(rank) * hashes.size() + i]);
      });
      if (sides.empty()) continue;
      return OnAllRanks(group, DataLoss(StrCat("the ranks were delivered different sums of ",
                                               own.sums[i].name, ": ", sides)));
    }
    return group.Fail(Internal("hashes of sums agree one by one and not together"));
  }
  const std::string sides = Sides(world, [&](int rank) {
    return all[rank].has_parameters != 0 ? std::optional(all[rank].parameters) : std::nullopt;
  });
  if (sides.empty()) return OkStatus();
  return OnAllRanks(group, DataLoss(StrCat("the ranks' parameters differ: ", sides)));
}

}  // namespace weir
