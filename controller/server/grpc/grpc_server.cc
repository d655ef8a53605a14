// SPDX-License-Identifier: Apache-2.0
#include "controller/server/grpc/grpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "controller/messages/limits.h"
#include "controller/server/grpc/admin_service.h"
#include "controller/server/grpc/agent_service.h"
#include "controller/server/grpc/tls_credentials.h"

namespace weir {
namespace {

int Milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

// The library adds its reflection to every server of a program that links it.
class WithoutReflection : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const std::string reflection = grpc::reflection::ProtoServerReflectionPlugin().name();
    std::erase_if(*plugins, [&](const auto& plugin) { return plugin->name() == reflection; });
  }
};

class GrpcServerImpl : public GrpcServer {
 public:
  GrpcServerImpl(Executor& executor, ServedPlane& served, AdminCalls& calls, EventHub& events,
                 Authenticator& authenticator, const GrpcOptions& options)
      : local_(options.local, options.others, options.host),
        agents_(executor, served, calls, authenticator, local_, options.admission),
        admin_(executor, calls, events, local_, options.access),
        ping_interval_min_(served.shared() ? kGrpcPingIntervalMinShared : kGrpcPingIntervalMin) {}

  ~GrpcServerImpl() override { Stop(Duration(0)); }

  Status Listen(const GrpcOptions& options) {
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (options.tls != nullptr) credentials = RenewedServerCredentials(options.tls);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    // The library's reflection cannot ask who calls, so it is only there where everybody is admin.
    if (options.local.role != Role::kAdmin || options.others.has_value())
      builder.SetOption(std::make_unique<WithoutReflection>());
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kGrpcStreamsMax);
    builder.AddListeningPort(options.address, credentials, &port_);
    builder.SetMaxReceiveMessageSize(kGrpcMessageBytesMax);
    builder.SetMaxSendMessageSize(kGrpcMessageBytesMax);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kGrpcKeepaliveInterval));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kGrpcKeepaliveTimeout));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               Milliseconds(ping_interval_min_));
    // The bytes that a stream may send before they are read. The library would let each of
    // thousands of agents send megabytes, which are memory of this process as soon as it is slow.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kGrpcStreamBytesMax);
    // If two controllers shared a port, each would see half of the agents.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(&agents_);
    builder.RegisterService(&admin_);
    // gRPC logs 700 characters where a port is taken; the error below says it in one line.
    gpr_set_log_function([](gpr_log_func_args*) {});
    server_ = builder.BuildAndStart();
    gpr_set_log_function(nullptr);  // its own again
    if (server_ == nullptr || port_ == 0) {
      return Unavailable(StrCat("cannot listen on ", options.address,
                                " for gRPC: the port is taken, or the address is not of this "
                                "machine; give another one with --listen-grpc"));
    }
    local_.SetPort(port_);
    return OkStatus();
  }

  int port() const override { return port_; }

  void Stop(Duration deadline) override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::microseconds>(deadline));
    server_->Wait();
    server_.reset();
  }

 private:
  LocalCallers local_;
  AgentServiceImpl agents_;
  AdminServiceImpl admin_;
  const Duration ping_interval_min_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcOptions& options,
                                                        Executor& executor, ServedPlane& served,
                                                        AdminCalls& calls, EventHub& events,
                                                        Authenticator& authenticator) {
  auto server =
      std::make_unique<GrpcServerImpl>(executor, served, calls, events, authenticator, options);
  WEIR_RETURN_IF_ERROR(server->Listen(options));
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace weir
