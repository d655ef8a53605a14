// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/routes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "datapath/base/check.h"
#include "weir/v1/admin.pb.h"

namespace weir {
namespace {

constexpr Route kRoutes[] = {
    {"GET", "/v1/nodes", "ListNodes", Role::kViewer, "Nodes by name"},
    {"GET", "/v1/nodes/{name}", "GetNode", Role::kViewer, "One node"},
    {"GET", "/v1/links", "ListLinks", Role::kViewer, "Measured links, of one node if named"},
    {"GET", "/v1/jobs", "ListJobs", Role::kViewer, "Jobs by name"},
    {"GET", "/v1/jobs/{name}", "GetJob", Role::kViewer, "One job"},
    {"GET", "/v1/decisions", "ListDecisions", Role::kViewer, "Decisions, newest first"},
    {"GET", "/v1/decisions/{id}", "GetDecision", Role::kViewer, "One decision with its inputs"},
    {"GET", "/v1/jobs/{job}:explain", "Explain", Role::kViewer, "Why the job runs what it runs"},
    {"POST", "/v1/decisions/{id}:replay", "Replay", Role::kViewer,
     "Decides again on the stored inputs"},
    {"GET", "/v1/aggregators", "ListAggregators", Role::kViewer, "Aggregators, leases and slots"},
    {"GET", "/v1/policies", "ListPolicies", Role::kViewer, "Policies in order of precedence"},
    {"POST", "/v1/policies:validate", "ValidatePolicy", Role::kViewer,
     "Checks a policy without effect"},
    {"GET", "/v1/policies/{name}", "GetPolicy", Role::kViewer, "One policy"},
    {"PUT", "/v1/policies/{name}", "ApplyPolicy", Role::kAdmin, "Installs a policy"},
    {"DELETE", "/v1/policies/{name}", "DeletePolicy", Role::kAdmin, "Ends an applied policy"},
    {"POST", "/v1/jobs/{job}:pin", "Pin", Role::kOperator, "Fixes the choice of a job"},
    {"POST", "/v1/jobs/{job}:unpin", "Unpin", Role::kOperator, "Ends a pin"},
    {"DELETE", "/v1/nodes/{name}", "ForgetNode", Role::kAdmin, "Forgets a node that is gone"},
    {"DELETE", "/v1/jobs/{name}", "ForgetJob", Role::kAdmin, "Forgets a job without ranks"},
    {"POST", "/v1:logLevel", "SetLogLevel", Role::kAdmin, "Changes what is logged"},
    {"POST", "/v1:simulate", "Simulate", Role::kViewer, "What would be chosen"},
    {"GET", "/v1/jobs/{job}/series", "GetSeries", Role::kViewer, "Recent steps of a job"},
    {"GET", "/v1/audit", "ListAudit", Role::kAdmin, "Who changed what, or was refused"},
    {"POST", "/v1/session:open", "OpenPage", Role::kViewer, "A code that begins a session"},
    {"POST", "/v1/backups", "StartBackup", Role::kAdmin, "Begins a copy of the state"},
    {"GET", "/v1/backups/{id}", "ReadBackup", Role::kAdmin, "A part of that copy"},
    {"GET", "/v1/watch", "Watch", Role::kViewer, "Events as they happen (server-sent events)",
     true},
};

std::vector<std::string_view> Segments(std::string_view path) {
  std::vector<std::string_view> segments;
  size_t begin = 1;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    segments.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return segments;
}

// Matches one segment; a verb after a colon belongs to the pattern's last segment.
bool MatchSegment(std::string_view pattern, std::string_view text, std::string* field,
                  std::string_view* value) {
  if (pattern.empty() || pattern[0] != '{') return pattern == text;
  const size_t close = pattern.find('}');
  const std::string_view suffix = pattern.substr(close + 1);
  if (!text.ends_with(suffix) || text.size() == suffix.size()) return false;
  *field = pattern.substr(1, close - 1);
  *value = text.substr(0, text.size() - suffix.size());
  return true;
}

StatusOr<bool> MatchPattern(const Route& route, std::string_view path,
                            std::map<std::string, std::string>* fields) {
  const auto pattern = Segments(route.pattern);
  const auto text = Segments(path);
  if (pattern.size() != text.size()) return false;
  std::map<std::string, std::string> found;
  for (size_t i = 0; i < pattern.size(); ++i) {
    std::string field;
    std::string_view value;
    if (!MatchSegment(pattern[i], text[i], &field, &value)) return false;
    if (field.empty()) continue;
    WEIR_ASSIGN_OR_RETURN(found[field], PercentDecode(value));
  }
  *fields = std::move(found);
  return true;
}

template <typename Number>
Status ParseNumber(const std::string& name, const std::string& text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error == std::errc() && end == text.data() + text.size()) return OkStatus();
  return InvalidArgument(
      StrCat("parameter ", name, " is '", text.substr(0, 40), "', expected a number"));
}

}  // namespace

