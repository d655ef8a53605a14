// SPDX-License-Identifier: Apache-2.0
// Keys, below the prefix (names and numbers as KeyPart writes them):
//   leader                      see election.h
//   node/N, job/N, policy/N, pin/JOB, fact/N
//   plan/JOB/VERSION; version/JOB: the highest version ever given; gone/JOB: that of a deleted job
//   decision/ID, inputs/ID (its snapshot), text/HASH (what decisions share),
//   decision_of/JOB/ID: what the limits and the lists of one job need of a decision
//   audit/0/ID, audit/1/ID: what was permitted, what was refused
//   last/decision, last/audit: the highest id ever given
// Only the leader writes, so it may keep in memory what it has read or written in its tenure.

#include "controller/store/etcd/etcd_store.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "controller/store/etcd/decision_index.h"
#include "controller/store/etcd/etcd_access.h"
#include "controller/store/etcd/fields.h"

namespace weir {
namespace {

constexpr int64_t kTidyEvery = 64;  // decisions
constexpr int64_t kGoneJobsMax = 10000;
constexpr int64_t kIndexPage = 512;

// The name of a shared text.
std::string TextName(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return digits;
}

uint64_t Unsigned(int64_t number) { return static_cast<uint64_t>(number); }

class EtcdStore : public Store {
 public:
  EtcdStore(const EtcdOptions& options, const Leadership& leadership, StoreLimits limits)
      : etcd_(options, leadership), limits_(limits), prefix_(options.prefix) {}

  Status Flush() override { return etcd_.Flush(); }

  Status PutNode(const StoredNode& node) override {
    WEIR_RETURN_IF_ERROR(BeginTenure());
    WEIR_RETURN_IF_ERROR(LoadAges("node/", 1, &node_ages_));
    (*node_ages_)[node.name] = node.last_seen_unix_s;
    WEIR_RETURN_IF_ERROR(etcd_.Later(etcd_.Key("node/", node.name),
                                     JoinFields({node.payload, FieldText(node.last_seen_unix_s)})));
    while (node_ages_->size() > limits_.nodes_max) {
      WEIR_RETURN_IF_ERROR(DeleteNode(std::string(Oldest(*node_ages_))));
    }
    return OkStatus();
  }

  Status DeleteNode(std::string_view name) override {
    WEIR_RETURN_IF_ERROR(etcd_.Write({EtcdDelete{etcd_.Key("node/", name)}}));
    if (node_ages_.has_value()) node_ages_->erase(std::string(name));
    return OkStatus();
  }

  StatusOr<std::vector<StoredNode>> ListNodes() override {
    return List<StoredNode>("node/", 2, [](std::string name, std::vector<std::string> fields) {
      return StoredNode{std::move(name), std::move(fields[0]), NumberOf(fields[1])};
    });
  }

  Status PutJob(const StoredJob& job) override {
    WEIR_RETURN_IF_ERROR(BeginTenure());
    WEIR_RETURN_IF_ERROR(LoadAges("job/", 1, &job_ages_));
    (*job_ages_)[job.name] = job.updated_unix_s;
    WEIR_RETURN_IF_ERROR(etcd_.Later(etcd_.Key("job/", job.name),
                                     JoinFields({job.payload, FieldText(job.updated_unix_s)})));
    while (job_ages_->size() > limits_.jobs_max) {
      WEIR_RETURN_IF_ERROR(DeleteJob(std::string(Oldest(*job_ages_))));
    }
    return OkStatus();
  }

  StatusOr<std::vector<StoredJob>> ListJobs() override {
    return List<StoredJob>("job/", 2, [](std::string name, std::vector<std::string> fields) {
      return StoredJob{std::move(name), std::move(fields[0]), NumberOf(fields[1])};
    });
  }

