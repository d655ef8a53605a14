// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps the reports of this node's processes that run NCCL with libnccl-weir.so, and the table that
// they are given, of a file or of the controller. They are not ranks of a job of Weir's. Pure,
// except for the file of the table.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "agent/rank_claims.h"
#include "datapath/base/status.h"
#include "weir/v1/agent.pb.h"
#include "weir/v1/rank.pb.h"

namespace weir::agent {

/// The labels of metrics. What a process calls otherwise counts as the last function.
inline constexpr std::array<std::string_view, 7> kNcclFunctions = {
    "broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce", "point_to_point", "other"};
inline constexpr std::array<std::string_view, 4> kNcclSizes = {"below_64KiB", "below_1MiB",
                                                               "below_16MiB", "from_16MiB"};
inline constexpr std::array<std::string_view, 4> kNcclCauses = {"own_gpu", "peer", "wire",
                                                                "arrival"};

/// Sums over all processes since the agent started, of the operations that they sampled.
struct NcclTotals {
  uint64_t operations = 0;
  uint64_t sent_bytes = 0;
  std::array<double, kNcclCauses.size()> wait_s = {};
};

struct NcclSnapshot {
  std::map<std::pair<size_t, size_t>, NcclTotals> totals;  // by indices of function and size
  uint64_t calls = 0, steered_calls = 0, refused_calls = 0;
  size_t communicators = 0;   // ranks' communicators with a tuner
  size_t obstructed = 0;      // of those, how many cannot change their table
  size_t refusing = 0;        // processes that refuse the table
  std::optional<bool> table;  // whether the file that is there is in use; none: no file
  std::string table_source;   // "file", "controller"; empty: there is no table
};

/// Not thread-safe. Keeps at most 64 communicators for each connection.
class NcclBridge {
 public:
  /// `table_file` may be empty: no table.
  explicit NcclBridge(std::string table_file) : table_file_(std::move(table_file)) {}

  /// Returns whether the process is to be sent TableFor now: this is its first report, or the first
  /// that says what it has. Values that are not finite or fall are ignored. O(size of the report).
  bool OnReport(ConnectionId connection, const v1::NcclReport& report);
  /// Unknown connections are ignored. What they reported stays in the sums.
  void Forget(ConnectionId connection) { processes_.erase(connection); }

  /// Reads the file; returns whether there is a new table. A file that is not good leaves the table
  /// as it is, and is logged once. To be called about once a second.
  bool Reload();
  /// Takes the controller's table; one without rules ends it. Returns whether there is a new table.
  /// A file comes first, so that a node can be left out by its operator.
  bool OnControllerTable(const v1::NcclTable& table);
  /// The table that the process is to have. Null: it needs none. One without rules is for those
  /// that have rules of an agent, perhaps a former one: others may have a file of their own.
  const v1::NcclTable* TableFor(ConnectionId connection) const;
  /// Null: there is none yet.
  const v1::NcclTable* table() const { return table_.has_value() ? &*table_ : nullptr; }
  /// Calls `visit` with each connection that has reported.
  template <typename Visit>
  void ForEachConnection(Visit visit) const {
    for (const auto& [connection, process] : processes_) visit(connection);
  }

  NcclSnapshot Snapshot() const;
  /// The same in few figures; nothing until the first report.
  std::optional<v1::NcclSummary> Summary() const;

 private:
  struct Process {
    std::map<std::string, v1::NcclTuner> tuners;      // by communicator and place in the report
    std::map<std::string, v1::NcclProfile> profiles;  // by communicator and rank
    bool refuses_table = false;
    bool agent_steers = false;  // as in NcclReport
  };

  void AddTuners(Process& process, const v1::NcclReport& report);
  void AddProfile(Process& process, const v1::NcclProfile& profile);

  const std::string table_file_;
  std::string table_text_;              // of the file when it was last read
  std::string table_error_;             // that was logged
  std::optional<v1::NcclTable> table_;  // that processes are given
  std::map<ConnectionId, Process> processes_;
  NcclSnapshot sums_;  // what only grows
};

/// Parses a table; kInvalidArgument: not JSON of NcclTable, or with unknown fields. Names and
/// ranges are checked by the library, which reports what it refuses.
StatusOr<v1::NcclTable> ParseNcclTable(std::string_view json);

}  // namespace weir::agent
