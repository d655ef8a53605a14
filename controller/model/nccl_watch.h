// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether the GPUs of one node hold up a job's other nodes, or its network does, by what NCCL's
// network transfers wait for (datapath/nccl/plugin).
//
// The conclusions are for people, beside those on late ranks. They change no estimate, because the
// seconds do not say how much of a measured sum was waiting for a GPU:
// - They are sums over all processes of a node, also of other jobs and of communicators that sum no
//   gradients, and over a sample of operations. Nothing joins them to a step.
// - Transfers overlap, so a share of their waits is no share of the time that a sum takes.
// - A rank whose data have not arrived has nothing to pass on, which NCCL counts as waiting for the
//   rank's own GPU. So such a share says something beside those of other nodes only.
// - The time of a sum counts from the entry of the last rank (StepAssembler), so that it does not
//   contain the wait for a rank that enters late. It would be taken out twice.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace weir {

/// Sums since the node's agent started; see NcclSummary in agent.proto.
struct NcclObservation {
  uint64_t operations = 0;
  double own_gpu_s = 0, peer_s = 0, wire_s = 0, arrival_s = 0;
};

/// Parts of what the transfers of a node waited for; they add up to 1.
struct NcclShares {
  double own_gpu = 0, peer = 0, wire = 0, arrival = 0;
};

/// The cause that holds up transfers on a node.
enum class NcclCause {
  kNone,
  kGpusLate,   // most other nodes wait for its GPUs
  kWireBinds,  // they wait for the network for most of their time
};

struct NcclConclusion {
  NcclCause cause = NcclCause::kNone;
  NcclShares shares = {};  // of the newest window that shows the cause
  int others = 0;          // nodes that it was compared with
  int waiting = 0;         // of these, how many wait for data or room, and not for that cause
};

/// The nodes of one job. Times are seconds on any one monotonic clock. Deterministic. Keeps a few
/// numbers for each node, and forgets nodes that fall silent when another one's window ends. Not
/// thread-safe.
class NcclWatch {
 public:
  // A window ends when it has all of the first three; without them it is dropped at kWindowMaxS.
  static constexpr double kWindowS = 30;
  static constexpr uint64_t kOperationsMin = 32;
  static constexpr double kWaitMinS = 0.3;  // of all causes: a job that hardly waits has none
  static constexpr double kWindowMaxS = 120;
  static constexpr double kFreshS = 180;  // older windows say nothing of the present
  static constexpr double kShareMin = 0.5;
  static constexpr double kApart = 0.25;  // from the same share of another node
  static constexpr double kWaitingMin = 0.3;
  static constexpr int kOthersMax = 64;

  /// Takes the newest sums of a node. Sums that fall are those of an agent that has restarted: they
  /// begin another window. O(nodes) at the end of a window, else O(log nodes).
  void Add(double now_s, const std::string& node, const NcclObservation& sums);
  /// The cause that two windows of the node in a row have shown. It ends when two show something
  /// else, or after kFreshS without any. GPUs are late if their share is kShareMin or more, and
  /// more than half of the other nodes (at most kOthersMax, those next by name) have kApart less of
  /// it and wait for data or room for kWaitingMin of their time. The wire binds if its share is
  /// kShareMin or more. Nothing: neither.
  std::optional<NcclConclusion> Of(const std::string& node, double now_s) const;
  size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    NcclObservation begin, newest;  // of the window that goes on
    double begin_s = 0, newest_s = 0;
    std::optional<NcclShares> shares;  // of the newest window that ended
    double ended_s = 0;
    NcclCause seen = NcclCause::kNone;  // in it
    NcclConclusion concluded;
  };
  using Nodes = std::map<std::string, Node>;

  void EndWindow(double now_s, Nodes::iterator place, const NcclShares& shares);
  NcclConclusion Judge(double now_s, Nodes::iterator place);

  Nodes nodes_;
};

}  // namespace weir
