// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the store reads and writes etcd: writes are fenced by the tenure, grouped and bounded; reads
// know whether they need a quorum, and do not wait for a dead etcd again and again.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "controller/store/etcd/etcd_client.h"
#include "controller/store/leadership.h"

namespace weir {

/// Not thread-safe. `leadership` outlives it. Errors are those of EtcdClient, and
/// kFailedPrecondition where this controller does not lead.
class EtcdAccess {
 public:
  EtcdAccess(const EtcdOptions& options, const Leadership& leadership);

  bool leads() const { return leadership_.tenure().has_value(); }
  /// The term in which this controller writes; what waited in another one is dropped.
  StatusOr<uint64_t> Term();

  /// PREFIX/PART and a name or a number, which `part` ends with a slash for.
  std::string Key(std::string_view part, std::string_view name) const;
  std::string IdKey(std::string_view part, int64_t id) const;

  /// Puts a value that the next Flush or Write makes durable; a later value replaces it.
  Status Later(const std::string& key, std::string value);
  Status Flush();
  /// Writes what waits and then `operations`, in order, in as few transactions as their sizes
  /// permit. kResourceExhausted: a value is too large for etcd.
  Status Write(std::vector<EtcdOperation> operations);

  /// A leader reads what a quorum has, a standby what one member has. A read after one that failed
  /// fails at once for a second.
  StatusOr<EtcdRows> Read(EtcdRange range);
  StatusOr<std::vector<EtcdRow>> ReadAll(EtcdRange range);
  /// At most EtcdClient::kOperationsMax ranges at the same revision.
  StatusOr<std::vector<EtcdRows>> ReadEach(const std::vector<EtcdRange>& ranges);
  /// The size of etcd's whole database, as the member that answers has it.
  StatusOr<uint64_t> DatabaseBytes();
  /// Deletes the first keys of a range until it has at most `count_max`.
  Status DeleteOldest(EtcdRange range, int64_t count_max);

 private:
  Status Commit(const std::vector<EtcdOperation>& group);
  Status BeginRead();
  TimePoint ReadUntil() const;
  template <typename T>
  StatusOr<T> Noted(StatusOr<T> answer);

  EtcdClient client_;
  const Leadership& leadership_;
  const std::string prefix_;
  uint64_t term_ = 0;
  std::map<std::string, std::string> pending_;  // by key
  Status read_failed_;
  TimePoint read_again_{};
};

}  // namespace weir
