// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/policies.h"

#include <cstdio>

#include "controller/messages/builtin_capabilities.h"
#include "controller/messages/mapping.h"
#include "controller/objective/objective.h"

namespace weir::cli {
namespace {

using Stub = v1::AdminService::Stub;
using Effects = google::protobuf::RepeatedPtrField<v1::PolicyEffect>;

std::string PlanText(const v1::PlanFacts& plan) {
  return StrCat(plan.label(), ", ", SecondsText(plan.step_s()), " a step");
}

// One sentence on what the job would run.
std::string EffectText(const v1::PolicyEffect& effect) {
  if (!effect.nothing_to_choose().empty()) {
    return StrCat("nothing to choose: ", effect.nothing_to_choose());
  }
  if (!effect.unforeseen().empty()) return StrCat("cannot be foreseen: ", effect.unforeseen());
  if (!effect.switches() && effect.has_running()) {
    return StrCat("keeps ", PlanText(effect.running()));
  }
  return StrCat(effect.has_running() ? StrCat(PlanText(effect.running()), " -> ") : "runs ",
                PlanText(effect.chosen()));
}

Status PrintEffects(const Effects& effects) {
  if (effects.empty()) {
    std::printf("no running job is concerned\n");
    return OkStatus();
  }
  Table table{{"JOB", "POLICY", "EFFECT"}, {}};
  std::string stuck;
  for (const v1::PolicyEffect& effect : effects) {
    const bool same = effect.policy_before() == effect.policy_after();
    table.rows.push_back({effect.job(),
                          same ? effect.policy_after()
                               : StrCat(effect.policy_before(), " -> ", effect.policy_after()),
                          EffectText(effect)});
    if (!effect.nothing_to_choose().empty())
      stuck += StrCat(stuck.empty() ? "" : ", ", effect.job());
  }
  std::fputs(Render(table).c_str(), stdout);
  if (stuck.empty()) return OkStatus();
  return FailedPrecondition(StrCat("the policy would leave nothing to choose to: ", stuck));
}

}  // namespace

Status Apply(Client& client, const ApplyRequest& request, Output output) {
  WEIR_ASSIGN_OR_RETURN(const std::string source, ReadFile(request.file));
  WEIR_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(source, request.file));
  v1::ApplyPolicyRequest call;
  call.set_name(policy.name);
  call.set_source(source);
  call.set_actor(request.actor);
  call.set_dry_run(request.dry_run);
  v1::ApplyPolicyResponse response;
  WEIR_RETURN_IF_ERROR(client.Call(&Stub::ApplyPolicy, call, &response));
  if (output != Output::kTable) {
    std::fputs(Render(response, output).c_str(), stdout);
    return OkStatus();
  }
  if (!request.differences) {
    std::printf("policy '%s' %s\n", policy.name.c_str(),
                request.dry_run ? "is valid (dry run)" : "applied");
  }
  for (const std::string& warning : response.policy().warnings()) {
    std::fprintf(stderr, "weirctl: warning: %s\n", warning.c_str());
  }
  if (request.dry_run) {
    for (const v1::PolicyDifference& each : response.differences()) {
      std::printf("  %s: %s -> %s\n", each.key().c_str(), each.before().c_str(),
                  each.after().c_str());
    }
  }
  return PrintEffects(response.effects());
}

Status Delete(Client& client, const DeleteRequest& request, Output output) {
  const auto print = [&](const google::protobuf::Message& response) {
    if (output != Output::kTable) {
      std::fputs(Render(response, output).c_str(), stdout);
    } else {
      std::printf("%s '%s' %s\n", request.kind.c_str(), request.name.c_str(),
                  request.dry_run ? "would be deleted (dry run)" : "deleted");
    }
  };
  if (request.kind == "policy") {
    v1::DeletePolicyRequest call;
    call.set_name(request.name);
    call.set_actor(request.actor);
    call.set_dry_run(request.dry_run);
    v1::DeletePolicyResponse response;
    WEIR_RETURN_IF_ERROR(client.Call(&Stub::DeletePolicy, call, &response));
    print(response);
    return output == Output::kTable ? PrintEffects(response.effects()) : OkStatus();
  }
  if (request.dry_run) return InvalidArgument("--dry-run is for policies");
  if (request.kind == "node") {
    v1::ForgetNodeRequest call;
    call.set_name(request.name);
    call.set_actor(request.actor);
    v1::ForgetNodeResponse response;
    WEIR_RETURN_IF_ERROR(client.Call(&Stub::ForgetNode, call, &response));
    print(response);
    return OkStatus();
  }
  v1::ForgetJobRequest call;
  call.set_name(request.name);
  call.set_actor(request.actor);
  v1::ForgetJobResponse response;
  WEIR_RETURN_IF_ERROR(client.Call(&Stub::ForgetJob, call, &response));
  print(response);
  return OkStatus();
}

Status Validate(const std::string& file) {
  WEIR_ASSIGN_OR_RETURN(const std::string source, ReadFile(file));
  const PolicyNames names = NamesOf(BuiltinDeviceCapabilities());
  WEIR_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(source, file, &names));
  std::printf("%s: valid policy '%s', objective %s\n", file.c_str(), policy.name.c_str(),
              policy.objective.c_str());
  return OkStatus();
}

std::string PolicySchemaText() {
  std::set<std::string> objectives;
  for (const Objective* objective : Objectives().All()) objectives.insert(objective->Traits().name);
  return PolicySchema(NamesOf(BuiltinDeviceCapabilities()), objectives) + "\n";
}

}  // namespace weir::cli