  Status DeleteJob(const std::string& name) override {
    WEIR_RETURN_IF_ERROR(Flush());
    const std::string plans = etcd_.Key("plan/", name) + "/",
                      index = etcd_.Key("decision_of/", name) + "/";
    std::vector<EtcdOperation> operations;
    WEIR_ASSIGN_OR_RETURN(
        const auto decisions,
        etcd_.ReadAll({.key = index, .end = EtcdPrefixEnd(index), .keys_only = true}));
    for (const EtcdRow& row : decisions) {
      WEIR_ASSIGN_OR_RETURN(const std::string id, LastKeyPart(row.key));
      AddDeletion(CountOf(id), &operations);
    }
    WEIR_ASSIGN_OR_RETURN(const uint64_t highest, HighestPlanVersion(name));
    int64_t found = static_cast<int64_t>(decisions.size());
    for (EtcdRange part :
         {EtcdRange{.key = etcd_.Key("job/", name), .count_only = true},
          EtcdRange{.key = etcd_.Key("pin/", name), .count_only = true},
          EtcdRange{.key = plans, .end = EtcdPrefixEnd(plans), .count_only = true}}) {
      WEIR_ASSIGN_OR_RETURN(const EtcdRows rows, etcd_.Read(part));
      found += rows.count;
    }
    if (found == 0) return NotFound(StrCat("no job '", name, "'"));
    // Ranks may still run a plan, so versions must not begin again.
    if (highest > 0)
      operations.push_back(EtcdPut{etcd_.Key("gone/", name), JoinFields({KeyPart(highest)})});
    operations.push_back(EtcdDelete{etcd_.Key("version/", name)});
    operations.push_back(EtcdDelete{index, EtcdPrefixEnd(index)});
    operations.push_back(EtcdDelete{plans, EtcdPrefixEnd(plans)});
    operations.push_back(EtcdDelete{etcd_.Key("pin/", name)});
    operations.push_back(EtcdDelete{etcd_.Key("job/", name)});
    WEIR_RETURN_IF_ERROR(etcd_.Write(std::move(operations)));
    versions_.erase(name);
    index_.RemoveJob(name);
    if (job_ages_.has_value()) job_ages_->erase(name);
    const std::string gone = prefix_ + "/gone/";
    return etcd_.DeleteOldest({.key = gone, .end = EtcdPrefixEnd(gone), .oldest_first = true},
                              kGoneJobsMax);
  }

  Status ClaimPlan(const StoredPlan& plan) override {
    WEIR_RETURN_IF_ERROR(BeginTenure());
    versions_.erase(plan.job);  // what etcd says counts, not this controller's memory
    WEIR_ASSIGN_OR_RETURN(const uint64_t highest, HighestPlanVersion(plan.job));
    if (plan.version > highest) return PutPlan(plan);
    return MakeStatus(StatusCode::kAlreadyExists,
                      StrCat("job ", plan.job, " has had plan ", highest, " already, so plan ",
                             plan.version, " is not new"));
  }

  Status PutPlan(const StoredPlan& plan) override {
    WEIR_RETURN_IF_ERROR(BeginTenure());
    WEIR_ASSIGN_OR_RETURN(const uint64_t highest, HighestPlanVersion(plan.job));
    const std::string plans = etcd_.Key("plan/", plan.job) + "/";
    std::vector<EtcdOperation> operations;
    if (plan.version > highest) {
      operations.push_back(
          EtcdPut{etcd_.Key("version/", plan.job), JoinFields({KeyPart(plan.version)})});
      if (plan.version > limits_.plans_per_job_max) {
        operations.push_back(
            EtcdDelete{plans, plans + KeyPart(plan.version - limits_.plans_per_job_max + 1)});
      }
    }
    operations.push_back(EtcdPut{plans + KeyPart(plan.version),
                                 JoinFields({plan.payload, plan.state, FieldText(plan.unix_s)})});
    WEIR_RETURN_IF_ERROR(etcd_.Write(std::move(operations)));
    versions_[plan.job] = std::max(highest, plan.version);
    return OkStatus();
  }

