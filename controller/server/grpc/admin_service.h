// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdminService over gRPC: hands each call to AdminApi on the executor.

#include "controller/server/admin_calls.h"
#include "controller/server/event_hub.h"
#include "controller/server/executor.h"
#include "controller/server/grpc/local_callers.h"
#include "deploy/program/http/access_log.h"
#include "weir/v1/admin.grpc.pb.h"

namespace weir {

/// Trailing metadata of every answer of controllers that share a store, with kLeaderMetadata:
/// "leader" or "standby"; and why the store cannot be used, where it cannot.
inline constexpr const char* kStandingMetadata = "weir-standing";
inline constexpr const char* kStoreMetadata = "weir-store";

/// All referenced objects must outlive the server that carries it.
class AdminServiceImpl : public v1::AdminService::CallbackService {
 public:
  /// `access`: null for no access log.
  AdminServiceImpl(Executor& executor, AdminCalls& calls, EventHub& events,
                   const LocalCallers& local, AccessLog* access)
      : executor_(executor), calls_(calls), events_(events), local_(local), access_(access) {}

#define WEIR_ADMIN_UNARY(method, Request, Response)                      \
  grpc::ServerUnaryReactor* method(grpc::CallbackServerContext* context, \
                                   const v1::Request* request, v1::Response* response) override;
#include "controller/server/admin_methods.def"
#undef WEIR_ADMIN_UNARY

  grpc::ServerWriteReactor<v1::Event>* Watch(grpc::CallbackServerContext* context,
                                             const v1::WatchRequest* request) override;

 private:
  Executor& executor_;
  AdminCalls& calls_;
  EventHub& events_;
  const LocalCallers& local_;
  AccessLog* const access_;
};

}  // namespace weir
