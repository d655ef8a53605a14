// SPDX-License-Identifier: Apache-2.0
#pragma once
// The aggregator's control interface over HTTP: leases, capacity, /metrics, /healthz.

#include <memory>
#include <string>

#include "datapath/aggregation/io/server.h"
#include "datapath/base/status.h"
#include "deploy/program/token_file.h"

namespace weir::aggregation {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  /// One of its tokens is needed for everything but /healthz; null: none is. It outlives the
  /// server.
  TokenFile* tokens = nullptr;
  /// PEM files; empty: plain text. Renewed files are used for new connections (deploy/program/tls).
  std::string tls_cert, tls_key;
  std::string version;
  double goodput_bits_per_s = 0;  // as in CapacityJson
  bool access_log = false;
  std::string health_host;   // of /healthz and /readyz on a listener of their own; empty: none
  uint16_t health_port = 0;  // 0: any free one
};

/// Bodies of at most kLeaseBytesMax octets. Slow clients are bounded as deploy/program/http says.
class HttpServer {
 public:
  virtual ~HttpServer() = default;

  /// `server` outlives the result. kInvalidArgument: invalid TLS files; kUnavailable: one of them
  /// cannot be read, or the port is in use.
  static StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options,
                                                     AggregatorServer* server);
  virtual int port() const = 0;
  /// 0 where there is no listener of health.
  virtual int health_port() const = 0;
};

}  // namespace weir::aggregation
