// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of etcd's API that Weir uses, over its JSON gateway: one call at a time, each with a
// deadline, at the member that answered last.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "datapath/base/clock.h"
#include "datapath/base/status.h"

namespace weir {

/// The longest that one call of the store or the election takes.
inline constexpr Duration kEtcdCallMax = std::chrono::milliseconds(1500);

struct EtcdOptions {
  std::vector<std::string> members;  // host:port
  std::string prefix = "/weir";      // of all keys
  std::string tls_ca, tls_cert, tls_key;
  bool tls = false;
  std::string user, password;  // empty: no login
  /// How long one member may take to answer before another one is asked.
  Duration attempt_timeout = std::chrono::milliseconds(700);
};

/// Parses "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"; "etcds://" asks for TLS. At most 16 members.
/// kInvalidArgument says what is wrong.
StatusOr<EtcdOptions> ParseEtcdAddress(const std::string& text);

/// The end of the range of all keys that begin with `prefix`, which must not be empty.
std::string EtcdPrefixEnd(std::string prefix);

struct EtcdRow {
  std::string key, value;
  int64_t create_revision = 0, mod_revision = 0, lease = 0;
};

/// The keys in [key, end); `end` empty: one key.
struct EtcdRange {
  std::string key, end = {};
  int64_t limit = 0;  // 0: none
  bool descending = false, keys_only = false, count_only = false;
  bool oldest_first = false;  // by their last change, instead of by key
  /// Reads what the asked member has, which needs no quorum and may be behind.
  bool serializable = false;
};
struct EtcdPut {
  std::string key, value;
  int64_t lease = 0;  // the key is deleted when that lease ends
};
struct EtcdDelete {
  std::string key, end = {};
};
using EtcdOperation = std::variant<EtcdPut, EtcdDelete, EtcdRange>;

/// The key was created, or last changed, at exactly that revision; 0: it does not exist.
struct EtcdCompare {
  std::string key;
  enum class Target { kCreateRevision, kModRevision } target = Target::kCreateRevision;
  int64_t revision = 0;
};

struct EtcdRows {
  std::vector<EtcdRow> rows;
  int64_t count = 0;     // of the whole range, whatever its limit
  int64_t revision = 0;  // of etcd when it answered
};

struct EtcdOutcome {
  bool succeeded = false;  // all comparisons held
  int64_t revision = 0;
  std::vector<EtcdRows> answers;  // one for each operation that ran; rows of ranges only
};

struct EtcdMember {
  int64_t revision = 0;
  double db_bytes = 0;  // in use
  std::string alarms;   // what it complains of, such as a full database
};

/// Not thread-safe. Errors: kUnavailable: no member answered in time, or there is no quorum;
/// kResourceExhausted: the database or a request is too large; kFailedPrecondition: the login was
/// refused; kInternal: other answers. An error does not mean that a change was not made: a member
/// may have died after it.
class EtcdClient {
 public:
  static constexpr int kOperationsMax = 100;           // of one transaction; etcd takes 128
  static constexpr size_t kRequestBytesMax = 1 << 20;  // etcd takes 1.5 MiB
  static constexpr size_t kAnswerBytesMax = 64 << 20;

  explicit EtcdClient(EtcdOptions options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  StatusOr<EtcdRows> Range(const EtcdRange& range, TimePoint deadline);
  /// All rows of a range, in several calls; its limit is ignored.
  StatusOr<std::vector<EtcdRow>> RangeAll(EtcdRange range, TimePoint deadline);
  /// Runs `then` if all comparisons hold, else `otherwise`.
  StatusOr<EtcdOutcome> Commit(const std::vector<EtcdCompare>& comparisons,
                               const std::vector<EtcdOperation>& then,
                               const std::vector<EtcdOperation>& otherwise, TimePoint deadline);

  struct Lease {
    int64_t id = 0;
    int64_t ttl_s = 0;
  };
  StatusOr<Lease> GrantLease(int64_t ttl_s, TimePoint deadline);
  /// The seconds that it lasts from now; 0: it has ended.
  StatusOr<int64_t> KeepAlive(int64_t lease, TimePoint deadline);
  Status Revoke(int64_t lease, TimePoint deadline);
  /// Forgets what was before `revision`.
  Status Compact(int64_t revision, TimePoint deadline);
  /// The state of the member that answers.
  StatusOr<EtcdMember> Member(TimePoint deadline);

  const EtcdOptions& options() const { return options_; }

 private:
  class Wire;
  const EtcdOptions options_;
  std::unique_ptr<Wire> wire_;
};

}  // namespace weir
