// SPDX-License-Identifier: Apache-2.0
#pragma once
// One table of routes drives the REST server, the OpenAPI document and the roles of both REST and
// gRPC.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "controller/server/auth/principals.h"
#include "datapath/base/status.h"

namespace google::protobuf {
class Descriptor;
class Message;
class MethodDescriptor;
}  // namespace google::protobuf

namespace weir {

struct Route {
  const char* verb;     // "GET", "POST" or "PUT"
  const char* pattern;  // "/v1/jobs/{job}:explain": braces name request fields
  const char* method;   // of weir.v1.AdminService
  Role role;
  const char* summary;
  bool event_stream = false;
};

std::span<const Route> Routes();
/// The route of `method`, which must exist.
const Route& RouteOf(std::string_view method);
/// OK if `principal` may make this request: it has the role, and may change the job that the
/// request names or, where an admin is needed, every job. kPermissionDenied says what is missing.
Status Permit(const Principal& principal, const Route& route,
              const google::protobuf::Message& request);
const google::protobuf::MethodDescriptor* MethodOf(const Route& route);

struct RouteMatch {
  const Route* route;
  std::map<std::string, std::string> path_fields;  // percent-decoded
};

/// `path`: not decoded, without the query. kNotFound: no such path; kUnimplemented: the path needs
/// another verb (the server answers HTTP 405).
StatusOr<RouteMatch> MatchRoute(std::string_view verb, std::string_view path);

/// Sets field `name` of `message` from text: strings, integers, reals, booleans; repeated strings
/// take comma-separated values. kInvalidArgument: no such field, or not a value of its type.
Status SetField(google::protobuf::Message* message, const std::string& name,
                const std::string& value);

/// kInvalidArgument: a percent sign without two hexadecimal digits.
StatusOr<std::string> PercentDecode(std::string_view text);

}  // namespace weir
