// SPDX-License-Identifier: Apache-2.0
#pragma once
// One running controller: store, fleet, executor, both servers and the policy watcher, started and
// stopped in the right order. main.cc reads flags; tests run it in their own process.

#include <memory>
#include <string>
#include <vector>

#include "controller/fleet/fleet.h"
#include "controller/server/auth/principals.h"
#include "controller/server/grpc/admission.h"
#include "datapath/base/status.h"

namespace weir {

struct ControllerOptions {
  std::string listen_grpc = "127.0.0.1:7700";  // or unix:FILE
  std::string listen_http = "127.0.0.1:7780";
  std::string state_file = "./weir-state.db";
  /// etcd://HOST:PORT[,HOST:PORT...][/PREFIX], or etcds:// for TLS: the state is there, and shared
  /// with other controllers. Empty: it is in `state_file`.
  std::string store;
  std::string store_ca, store_cert, store_key;  // PEM files
  std::string store_login_file;                 // a line USER:PASSWORD; empty: no login
  /// Addresses of this controller's gRPC and HTTP that others are told. Empty: those of the
  /// listeners.
  std::string advertise_grpc, advertise_http;
  std::string policy_directory;  // empty: none
  std::string token_file;        // empty: no named principals
  std::string tls_cert, tls_key, tls_ca;
  /// HTTP grants this role to callers on loopback that show nothing, where there is no token file:
  /// "none", "viewer", "operator" or "admin".
  std::string local_role = "viewer";
  std::vector<std::string> http_names;  // by which HTTP on loopback may be reached, too
  bool trust_loopback = false;  // every user of this machine is admin over gRPC, not only its own
  bool insecure = false;
  std::string listen_health;  // host:port of /healthz and /readyz alone; empty: none
  bool access_log = false;
  std::vector<std::string> aggregators;  // NAME=http(s)://HOST:PORT
  std::string aggregator_token_file;     // empty: no token
  std::string aggregator_ca;             // PEM file; empty: the system's
  FleetOptions fleet;
  AdmissionLimits admission;
};

class Controller {
 public:
  /// Errors of the store, the servers and the files; kFailedPrecondition: an address off loopback
  /// without protection (says which flag is missing).
  static StatusOr<std::unique_ptr<Controller>> Start(ControllerOptions options);
  /// Stops within about 2 s.
  virtual ~Controller() = default;

  /// The TCP port; meaningless with a Unix socket.
  virtual int grpc_port() const = 0;
  virtual int http_port() const = 0;
};

}  // namespace weir
