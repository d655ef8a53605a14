// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules that choose algorithm and protocol by function and size, as JSON. Parsed from a file or
// from what the agent sends (weir.v1.NcclTable in proto/weir/v1/rank.proto has the same form).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir::nccl::plugin {

inline constexpr size_t kTableBytesMax = 256 << 10;
inline constexpr size_t kRulesMax = 256;
inline constexpr uint32_t kChannelsMax = 64;
/// NCCL rounds chunks down to a multiple of at most this many bytes, and none may be left over.
inline constexpr uint64_t kChunkGrainBytes = 4096;
inline constexpr uint64_t kChunkBytesMax = 64 << 20;

/// The choice: indices of NCCL's cost table. 0: NCCL's own channels or chunk size.
struct Choice {
  int algorithm = 0, protocol = 0;
  int channels = 0;
  size_t chunk_bytes = 0;
};

struct Rule {
  int function = 0;                                // NcclFunction
  uint64_t bytes_min = 0, bytes_end = UINT64_MAX;  // bytes_min <= size < bytes_end
  uint64_t ranks = 0;                              // of the communicator; 0: any
  Choice choice;
};

/// Immutable, so it can be used on any thread.
class Table {
 public:
  /// The table without rules: NCCL chooses.
  Table();
  /// Parses {"rules": [{"function": "all_reduce", "bytes_min": 0, "bytes_end": 65536, "ranks": 8,
  /// "algorithm": "tree", "protocol": "ll", "channels": 4, "chunk_bytes": 131072}, ...]}.
  /// kInvalidArgument names the key and what is expected there; unknown keys are errors.
  static StatusOr<Table> Parse(std::string_view json);

  /// The choice of the first rule that matches, or nothing. O(rules).
  std::optional<Choice> Find(int function, uint64_t bytes, uint64_t ranks) const;

  /// A hash of the rules, never 0, so that ranks can compare their tables. Equal rules have equal
  /// identities however they were written.
  uint64_t identity() const { return identity_; }
  size_t size() const { return rules_.size(); }

 private:
  explicit Table(std::vector<Rule> rules);

  std::vector<Rule> rules_;
  uint64_t identity_;
};

/// "all_reduce" for kNcclAllReduce and so on; the five functions that a tuner is asked about.
inline constexpr std::string_view kFunctionNames[] = {"broadcast", "reduce", "all_gather",
                                                      "reduce_scatter", "all_reduce"};
inline constexpr std::string_view kAlgorithmNames[] = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
inline constexpr std::string_view kProtocolNames[] = {"ll", "ll128", "simple"};

}  // namespace weir::nccl::plugin
