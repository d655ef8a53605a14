// SPDX-License-Identifier: Apache-2.0
#include "controller/store/etcd/decision_index.h"

namespace weir {
namespace {

using Entries = std::map<int64_t, DecisionIndex::Entry>;

uint64_t BytesOf(const Entries& entries) {
  uint64_t bytes = 0;
  for (const auto& [id, entry] : entries) bytes += entry.bytes;
  return bytes;
}

}  // namespace

const DecisionIndex::Entry* DecisionIndex::Find(const std::string& job, int64_t id) const {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return nullptr;
  const auto entry = found->second.find(id);
  return entry == found->second.end() ? nullptr : &entry->second;
}

DecisionIndex::Excess DecisionIndex::TakeExcess(const std::string& job, const StoreLimits& limits) {
  Excess out;
  Entries& own = jobs_[job];
  uint64_t kept = 0;
  for (const auto& [id, entry] : own) kept += entry.switched ? 0 : 1;
  for (auto it = own.begin(); it != own.end() && kept > limits.decisions_per_job_max;) {
    if (it->second.switched) {
      ++it;
      continue;
    }
    out.decisions.push_back({job, it->first});
    it = own.erase(it);
    --kept;
  }
  // The oldest of several jobs are found by their ids.
  struct Place {
    const std::string* job;
    Entries* entries;
  };
  const auto make_room = [&out](const std::vector<Place>& places, uint64_t bytes_max) {
    uint64_t bytes = 0;
    for (const Place& place : places) bytes += BytesOf(*place.entries);
    if (bytes <= bytes_max) return;
    const uint64_t goal = bytes_max * 3 / 4;
    std::map<int64_t, Place> by_age;
    for (const Place& place : places) {
      for (const auto& [id, entry] : *place.entries) by_age[id] = place;
    }
    for (const bool switched : {false, true}) {
      for (const auto& [id, place] : by_age) {
        if (bytes <= goal) return;
        const auto found = place.entries->find(id);
        if (found == place.entries->end() || found->second.switched != switched) continue;
        Entry& entry = found->second;
        if (!switched) {
          bytes -= entry.bytes;
          out.decisions.push_back({*place.job, id});
          place.entries->erase(found);
        } else if (entry.snapshot_bytes > 0) {
          bytes -= entry.snapshot_bytes;
          entry.bytes -= entry.snapshot_bytes;
          entry.snapshot_bytes = 0;
          entry.base.clear();
          out.inputs.push_back({*place.job, id});
        }
      }
    }
  };
  make_room({{&job, &own}}, limits.decision_bytes_per_job_max);
  std::vector<Place> all;
  for (auto& [name, entries] : jobs_) all.push_back({&name, &entries});
  make_room(all, limits.decision_bytes_max);
  return out;
}

std::map<std::string, uint64_t> DecisionIndex::Bytes() const {
  std::map<std::string, uint64_t> out;
  for (const auto& [job, entries] : jobs_) {
    for (const auto& [id, entry] : entries) out[job] += entry.bytes;
  }
  return out;
}

std::set<std::string> DecisionIndex::Texts() const {
  std::set<std::string> texts;
  for (const auto& [job, entries] : jobs_) {
    for (const auto& [id, entry] : entries) {
      for (const std::string& text : {entry.base, entry.policy}) {
        if (!text.empty()) texts.insert(text);
      }
    }
  }
  return texts;
}

}  // namespace weir
