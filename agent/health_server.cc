// SPDX-License-Identifier: Apache-2.0
#include "agent/health_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <thread>

#include "datapath/base/log.h"
#include "datapath/base/mutex.h"

namespace weir::agent {
namespace {

constexpr Duration kLookInterval = std::chrono::milliseconds(250);
constexpr Duration kStopMax = std::chrono::milliseconds(200);

class HealthServerImpl : public HealthServer {
 public:
  HealthServerImpl(const Clock& clock, Duration beat_max)
      : clock_(clock), beat_max_(beat_max), beat_(clock.Now()) {}

  ~HealthServerImpl() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      stopped_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + kStopMax);
    server_->Wait();
  }

  Status Listen(const std::string& address) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(4096);
    builder.RegisterCallbackGenericService(&unimplemented_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return Unavailable(StrCat("cannot listen on ", address, " for health checks"));
    }
    thread_ = std::thread([this] { Watch(); });
    return OkStatus();
  }

  int port() const override { return port_; }
  void Beat() override { beat_.store(clock_.Now(), std::memory_order_relaxed); }

 private:
  void Watch() {
    NameThread("weir-health");
    bool serving = true;
    MutexLock lock(mutex_);
    while (!stopping_) {
      const bool alive = clock_.Now() - beat_.load(std::memory_order_relaxed) <= beat_max_;
      if (alive != serving) server_->GetHealthCheckService()->SetServingStatus(alive);
      serving = alive;
      stopped_.WaitUntil(mutex_, RealClock().Now() + kLookInterval);
    }
  }

  const Clock& clock_;
  const Duration beat_max_;
  std::atomic<TimePoint> beat_;
  grpc::CallbackGenericService unimplemented_;  // a server must have a service
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ WEIR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const std::string& address,
                                                            const Clock& clock, Duration beat_max) {
  auto server = std::make_unique<HealthServerImpl>(clock, beat_max);
  WEIR_RETURN_IF_ERROR(server->Listen(address));
  return std::unique_ptr<HealthServer>(std::move(server));
}

}  // namespace weir::agent