  StatusOr<std::optional<StoredPlan>> GetPlan(std::string_view job, uint64_t version) override {
    WEIR_ASSIGN_OR_RETURN(
        const EtcdRows found,
        etcd_.Read({.key = StrCat(etcd_.Key("plan/", job), "/", KeyPart(version))}));
    if (found.rows.empty()) return std::optional<StoredPlan>();
    WEIR_ASSIGN_OR_RETURN(auto fields, SplitFields(found.rows.front().value, 3));
    return std::optional<StoredPlan>(StoredPlan{std::string(job), version, std::move(fields[0]),
                                                std::move(fields[1]), NumberOf(fields[2])});
  }

  StatusOr<uint64_t> HighestPlanVersion(std::string_view job) override {
    const std::string name(job);
    if (etcd_.leads()) {
      WEIR_RETURN_IF_ERROR(BeginTenure());
      if (const auto known = versions_.find(name); known != versions_.end()) return known->second;
    }
    uint64_t highest = 0;
    for (const char* part : {"version/", "gone/"}) {
      WEIR_ASSIGN_OR_RETURN(const EtcdRows found, etcd_.Read({.key = etcd_.Key(part, job)}));
      if (found.rows.empty()) continue;
      WEIR_ASSIGN_OR_RETURN(const auto fields, SplitFields(found.rows.front().value, 1));
      highest = std::max(highest, CountOf(fields[0]));
    }
    return highest;
  }

  StatusOr<int64_t> AddDecision(const StoredDecision& decision) override {
    WEIR_RETURN_IF_ERROR(BeginTenure());
    WEIR_RETURN_IF_ERROR(LoadIndex());
    WEIR_ASSIGN_OR_RETURN(const int64_t id, NextId("last/decision", &last_decision_));
    DecisionIndex::Entry entry{.switched = decision.switched,
                               .bytes = decision.payload.size() + decision.snapshot.size(),
                               .snapshot_bytes = decision.snapshot.size()};
    std::vector<EtcdOperation> operations;
    std::set<std::string> fresh;
    for (const auto& [text, name] :
         {std::pair(&decision.base, &entry.base), std::pair(&decision.policy, &entry.policy)}) {
      if (text->empty()) continue;
      *name = TextName(*text);
      if (texts_.contains(*name) || !fresh.insert(*name).second) continue;
      operations.push_back(EtcdPut{etcd_.Key("text/", *name), JoinFields({*text})});
    }
    if (!decision.snapshot.empty()) {
      operations.push_back(EtcdPut{etcd_.IdKey("inputs/", id), JoinFields({decision.snapshot})});
    }
    operations.push_back(EtcdPut{
        etcd_.IdKey("decision/", id),
        JoinFields({decision.job, std::to_string(decision.step), FieldText(decision.unix_s),
                    decision.switched ? "1" : "0", entry.base, entry.policy, decision.payload})});
    operations.push_back(EtcdPut{etcd_.IdKey(DecisionsOf(decision.job), id), EntryText(entry)});
    operations.push_back(EtcdPut{prefix_ + "/last/decision", std::to_string(id)});
    WEIR_RETURN_IF_ERROR(etcd_.Write(std::move(operations)));
    texts_.merge(fresh);
    index_.Add(decision.job, id, std::move(entry));
    // Not at every decision, so that the common write stays short.
    if (id % kTidyEvery == 0) WEIR_RETURN_IF_ERROR(Tidy(decision.job));
    return id;
  }

  Status UpdateDecision(int64_t id, std::string_view payload) override {
    WEIR_RETURN_IF_ERROR(BeginTenure());
    WEIR_ASSIGN_OR_RETURN(auto fields, DecisionFields(id));
    fields[6] = payload;
    return etcd_.Write({EtcdPut{etcd_.IdKey("decision/", id), JoinAll(fields)}});
  }

  StatusOr<StoredDecision> GetDecision(int64_t id) override {
    WEIR_ASSIGN_OR_RETURN(const auto fields, DecisionFields(id));
    StoredDecision out = DecisionHead(id, fields);
    for (const auto& [key, text] : {std::pair(etcd_.IdKey("inputs/", id), &out.snapshot),
                                    std::pair(etcd_.Key("text/", fields[4]), &out.base),
                                    std::pair(etcd_.Key("text/", fields[5]), &out.policy)}) {
      WEIR_ASSIGN_OR_RETURN(const EtcdRows found, etcd_.Read({.key = key}));
      if (found.rows.empty()) continue;
      WEIR_ASSIGN_OR_RETURN(auto kept, SplitFields(found.rows.front().value, 1));
      *text = std::move(kept[0]);
    }
    return out;
  }

