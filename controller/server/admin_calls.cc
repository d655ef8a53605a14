// SPDX-License-Identifier: Apache-2.0
#include "controller/server/admin_calls.h"

#include <google/protobuf/message.h>

#include <memory>

#include "controller/messages/json.h"
#include "controller/objective/objective.h"
#include "controller/server/status_mapping.h"
#include "datapath/base/log.h"

namespace weir {
namespace {

using ProtoMessage = google::protobuf::Message;

// The text of a field, or nothing where the message has no such field.
std::string TextOf(const ProtoMessage& message, const char* name) {
  const auto* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
    return "";
  }
  return message.GetReflection()->GetString(message, field);
}

// The job, policy or node that a request is about. A policy's name may be in its text alone.
std::string TargetOf(const ProtoMessage& request) {
  const std::string job = TextOf(request, "job");
  if (!job.empty()) return job;
  const std::string name = TextOf(request, "name");
  if (!name.empty() || request.GetDescriptor() != v1::ApplyPolicyRequest::descriptor()) return name;
  const auto policy = ReadPolicy(TextOf(request, "source"), "policy");
  return policy.ok() ? policy->name : "";
}

bool Changes(const Route& route, const ProtoMessage& request) {
  if (std::string_view(route.verb) == "GET" || route.role == Role::kViewer) return false;
  const auto* dry_run = request.GetDescriptor()->FindFieldByName("dry_run");
  return dry_run == nullptr || !request.GetReflection()->GetBool(request, dry_run);
}

bool ByLeaderOnly(const Route& route) {
  return route.event_stream ||
         (std::string_view(route.verb) != "GET" && route.role != Role::kViewer);
}

}  // namespace

StatusOr<Caller> AdminCalls::Admit(const Credentials& credentials, const Route& route,
                                   const ProtoMessage& request) {
  const auto caller = authenticator_.Identify(credentials);
  if (caller.ok()) WEIR_RETURN_IF_ERROR(Count(*caller));
  const Status allowed = caller.ok() ? Permit(*caller, route, request) : caller.status();
  if (allowed.ok()) {
    // A standby knows what is stored, and nothing of what happens now.
    if (ByLeaderOnly(route)) WEIR_RETURN_IF_ERROR(served_.RequireActing());
    return caller;
  }
  if (route.role != Role::kViewer) {
    Refuse(caller.ok() ? &*caller : nullptr, credentials.origin(), route.method, TargetOf(request),
           allowed);
  }
  return allowed;
}

void AdminCalls::Refuse(const Caller* caller, const Origin& from, const std::string& method,
                        const std::string& target, const Status& why) {
  if (!audit_.TakesRefusal(from.peer)) return;
  executor_.Post([&audit = audit_, record = RefusalRecord(caller, from, method, target, why)] {
    audit.Add(record);
  });
}

Status AdminCalls::Call(const Caller& caller, const Route& route, const ProtoMessage& request,
                        ProtoMessage* response) {
  if (ByLeaderOnly(route)) WEIR_RETURN_IF_ERROR(served_.RequireActing());
  if (!Changes(route, request)) return Dispatch(caller, route.method, request, response);
  // The credential says who acts. Only local callers, who have none, may give a name.
  const std::unique_ptr<ProtoMessage> named(request.New());
  named->CopyFrom(request);
  const auto* actor = named->GetDescriptor()->FindFieldByName("actor");
  const std::string claimed = TextOf(request, "actor");
  if (actor != nullptr && (caller.proof != "local" || claimed.empty())) {
    named->GetReflection()->SetString(named.get(), actor, caller.name);
  }
  v1::AuditRecord record;
  record.set_principal(caller.name);
  record.set_proof(caller.proof);
  record.set_peer(caller.from.peer);
  record.set_request_id(caller.from.request_id);
  record.set_method(route.method);
  record.set_target(TargetOf(request));
  record.set_before(StateOf(request));
  const Status done = Dispatch(caller, route.method, *named, response);
  record.set_after(StateOf(request));
  record.set_outcome(std::string(CodeName(done.code())));
  std::string reason = TextOf(request, "reason");
  if (caller.proof == "local" && !claimed.empty()) reason = StrCat("[", claimed, "] ", reason);
  record.set_reason(done.ok() ? reason : Message(done));
  audit_.Add(std::move(record));
  return done;
}

// The state that a request changes, as a record shows it.
std::string AdminCalls::StateOf(const ProtoMessage& request) {
  if (const std::string job = TextOf(request, "job"); !job.empty()) {
    v1::GetJobRequest ask;
    ask.set_name(job);
    v1::Job found;
    return served_->admin.GetJob(ask, &found).ok() ? found.pinned() : "";
  }
  const std::string_view type = request.GetDescriptor()->name();
  const std::string name = TargetOf(request);
  if (type == "SetLogLevelRequest") return std::string(LogLevelName(MinimumLogLevel()));
  if (type == "ForgetNodeRequest") {
    v1::GetNodeRequest ask;
    ask.set_name(name);
    v1::Node found;
    return served_->admin.GetNode(ask, &found).ok() ? ToCompactJson(found) : "";
  }
  if (type == "ForgetJobRequest") {
    v1::GetJobRequest ask;
    ask.set_name(name);
    v1::Job found;
    return served_->admin.GetJob(ask, &found).ok() ? ToCompactJson(found) : "";
  }
  if (type.find("Policy") == std::string_view::npos) return "";
  v1::ListPoliciesResponse list;
  if (!served_->admin.ListPolicies({}, &list).ok()) return "";
  for (const v1::Policy& policy : list.policies()) {
    if (policy.name() == name) return StrCat(policy.etag(), "\n", policy.source());
  }
  return "";
}

Status AdminCalls::ListAudit(const Caller&, const v1::ListAuditRequest& request,
                             v1::ListAuditResponse* response) {
  return audit_.List(request, response);
}

Status AdminCalls::OpenPage(const Caller& caller, const v1::OpenPageRequest&,
                            v1::OpenPageResponse* response) {
  WEIR_ASSIGN_OR_RETURN(const std::string code, authenticator_.MakeCode(caller));
  response->set_code(code);
  response->set_url(StrCat(page_url_, "/#code=", code));
  return OkStatus();
}

Status AdminCalls::StartBackup(const Caller&, const v1::StartBackupRequest&,
                               v1::StartBackupResponse* response) {
  WEIR_ASSIGN_OR_RETURN(*response->mutable_id(), backups_.Start());
  return OkStatus();
}

Status AdminCalls::ReadBackup(const Caller&, const v1::ReadBackupRequest& request,
                              v1::BackupPart* response) {
  WEIR_ASSIGN_OR_RETURN(BackupContents part, backups_.Read(request.id(), request.offset()));
  response->set_ready(part.ready);
  response->set_bytes(part.bytes);
  response->set_data(std::move(part.data));
  return OkStatus();
}

Status AdminCalls::Dispatch(const Caller& caller, std::string_view method,
                            const ProtoMessage& request, ProtoMessage* response) {
#define WEIR_ADMIN_UNARY(name, Request, Response)                        \
  if (method == #name) {                                                 \
    return served_->admin.name(static_cast<const v1::Request&>(request), \
                               static_cast<v1::Response*>(response));    \
  }
#define WEIR_ADMIN_OWN(name, Request, Response)                   \
  if (method == #name) {                                          \
    return name(caller, static_cast<const v1::Request&>(request), \
                static_cast<v1::Response*>(response));            \
  }
#include "controller/server/admin_methods.def"
#undef WEIR_ADMIN_UNARY
  return Unimplemented(StrCat("no method ", method));
}

}  // namespace weir
