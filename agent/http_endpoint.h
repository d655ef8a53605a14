// SPDX-License-Identifier: Apache-2.0
#pragma once
// The agent's HTTP listener: /metrics, and /healthz for probes of an orchestrator.

#include <functional>
#include <memory>
#include <string>

#include "datapath/base/status.h"
#include "deploy/program/tls/tls_files.h"
#include "deploy/program/token_file.h"

namespace weir::agent {

class HttpEndpoint {
 public:
  struct Options {
    std::string address = {};  // IP:PORT; port 0: any
    /// One of its tokens is needed for /metrics; null: none is. /healthz is open to all. It
    /// outlives the endpoint.
    TokenFile* tokens = nullptr;
    TlsFiles* tls = nullptr;  // null: plain text; else it has a certificate and outlives this
    bool access_log = false;
  };

  /// `text`: the page of /metrics; `healthy`: the answer of /healthz, an error becomes 503. Both
  /// are called on threads of the endpoint. kInvalidArgument: not an IP address and port;
  /// kUnavailable: it cannot be bound.
  static StatusOr<std::unique_ptr<HttpEndpoint>> Start(const Options& options,
                                                       std::function<std::string()> text,
                                                       std::function<Status()> healthy);
  virtual ~HttpEndpoint() = default;
  virtual int port() const = 0;
};

}  // namespace weir::agent