  StatusOr<std::vector<StoredDecision>> ListDecisions(std::string_view job, int64_t before,
                                                      size_t count_max,
                                                      bool switched_only) override {
    if (count_max == 0) return std::vector<StoredDecision>();
    std::vector<StoredDecision> out;
    const std::string part = job.empty() ? "decision/" : DecisionsOf(job);
    int64_t below = before > 0 ? before : std::numeric_limits<int64_t>::max();
    while (out.size() < count_max) {
      const int64_t wanted = static_cast<int64_t>(count_max - out.size());
      const int64_t page = job.empty() ? std::min(wanted, int64_t{EtcdClient::kOperationsMax})
                                       : std::min(switched_only ? kIndexPage : wanted, kIndexPage);
      WEIR_ASSIGN_OR_RETURN(const EtcdRows rows, etcd_.Read({.key = prefix_ + "/" + part,
                                                             .end = etcd_.IdKey(part, below),
                                                             .limit = page,
                                                             .descending = true}));
      std::vector<int64_t> ids;  // of decisions whose own rows are still to be read
      for (const EtcdRow& row : rows.rows) {
        WEIR_ASSIGN_OR_RETURN(const std::string number, LastKeyPart(row.key));
        below = static_cast<int64_t>(CountOf(number));
        if (job.empty()) {
          WEIR_ASSIGN_OR_RETURN(const auto fields, SplitFields(row.value, 7));
          StoredDecision decision = DecisionHead(below, fields);
          if (switched_only && !decision.switched) continue;
          if (out.size() < count_max) out.push_back(std::move(decision));
          continue;
        }
        WEIR_ASSIGN_OR_RETURN(const DecisionIndex::Entry entry, EntryOf(row.value));
        if (switched_only && !entry.switched) continue;
        if (out.size() + ids.size() < count_max) ids.push_back(below);
      }
      WEIR_RETURN_IF_ERROR(ReadDecisions(ids, &out));
      if (static_cast<int64_t>(rows.rows.size()) < page) break;
    }
    return out;
  }

  Status PutPolicy(const StoredPolicy& policy) override {
    return etcd_.Write({EtcdPut{etcd_.Key("policy/", policy.name),
                                JoinFields({policy.source, FieldText(policy.applied_unix_s)})}});
  }
  Status DeletePolicy(std::string_view name) override {
    return etcd_.Write({EtcdDelete{etcd_.Key("policy/", name)}});
  }
  StatusOr<std::vector<StoredPolicy>> ListPolicies() override {
    return List<StoredPolicy>("policy/", 2, [](std::string name, std::vector<std::string> fields) {
      return StoredPolicy{std::move(name), std::move(fields[0]), NumberOf(fields[1])};
    });
  }

  Status PutPin(const StoredPin& pin) override {
    return etcd_.Write(
        {EtcdPut{etcd_.Key("pin/", pin.job), JoinFields({pin.payload, FieldText(pin.unix_s)})}});
  }
  Status DeletePin(std::string_view job) override {
    return etcd_.Write({EtcdDelete{etcd_.Key("pin/", job)}});
  }
  StatusOr<std::vector<StoredPin>> ListPins() override {
    return List<StoredPin>("pin/", 2, [](std::string name, std::vector<std::string> fields) {
      return StoredPin{std::move(name), std::move(fields[0]), NumberOf(fields[1])};
    });
  }

