// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdminService's unary methods by name, for gRPC and REST alike: who may call them, what they do to
// the fleet, and their place in the audit trail.

#include <string>

#include "controller/server/audit.h"
#include "controller/server/auth/authenticator.h"
#include "controller/server/backups.h"
#include "controller/server/call_limit.h"
#include "controller/server/executor.h"
#include "controller/server/rest/routes.h"
#include "controller/server/served_plane.h"
#include "datapath/base/mutex.h"

namespace weir {

/// All referenced objects must outlive it.
class AdminCalls {
 public:
  AdminCalls(Executor& executor, ServedPlane& served, AuditTrail& audit,
             Authenticator& authenticator, Backups& backups)
      : executor_(executor),
        served_(served),
        audit_(audit),
        authenticator_(authenticator),
        backups_(backups) {}

  /// The caller, if it may make the request. A refusal of what would change something goes to the
  /// audit trail. Errors: those of Identify, CallLimit and Permit; kUnavailable: only the leader
  /// can answer. Thread-safe.
  StatusOr<Caller> Admit(const Credentials& credentials, const Route& route,
                         const google::protobuf::Message& request);

  /// Counts a call of the caller, of whatever kind. kResourceExhausted: see CallLimit. Thread-safe.
  Status Count(const Caller& caller) {
    return limit_.Take(StrCat(caller.name, " at ", caller.from.peer));
  }

  /// Calls the method for an admitted caller, and records a change. On the executor's thread.
  Status Call(const Caller& caller, const Route& route, const google::protobuf::Message& request,
              google::protobuf::Message* response);

  /// Puts a refusal into the audit trail, unless there are too many. Thread-safe. `caller`: null
  /// where nobody is known.
  void Refuse(const Caller* caller, const Origin& from, const std::string& method,
              const std::string& target, const Status& why);

  const ServedPlane& served() const { return served_; }

  /// Sets the address to which OpenPage sends people: "http://127.0.0.1:7780". To be set before the
  /// first call.
  void SetPageUrl(std::string url) { page_url_ = std::move(url); }

 private:
  Status Dispatch(const Caller& caller, std::string_view method,
                  const google::protobuf::Message& request, google::protobuf::Message* response);
  Status ListAudit(const Caller& caller, const v1::ListAuditRequest& request,
                   v1::ListAuditResponse* response);
  Status OpenPage(const Caller& caller, const v1::OpenPageRequest& request,
                  v1::OpenPageResponse* response);
  Status StartBackup(const Caller& caller, const v1::StartBackupRequest& request,
                     v1::StartBackupResponse* response);
  Status ReadBackup(const Caller& caller, const v1::ReadBackupRequest& request,
                    v1::BackupPart* response);
  std::string StateOf(const google::protobuf::Message& request);

  Executor& executor_;
  ServedPlane& served_;
  AuditTrail& audit_;
  Authenticator& authenticator_;
  Backups& backups_;
  CallLimit limit_;
  std::string page_url_;
};

}  // namespace weir
