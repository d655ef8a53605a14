// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/browser_guard.h"

#include <algorithm>
#include <cctype>

#include "deploy/program/loopback.h"

namespace weir {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string_view WithoutPort(std::string_view host) {
  const size_t colon = host.rfind(':');
  const bool port =
      colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos;
  return port ? host.substr(0, colon) : host;
}

Status Forbidden(std::string message) {
  return MakeStatus(StatusCode::kPermissionDenied, std::move(message));
}

bool IsJson(std::string_view content_type) {
  std::string type = Lower(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type == "application/json";
}

}  // namespace

Status CheckBrowser(const RequestHeaders& request, const GuardOptions& options) {
  const std::string host(WithoutPort(request.host));
  if (options.loopback && !IsLoopback(Lower(host)) &&
      std::find(options.hosts.begin(), options.hosts.end(), host) == options.hosts.end()) {
    return Forbidden(StrCat("this controller is on loopback, and the header Host names '",
                            host.substr(0, 100),
                            "': add --http-host if that is meant to reach it"));
  }
  if (!request.origin.empty()) {
    const size_t scheme = request.origin.find("://");
    if (scheme == std::string::npos ||
        Lower(std::string_view(request.origin).substr(scheme + 3)) != Lower(request.host)) {
      return Forbidden("pages of another origin may not use this controller");
    }
  }
  const bool api = request.path.starts_with("/v1") || request.path == "/metrics";
  if (api && (request.fetch_site == "cross-site" || request.fetch_site == "same-site")) {
    return Forbidden("pages of another site may not use this controller");
  }
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (api && !reads && !IsJson(request.content_type)) {
    return InvalidArgument("expected the header 'Content-Type: application/json'");
  }
  return OkStatus();
}

}  // namespace weir