  Status AddAudit(const AuditEntry& entry) override {
    WEIR_RETURN_IF_ERROR(BeginTenure());
    WEIR_ASSIGN_OR_RETURN(const int64_t id, NextId("last/audit", &last_audit_));
    const std::string part = AuditPart(entry.refused);
    WEIR_RETURN_IF_ERROR(etcd_.Write(
        {EtcdPut{etcd_.IdKey(part, id), JoinFields({FieldText(entry.unix_s), entry.actor,
                                                    entry.action, entry.target, entry.detail})},
         EtcdPut{prefix_ + "/last/audit", std::to_string(id)}}));
    const std::string all = prefix_ + "/" + part;
    return etcd_.DeleteOldest(
        {.key = all, .end = EtcdPrefixEnd(all)},
        static_cast<int64_t>(entry.refused ? limits_.audit_refused_max : limits_.audit_max));
  }

  StatusOr<std::vector<AuditEntry>> ListAudit(size_t count_max, int64_t before) override {
    if (count_max == 0) return std::vector<AuditEntry>();
    const int64_t below = before > 0 ? before : std::numeric_limits<int64_t>::max();
    std::vector<AuditEntry> out;
    for (const bool refused : {false, true}) {
      const std::string part = AuditPart(refused);
      WEIR_ASSIGN_OR_RETURN(const EtcdRows rows,
                            etcd_.Read({.key = prefix_ + "/" + part,
                                        .end = etcd_.IdKey(part, below),
                                        .limit = static_cast<int64_t>(count_max),
                                        .descending = true}));
      for (const EtcdRow& row : rows.rows) {
        WEIR_ASSIGN_OR_RETURN(auto fields, SplitFields(row.value, 5));
        WEIR_ASSIGN_OR_RETURN(const std::string id, LastKeyPart(row.key));
        out.push_back({NumberOf(fields[0]), std::move(fields[1]), std::move(fields[2]),
                       std::move(fields[3]), std::move(fields[4]), refused,
                       static_cast<int64_t>(CountOf(id))});
      }
    }
    std::sort(out.begin(), out.end(),
              [](const AuditEntry& a, const AuditEntry& b) { return a.id > b.id; });
    if (out.size() > count_max) out.resize(count_max);
    return out;
  }

  Status PutFact(std::string_view name, std::string_view value) override {
    return etcd_.Write({EtcdPut{etcd_.Key("fact/", name), JoinFields({value})}});
  }
  StatusOr<std::string> GetFact(std::string_view name) override {
    WEIR_ASSIGN_OR_RETURN(const EtcdRows found, etcd_.Read({.key = etcd_.Key("fact/", name)}));
    if (found.rows.empty()) return std::string();
    WEIR_ASSIGN_OR_RETURN(auto fields, SplitFields(found.rows.front().value, 1));
    return std::move(fields[0]);
  }

  // Plans are small beside decisions, and only counted in the whole.
  StatusOr<StoreUsage> Usage() override {
    StoreUsage usage;
    WEIR_ASSIGN_OR_RETURN(usage.bytes, etcd_.DatabaseBytes());
    if (index_loaded_) usage.job_bytes = index_.Bytes();
    return usage;
  }

  Status Backup(const std::string&) const override {
    return Unimplemented(
        "etcd is backed up by its own tools: etcdctl snapshot save FILE, and etcdutl snapshot "
        "restore FILE");
  }

 private:
  using Ages = std::map<std::string, double>;

  static std::string DecisionsOf(std::string_view job) {
    return StrCat("decision_of/", KeyPart(job), "/");
  }
  static std::string AuditPart(bool refused) { return refused ? "audit/1/" : "audit/0/"; }

