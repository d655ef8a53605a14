// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operators' side of a fleet: what AdminService answers, whatever carries it.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/fleet/fleet.h"
#include "controller/server/event_hub.h"
#include "controller/server/store_journal.h"
#include "deploy/program/tls/tls_files.h"
#include "weir/v1/admin.pb.h"

namespace weir {

/// Not thread-safe: all calls on the executor's thread. The references outlive it.
class AdminApi {
 public:
  AdminApi(Fleet& fleet, Store& store, StoreJournal& journal, const EventHub& events)
      : fleet_(fleet), store_(store), journal_(journal), events_(events) {}

  // See admin.proto. All fill `response` on OK.
#define WEIR_ADMIN_UNARY(method, Request, Response) \
  Status method(const v1::Request& request, v1::Response* response);
#include "controller/server/admin_methods.def"
#undef WEIR_ADMIN_UNARY

  /// See metrics.h.
  std::string MetricsText(const std::optional<TlsHealth>& tls = std::nullopt) const;
  /// OK when decisions can be made and stored.
  Status Ready();

 private:
  StatusOr<Job*> RequireJob(const std::string& name) const;
  StatusOr<v1::Decision> WholeDecision(const std::string& id_text);
  v1::Job JobProto(const Job& job) const;
  v1::Policy PolicyProto(const PolicyEntry& entry, size_t precedence) const;
  std::map<std::string, std::vector<std::string>> RuledJobs() const;
  Status CheckTag(const std::string& name, const std::string& if_match) const;

  Fleet& fleet_;
  Store& store_;
  StoreJournal& journal_;
  const EventHub& events_;
  const Clock& clock_ = fleet_.clock();
};

}  // namespace weir
