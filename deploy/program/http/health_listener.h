// SPDX-License-Identifier: Apache-2.0
#pragma once
// /healthz and /readyz on a listener of its own, for the probes of an orchestrator: its threads
// serve nothing else, so that no other client can keep them busy.

#include <functional>
#include <memory>
#include <string>

#include "datapath/base/status.h"
#include "deploy/program/tls/tls_files.h"

namespace weir {

class HealthListener {
 public:
  struct Options {
    std::string host = {};
    int port = 0;             // 0: any free one
    TlsFiles* tls = nullptr;  // null: plain text; else it has a certificate and outlives this
  };
  /// The answer while all is well, such as "ok".
  using Check = std::function<StatusOr<std::string>()>;

  /// Serves until it is destroyed. The checks are called on its threads and must return soon; an
  /// error is answered with 503 and its message. Anyone may ask: nothing but the answers is there.
  /// kUnavailable: the address cannot be bound.
  static StatusOr<std::unique_ptr<HealthListener>> Start(const Options& options, Check healthy,
                                                         Check ready);
  virtual ~HealthListener() = default;
  virtual int port() const = 0;
};

}  // namespace weir