  static std::string JoinAll(const std::vector<std::string>& fields) {
    return JoinFields({fields.begin(), fields.end()});
  }
  static std::string EntryText(const DecisionIndex::Entry& entry) {
    return JoinFields({entry.switched ? "1" : "0", std::to_string(entry.bytes),
                       std::to_string(entry.snapshot_bytes), entry.base, entry.policy});
  }
  static StatusOr<DecisionIndex::Entry> EntryOf(std::string_view value) {
    WEIR_ASSIGN_OR_RETURN(auto fields, SplitFields(value, 5));
    return DecisionIndex::Entry{fields[0] == "1", CountOf(fields[1]), CountOf(fields[2]),
                                std::move(fields[3]), std::move(fields[4])};
  }
  static StoredDecision DecisionHead(int64_t id, const std::vector<std::string>& fields) {
    return {.id = id,
            .job = fields[0],
            .step = CountOf(fields[1]),
            .unix_s = NumberOf(fields[2]),
            .payload = fields[6],
            .switched = fields[3] == "1"};
  }
  static std::string_view Oldest(const Ages& ages) {
    return std::min_element(ages.begin(), ages.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }

  // Forgets what an earlier tenure knew. An error when this controller stands by.
  Status BeginTenure() {
    WEIR_ASSIGN_OR_RETURN(const uint64_t term, etcd_.Term());
    if (term == term_) return OkStatus();
    term_ = term;
    versions_.clear();
    texts_.clear();
    index_ = DecisionIndex();
    index_loaded_ = false;
    node_ages_.reset();
    job_ages_.reset();
    last_decision_.reset();
    last_audit_.reset();
    return OkStatus();
  }

  template <typename Row, typename Make>
  StatusOr<std::vector<Row>> List(const std::string& part, size_t fields, Make make) {
    const std::string begin = prefix_ + "/" + part;
    WEIR_ASSIGN_OR_RETURN(const auto found,
                          etcd_.ReadAll({.key = begin, .end = EtcdPrefixEnd(begin)}));
    std::vector<Row> out;
    for (const EtcdRow& row : found) {
      WEIR_ASSIGN_OR_RETURN(std::string name, LastKeyPart(row.key));
      WEIR_ASSIGN_OR_RETURN(auto split, SplitFields(row.value, fields));
      out.push_back(make(std::move(name), std::move(split)));
    }
    return out;
  }

  Status LoadAges(const std::string& part, size_t field, std::optional<Ages>* ages) {
    if (ages->has_value()) return OkStatus();
    const std::string begin = prefix_ + "/" + part;
    WEIR_ASSIGN_OR_RETURN(const auto found,
                          etcd_.ReadAll({.key = begin, .end = EtcdPrefixEnd(begin)}));
    Ages loaded;
    for (const EtcdRow& row : found) {
      WEIR_ASSIGN_OR_RETURN(std::string name, LastKeyPart(row.key));
      WEIR_ASSIGN_OR_RETURN(const auto fields, SplitFields(row.value, field + 1));
      loaded[std::move(name)] = NumberOf(fields[field]);
    }
    *ages = std::move(loaded);
    return OkStatus();
  }

  Status LoadIndex() {
    if (index_loaded_) return OkStatus();
    DecisionIndex loaded;
    const std::string begin = prefix_ + "/decision_of/";
    WEIR_ASSIGN_OR_RETURN(const auto rows,
                          etcd_.ReadAll({.key = begin, .end = EtcdPrefixEnd(begin)}));
    for (const EtcdRow& row : rows) {
      WEIR_ASSIGN_OR_RETURN(const std::string id, LastKeyPart(row.key));
      const std::string path = row.key.substr(0, row.key.rfind('/'));
      WEIR_ASSIGN_OR_RETURN(const std::string job, LastKeyPart(path));
      WEIR_ASSIGN_OR_RETURN(DecisionIndex::Entry entry, EntryOf(row.value));
      loaded.Add(job, static_cast<int64_t>(CountOf(id)), std::move(entry));
    }
    const std::string texts = prefix_ + "/text/";
    WEIR_ASSIGN_OR_RETURN(
        const auto names,
        etcd_.ReadAll({.key = texts, .end = EtcdPrefixEnd(texts), .keys_only = true}));
    for (const EtcdRow& row : names) {
      WEIR_ASSIGN_OR_RETURN(std::string name, LastKeyPart(row.key));
      texts_.insert(std::move(name));
    }
    index_ = std::move(loaded);
    index_loaded_ = true;
    return OkStatus();
  }

  StatusOr<int64_t> NextId(const std::string& key, std::optional<int64_t>* last) {
    if (!last->has_value()) {
      WEIR_ASSIGN_OR_RETURN(const EtcdRows found, etcd_.Read({.key = prefix_ + "/" + key}));
      *last = found.rows.empty() ? 0 : static_cast<int64_t>(CountOf(found.rows.front().value));
    }
    return ++**last;  // also where the write then fails: it may have been made all the same
  }

  StatusOr<std::vector<std::string>> DecisionFields(int64_t id) {
    WEIR_ASSIGN_OR_RETURN(const EtcdRows found, etcd_.Read({.key = etcd_.IdKey("decision/", id)}));
    if (found.rows.empty()) return NotFound(StrCat("no decision ", id));
    return SplitFields(found.rows.front().value, 7);
  }

  // Appends the decisions of these ids that still exist.
  Status ReadDecisions(const std::vector<int64_t>& ids, std::vector<StoredDecision>* out) {
    for (size_t begin = 0; begin < ids.size(); begin += EtcdClient::kOperationsMax) {
      const size_t end = std::min(begin + EtcdClient::kOperationsMax, ids.size());
      std::vector<EtcdRange> asked;
      for (size_t i = begin; i < end; ++i) {
        asked.push_back(EtcdRange{.key = etcd_.IdKey("decision/", ids[i])});
      }
      WEIR_ASSIGN_OR_RETURN(const std::vector<EtcdRows> answers, etcd_.ReadEach(asked));
      for (size_t i = begin; i < end; ++i) {
        const auto& rows = answers[i - begin].rows;
        if (rows.empty()) continue;
        WEIR_ASSIGN_OR_RETURN(const auto fields, SplitFields(rows.front().value, 7));
        out->push_back(DecisionHead(ids[i], fields));
      }
    }
    return OkStatus();
  }

  void AddDeletion(uint64_t id, std::vector<EtcdOperation>* operations) const {
    operations->push_back(EtcdDelete{etcd_.IdKey("inputs/", static_cast<int64_t>(id))});
    operations->push_back(EtcdDelete{etcd_.IdKey("decision/", static_cast<int64_t>(id))});
  }

  // Enforces the limits on decisions, and deletes shared texts that none needs any more.
  Status Tidy(const std::string& job) {
    const DecisionIndex::Excess excess = index_.TakeExcess(job, limits_);
    std::vector<EtcdOperation> operations;
    for (const auto& [of, id] : excess.decisions) {
      AddDeletion(Unsigned(id), &operations);
      operations.push_back(EtcdDelete{etcd_.IdKey(DecisionsOf(of), id)});
    }
    for (const auto& [of, id] : excess.inputs) {
      operations.push_back(EtcdDelete{etcd_.IdKey("inputs/", id)});
      if (const DecisionIndex::Entry* entry = index_.Find(of, id); entry != nullptr) {
        operations.push_back(EtcdPut{etcd_.IdKey(DecisionsOf(of), id), EntryText(*entry)});
      }
    }
    const std::set<std::string> needed = index_.Texts();
    std::vector<std::string> unused;
    std::set_difference(texts_.begin(), texts_.end(), needed.begin(), needed.end(),
                        std::back_inserter(unused));
    for (const std::string& text : unused)
      operations.push_back(EtcdDelete{etcd_.Key("text/", text)});
    const Status written = etcd_.Write(std::move(operations));
    if (!written.ok()) {
      index_loaded_ = false;  // it is ahead of etcd now
      return written;
    }
    for (const std::string& text : unused) texts_.erase(text);
    return OkStatus();
  }

  EtcdAccess etcd_;
  const StoreLimits limits_;
  const std::string prefix_;

  // Known in the tenure `term_`.
  uint64_t term_ = 0;
  std::map<std::string, uint64_t> versions_;  // the highest plan of a job
  std::set<std::string> texts_;
  DecisionIndex index_;
  bool index_loaded_ = false;
  std::optional<Ages> node_ages_, job_ages_;
  std::optional<int64_t> last_decision_, last_audit_;
};

}  // namespace

std::unique_ptr<Store> OpenEtcdStore(const EtcdOptions& options, const Leadership& leadership,
                                     StoreLimits limits) {
  return std::make_unique<EtcdStore>(options, leadership, limits);
}

}  // namespace weir
