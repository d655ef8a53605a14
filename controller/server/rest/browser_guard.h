// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps pages of other sites from using a person's browser against this server. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "datapath/base/status.h"

namespace weir {

/// The headers of a request that say where it comes from; empty: absent.
struct RequestHeaders {
  std::string_view method, path;
  std::string host, origin, fetch_site, content_type;
};

struct GuardOptions {
  bool loopback = true;                 // whether the listener is
  std::vector<std::string> hosts = {};  // further names by which it may be reached
};

/// kPermissionDenied: on loopback, Host is neither a loopback address nor one of the names (a DNS
/// name that an attacker points to 127.0.0.1); or the request is made by a page of another origin
/// (Origin, Sec-Fetch-Site). kInvalidArgument: a body that is not declared as JSON, which a form of
/// another site could send. Source: the Fetch standard, sections on CORS-safelisted content types;
/// W3C Fetch Metadata.
Status CheckBrowser(const RequestHeaders& request, const GuardOptions& options);

}  // namespace weir