std::span<const Route> Routes() { return kRoutes; }

const Route& RouteOf(std::string_view method) {
  for (const Route& route : kRoutes) {
    if (method == route.method) return route;
  }
  WEIR_CHECK(false);  // a test compares the table with the service
}

Status Permit(const Principal& principal, const Route& route,
              const google::protobuf::Message& request) {
  WEIR_RETURN_IF_ERROR(RequireRole(principal, route.role));
  if (route.role == Role::kAdmin) return RequireEveryJob(principal);
  if (route.role != Role::kOperator) return OkStatus();
  const auto* job = request.GetDescriptor()->FindFieldByName("job");
  WEIR_CHECK(job != nullptr);
  return RequireJob(principal, request.GetReflection()->GetString(request, job));
}

const google::protobuf::MethodDescriptor* MethodOf(const Route& route) {
  const auto* service = v1::Event::descriptor()->file()->FindServiceByName("AdminService");
  return service->FindMethodByName(route.method);
}

StatusOr<RouteMatch> MatchRoute(std::string_view verb, std::string_view path) {
  // Literal patterns and those with a verb are tried first: "{name}" would also match "x:explain".
  const Route* best = nullptr;
  std::map<std::string, std::string> best_fields;
  std::string other_verb;
  for (const Route& route : kRoutes) {
    std::map<std::string, std::string> fields;
    WEIR_ASSIGN_OR_RETURN(const bool matches, MatchPattern(route, path, &fields));
    if (!matches) continue;
    if (verb != route.verb) {
      other_verb = route.verb;
      continue;
    }
    const bool specific = std::string_view(route.pattern).find("}:") != std::string_view::npos;
    if (best == nullptr || specific) {
      best = &route;
      best_fields = std::move(fields);
    }
  }
  if (best != nullptr) return RouteMatch{best, std::move(best_fields)};
  if (!other_verb.empty()) {
    return Unimplemented(StrCat(verb, " is not possible here, expected ", other_verb));
  }
  return NotFound(StrCat("no such path '", path.substr(0, 200), "'; see /openapi.json"));
}

Status SetField(google::protobuf::Message* message, const std::string& name,
                const std::string& value) {
  using google::protobuf::FieldDescriptor;
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
  if (field == nullptr)
    return InvalidArgument(StrCat("unknown parameter '", name.substr(0, 60), "'"));
  const auto* reflection = message->GetReflection();
  if (field->is_repeated()) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
      return InvalidArgument(StrCat("parameter ", name, " cannot be given in the address"));
    }
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      if (end > begin) reflection->AddString(message, field, value.substr(begin, end - begin));
      begin = end + 1;
    }
    return OkStatus();
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(message, field, value);
      return OkStatus();
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t number = 0;
      WEIR_RETURN_IF_ERROR(ParseNumber(name, value, &number));
      reflection->SetUInt32(message, field, number);
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t number = 0;
      WEIR_RETURN_IF_ERROR(ParseNumber(name, value, &number));
      reflection->SetUInt64(message, field, number);
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double number = 0;
      WEIR_RETURN_IF_ERROR(ParseNumber(name, value, &number));
      reflection->SetDouble(message, field, number);
      return OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (value != "true" && value != "false") {
        return InvalidArgument(
            StrCat("parameter ", name, " is '", value.substr(0, 40), "', expected true or false"));
      }
      reflection->SetBool(message, field, value == "true");
      return OkStatus();
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_ENUM:
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return InvalidArgument(StrCat("parameter ", name, " cannot be given in the address"));
}

StatusOr<std::string> PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned value = 0;
    if (text.size() - i < 3) {
      return InvalidArgument("a percent sign in the path lacks two hexadecimal digits");
    }
    const auto [end, error] = std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
    if (error != std::errc() || end != text.data() + i + 3) {
      return InvalidArgument("a percent sign in the path lacks two hexadecimal digits");
    }
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

}  // namespace weir
