// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which nodes measure the latency to which. The nodes of a group form a ring in the order of hashes
// of their names, and each measures those that follow it; so each is measured by as many, whatever
// the size of the group, and a node that comes or goes changes the lists of its neighbours only.
// Groups are the fleet and, with more neighbours, each job.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weir {

/// Not thread-safe.
class PeerSpread {
 public:
  static constexpr size_t kFleetPeers = 8;
  static constexpr size_t kJobPeers = 64;

  /// The node is connected. OK if it was already. O(log n + peers of a node).
  void AddNode(const std::string& node);
  /// It no longer is, and leaves its jobs, too. O((log n + peers) of each group that it is in).
  void RemoveNode(const std::string& node);
  /// The connected node has ranks of the job.
  void AddToJob(const std::string& job, const std::string& node);
  void RemoveFromJob(const std::string& job, const std::string& node);
  void RemoveJob(const std::string& job);

  /// The jobs that the node is in.
  const std::set<std::string>& JobsOf(const std::string& node) const;
  /// The nodes that `node` measures: those of its jobs first. O(peers).
  std::vector<std::string> PeersOf(const std::string& node) const;
  /// The nodes that `node` measures because of one job.
  std::vector<std::string> JobPeersOf(const std::string& job, const std::string& node) const;

  /// Nodes whose peers have changed and that are connected, at most `count_max`; the others stay
  /// for the next call.
  std::vector<std::string> TakeChanged(size_t count_max);
  bool changed() const { return !changed_.empty(); }
  /// All of them have to hear again, for another reason.
  void MarkAll();
  size_t size() const { return fleet_.size(); }

 private:
  using Place = std::pair<uint64_t, std::string>;  // hash of the name, name
  using Ring = std::set<Place>;

  static Place PlaceOf(const std::string& node);
  static void Following(const Ring& ring, const Place& from, size_t count_max,
                        std::vector<std::string>* out);
  /// Marks the nodes that measure the node of `place`, and itself.
  void MarkAround(const Ring& ring, const Place& place, size_t peers);

  Ring fleet_;
  std::map<std::string, Ring> jobs_;
  std::map<std::string, std::set<std::string>> jobs_of_;  // by node
  std::set<std::string> changed_;
};

}  // namespace weir
