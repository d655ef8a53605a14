// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many nodes a job's ranks are on, and what a collective therefore costs: steps within a node
// take that node's latency and bandwidth, steps between nodes the network's.

#include <vector>

#include "controller/model/snapshot.h"
#include "datapath/base/status.h"

namespace weir {

/// Between two ranks of one node, until it was measured: through shared memory, on a busy host.
inline constexpr double kWithinLatencyS = 1e-5, kWithinSecondsPerByte = 1 / 2e9;
/// The same between linked devices: with the start of kernels, and over PCIe.
inline constexpr double kDeviceLatencyS = 3e-5, kDeviceSecondsPerByte = 1 / 12e9;

struct NodeLayout {
  int nodes = 0;                              // 0: not known, so every rank stands alone
  int ranks_max = 1;                          // of the fullest node
  bool even = true;                           // all nodes hold equally many
  double latency_s = kWithinLatencyS;         // between ranks of one node, one way
  double s_per_byte = kWithinSecondsPerByte;  // 1 / bandwidth there
  std::vector<int> node_of = {};              // of each rank, the lowest there; empty: not known
  // As latency_s and s_per_byte, between devices that are linked.
  double device_latency_s = kDeviceLatencyS, device_s_per_byte = kDeviceSecondsPerByte;
  friend bool operator==(const NodeLayout&, const NodeLayout&) = default;
};

/// A node is what shares memory. O(ranks).
NodeLayout LayoutOf(const SharedMemory& memory);

/// kInvalidArgument: the snapshot's memory does not fit its world.
Status CheckMemory(const Snapshot& snapshot);

/// One run of a collective that carries M payload and I index bytes takes
///   latency alpha + within_latency_s + (payload M + index I) beta + within_s_per_byte M
///   + reduce gamma M,
/// see CollectiveCost in datapath/collective/collective.h.
/// Where nodes are summed before anything is encoded (ExchangeModel::encodes_nodes), `reduce` and
/// within_s_per_byte are of the bucket's float32 bytes D in place of M, and dense beta D is added.
struct CollectiveFeatures {
  double latency = 0, payload = 0, index = 0, reduce = 0, dense = 0;
  double within_latency_s = 0, within_s_per_byte = 0;
  bool floats_within = false;
};

/// The features of `collective` in a world of `world` ranks: where each rank has a node of its own
/// the functions of the world size. Where p ranks share an interface it carries as many times what
/// one rank's would as ShareOf says of who sends to whom, and what stays within the node goes on
/// meanwhile, but for rounds that nothing crosses in. Payloads that go around a ring share nothing.
/// Where each rank talks to an aggregator (needs_lease) the interface carries p times as much.
/// By nodes, with n nodes of at most p ranks, the network carries the functions of n, and the
/// functions of p are added within nodes; a network that is one node (n = 1) is what alpha and beta
/// were measured on, so the functions of p take those. All-gathers of opaque payloads have p of
/// them for each node, so there the network carries p times, and each node n times as much. Source:
/// the sum of the levels' costs, Karonis et al., "Exploiting hierarchy in parallel computer
/// networks to optimize collective operation performance", IPDPS 2000; p lanes at a time through
/// one interface as in Traeff and Hunold, "Decomposing MPI collectives for exploiting multi-lane
/// communication", CLUSTER 2020.
CollectiveFeatures FeaturesOf(const CollectiveModel& collective, int world,
                              const NodeLayout& layout);

/// The layout for what moves between linked devices within nodes.
NodeLayout BetweenDevices(NodeLayout layout);

}  // namespace weir
