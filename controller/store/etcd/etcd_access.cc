// SPDX-License-Identifier: Apache-2.0
#include "controller/store/etcd/etcd_access.h"

#include <algorithm>
#include <set>

#include "controller/store/etcd/election.h"
#include "controller/store/etcd/fields.h"

namespace weir {
namespace {

constexpr Duration kReadPause = std::chrono::seconds(1);  // after a read that failed
constexpr Duration kReadWithoutQuorum = std::chrono::milliseconds(300);
constexpr size_t kPendingMax = 64;  // nodes and jobs that wait for a flush

size_t BytesOf(const EtcdOperation& operation) {
  const auto* put = std::get_if<EtcdPut>(&operation);
  return put == nullptr ? 256 : put->key.size() + put->value.size() + 64;
}

const std::string& KeyOf(const EtcdOperation& operation) {
  return std::visit([](const auto& each) -> const std::string& { return each.key; }, operation);
}

Status CheckSize(const std::string& key, const std::string& value) {
  if (value.size() <= EtcdClient::kRequestBytesMax) return OkStatus();
  return ResourceExhausted(StrCat("'", key, "' takes ", value.size(),
                                  " bytes compressed, and etcd takes at most ",
                                  EtcdClient::kRequestBytesMax));
}

}  // namespace

EtcdAccess::EtcdAccess(const EtcdOptions& options, const Leadership& leadership)
    : client_(options), leadership_(leadership), prefix_(options.prefix) {}

StatusOr<uint64_t> EtcdAccess::Term() {
  const auto tenure = leadership_.tenure();
  if (!tenure.has_value() || tenure->term != term_) pending_.clear();
  if (!tenure.has_value()) {
    return FailedPrecondition("this controller stands by, and only the leader writes");
  }
  term_ = tenure->term;
  return term_;
}

std::string EtcdAccess::Key(std::string_view part, std::string_view name) const {
  return StrCat(prefix_, "/", part, KeyPart(name));
}

std::string EtcdAccess::IdKey(std::string_view part, int64_t id) const {
  return StrCat(prefix_, "/", part, KeyPart(static_cast<uint64_t>(id)));
}

Status EtcdAccess::Later(const std::string& key, std::string value) {
  WEIR_RETURN_IF_ERROR(Term().status());
  WEIR_RETURN_IF_ERROR(CheckSize(key, value));
  pending_[key] = std::move(value);
  return pending_.size() >= kPendingMax ? Write({}) : OkStatus();
}

Status EtcdAccess::Flush() { return pending_.empty() ? OkStatus() : Write({}); }

Status EtcdAccess::Write(std::vector<EtcdOperation> operations) {
  WEIR_RETURN_IF_ERROR(Term().status());
  std::vector<EtcdOperation> all;
  for (const auto& [key, value] : pending_) all.push_back(EtcdPut{key, value});
  for (EtcdOperation& each : operations) {
    if (const auto* put = std::get_if<EtcdPut>(&each)) {
      WEIR_RETURN_IF_ERROR(CheckSize(put->key, put->value));
    }
    all.push_back(std::move(each));
  }
  for (size_t begin = 0; begin < all.size();) {
    std::vector<EtcdOperation> group;
    size_t bytes = 0;
    std::set<std::string> keys;  // etcd takes each of them once
    for (; begin < all.size() && group.size() < EtcdClient::kOperationsMax; ++begin) {
      const size_t next = BytesOf(all[begin]);
      if (!group.empty() && bytes + next > EtcdClient::kRequestBytesMax) break;
      if (!keys.insert(KeyOf(all[begin])).second) break;
      bytes += next;
      group.push_back(std::move(all[begin]));
    }
    WEIR_RETURN_IF_ERROR(Commit(group));
  }
  pending_.clear();
  return OkStatus();
}

Status EtcdAccess::Commit(const std::vector<EtcdOperation>& group) {
  const auto tenure = leadership_.tenure();
  if (!tenure.has_value() || tenure->term != term_) {
    return FailedPrecondition("this controller no longer leads");
  }
  const EtcdCompare fence{.key = LeaderKey(client_.options()),
                          .revision = static_cast<int64_t>(term_)};
  const TimePoint deadline = std::min(RealClock().Now() + kEtcdCallMax, tenure->until);
  WEIR_ASSIGN_OR_RETURN(const EtcdOutcome done, client_.Commit({fence}, group, {}, deadline));
  if (done.succeeded) return OkStatus();
  return FailedPrecondition(StrCat("etcd has ended the lease of this controller's term ", term_));
}

// While etcd is known not to answer, a standby asks whether some member can be read, and no more.
TimePoint EtcdAccess::ReadUntil() const {
  const bool expected = leads() || leadership_.view().store.ok();
  return RealClock().Now() + (expected ? kEtcdCallMax : kReadWithoutQuorum);
}

Status EtcdAccess::BeginRead() {
  if (!read_failed_.ok() && RealClock().Now() < read_again_) return read_failed_;
  return leads() ? Flush() : OkStatus();
}

template <typename T>
StatusOr<T> EtcdAccess::Noted(StatusOr<T> answer) {
  const bool failed = answer.status().code() == StatusCode::kUnavailable;
  read_failed_ = failed ? answer.status() : OkStatus();
  if (failed) read_again_ = RealClock().Now() + kReadPause;
  return answer;
}

StatusOr<EtcdRows> EtcdAccess::Read(EtcdRange range) {
  WEIR_RETURN_IF_ERROR(BeginRead());
  range.serializable = !leads();
  return Noted(client_.Range(range, ReadUntil()));
}

StatusOr<uint64_t> EtcdAccess::DatabaseBytes() {
  WEIR_RETURN_IF_ERROR(BeginRead());
  WEIR_ASSIGN_OR_RETURN(const EtcdMember member,
                        Noted(client_.Member(RealClock().Now() + kEtcdCallMax)));
  return static_cast<uint64_t>(member.db_bytes);
}

StatusOr<std::vector<EtcdRow>> EtcdAccess::ReadAll(EtcdRange range) {
  WEIR_RETURN_IF_ERROR(BeginRead());
  range.serializable = !leads();
  return Noted(client_.RangeAll(std::move(range), ReadUntil()));
}

StatusOr<std::vector<EtcdRows>> EtcdAccess::ReadEach(const std::vector<EtcdRange>& ranges) {
  WEIR_RETURN_IF_ERROR(BeginRead());
  std::vector<EtcdOperation> asked;
  for (EtcdRange range : ranges) {
    range.serializable = !leads();
    asked.push_back(std::move(range));
  }
  WEIR_ASSIGN_OR_RETURN(EtcdOutcome answer, Noted(client_.Commit({}, asked, {}, ReadUntil())));
  return std::move(answer.answers);
}

Status EtcdAccess::DeleteOldest(EtcdRange range, int64_t count_max) {
  range.count_only = true;
  WEIR_ASSIGN_OR_RETURN(const EtcdRows counted, Read(range));
  if (counted.count <= count_max) return OkStatus();
  range.count_only = false;
  range.keys_only = true;
  range.limit = counted.count - count_max;
  WEIR_ASSIGN_OR_RETURN(const EtcdRows oldest, Read(range));
  std::vector<EtcdOperation> operations;
  for (const EtcdRow& row : oldest.rows) operations.push_back(EtcdDelete{row.key});
  return Write(std::move(operations));
}

}  // namespace weir
