// SPDX-License-Identifier: Apache-2.0
#include "deploy/aggregator/http_server.h"

#include <httplib.h>

#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "datapath/base/identity/rank_proof.h"
#include "deploy/aggregator/lease_api.h"
#include "deploy/aggregator/metrics.h"
#include "deploy/program/http_workers.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::aggregation {
namespace {

constexpr int kHttpThreads = 3;
constexpr size_t kHttpQueueMax = 32;
constexpr std::string_view kLeasePath = "/v1/leases/";

StatusOr<uint32_t> EpochOf(const httplib::Request& request) {
  for (const auto& [name, value] : request.params) {
    if (name != "epoch") {
      return InvalidArgument(StrCat("query: expected epoch, found '", name.substr(0, 60), "'"));
    }
  }
  if (!request.has_param("epoch")) return 0;
  const std::string text = request.get_param_value("epoch");
  uint32_t epoch = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), epoch);
  if (error != std::errc() || end != text.data() + text.size() || epoch == 0) {
    return InvalidArgument(
        StrCat("epoch: expected 1 .. 4294967295, found '", text.substr(0, 60), "'"));
  }
  return epoch;
}

void AnswerError(const Status& status, httplib::Response& response) {
  response.status = HttpStatus(status.code());
  response.set_content(ErrorBody(status), "application/json");
}

class HttplibServer : public HttpServer {
 public:
  HttplibServer(const HttpOptions& options, AggregatorServer* server)
      : options_(options),
        aggregator_(*server),
        tls_({.cert = options.tls_cert, .key = options.tls_key}) {}

  ~HttplibServer() override {
    if (server_ != nullptr) server_->stop();
    if (thread_.joinable()) thread_.join();
  }

  Status Listen() {
    if (options_.tls_cert.empty()) {
      server_ = std::make_unique<httplib::Server>();
    } else {
      WEIR_RETURN_IF_ERROR(tls_.Current().status());
      server_ = std::make_unique<httplib::SSLServer>(
          [this](SSL_CTX& context) { return ServeTls(&context, &tls_); });
    }
    if (!server_->is_valid()) return Internal("OpenSSL makes no context for a server");
    server_->new_task_queue = [] { return new HttpWorkers(kHttpThreads, kHttpQueueMax); };
    server_->set_payload_max_length(kLeaseBytesMax);
    server_->set_read_timeout(5, 0);
    server_->set_write_timeout(5, 0);
    // An idle connection would keep one of the few threads busy.
    server_->set_keep_alive_max_count(1);
    server_->set_keep_alive_timeout(1);
    // By default the library shares the port (SO_REUSEPORT): a second aggregator would get half of
    // the requests without anyone noticing.
    server_->set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    InstallHandlers();
    if (options_.port == 0) {
      port_ = server_->bind_to_any_port(options_.host.c_str());
      if (port_ <= 0) return Unavailable(StrCat("cannot listen on ", options_.host, " for HTTP"));
    } else if (server_->bind_to_port(options_.host.c_str(), options_.port)) {
      port_ = options_.port;
    } else {
      return Unavailable(
          StrCat("cannot listen on ", options_.host, ":", options_.port, " for HTTP"));
    }
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    pthread_setname_np(thread_.native_handle(), "weir-accept");
    // The library can only stop a server that is running, so wait until it is.
    const TimePoint deadline = RealClock().Now() + std::chrono::seconds(5);
    while (!server_->is_running() && RealClock().Now() < deadline) std::this_thread::yield();
    return OkStatus();
  }

  int port() const override { return port_; }

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;
  using Handler = Status (HttplibServer::*)(const Request&, Response&);

  void InstallHandlers() {
    server_->Get("/healthz", [](const Request&, Response& response) {
      response.set_content("ok\n", "text/plain");
    });
    server_->Get("/metrics", Guarded(&HttplibServer::Metrics));
    server_->Get("/v1/leases", Guarded(&HttplibServer::List));
    server_->Get("/v1/capacity", Guarded(&HttplibServer::Capacity));
    server_->Post("/v1/leases", Guarded(&HttplibServer::Grant));
    server_->Delete("/v1/leases/[^/]+", Guarded(&HttplibServer::Revoke));
    server_->set_error_handler([](const Request&, Response& response) {
      if (!response.body.empty()) return;
      Status status = InvalidArgument("the request is not valid HTTP");
      if (response.status == 413) {
        status = InvalidArgument(StrCat("the body has more than ", kLeaseBytesMax, " bytes"));
      } else if (response.status == 404) {
        status =
            NotFound("no such path; there are /healthz, /metrics, /v1/capacity and /v1/leases");
      }
      response.set_content(ErrorBody(status), "application/json");
    });
    server_->set_exception_handler([](const Request&, Response& response, std::exception_ptr) {
      AnswerError(Internal("the request could not be handled"), response);
    });
  }

  httplib::Server::Handler Guarded(Handler handler) {
    return [this, handler](const Request& request, Response& response) {
      response.set_header("Cache-Control", "no-store");
      Status status = Authorize(request);
      if (status.ok()) status = (this->*handler)(request, response);
      if (!status.ok()) AnswerError(status, response);
    };
  }

  Status Authorize(const Request& request) const {
    if (options_.token.empty()) return OkStatus();
    const std::string given = request.get_header_value("Authorization");
    if (ConstantTimeEquals(given, "Bearer " + options_.token)) return OkStatus();
    return MakeStatus(StatusCode::kUnauthenticated,
                      given.empty() ? "expected a bearer token, found none" : "unknown token");
  }

  Status Metrics(const Request&, Response& response) {
    WEIR_ASSIGN_OR_RETURN(const std::vector<ShardStatus> shards, aggregator_.Shards());
    WEIR_ASSIGN_OR_RETURN(const std::vector<LeaseStatus> leases, aggregator_.Leases());
    std::optional<TlsHealth> tls;
    if (!options_.tls_cert.empty()) tls = tls_.Health();
    response.set_content(MetricsText(options_.version, shards, leases, tls),
                         "text/plain; version=0.0.4; charset=utf-8");
    return OkStatus();
  }

  Status List(const Request&, Response& response) {
    WEIR_ASSIGN_OR_RETURN(const std::vector<LeaseStatus> leases, aggregator_.Leases());
    response.set_content(LeasesJson(leases), "application/json");
    return OkStatus();
  }

  Status Capacity(const Request&, Response& response) {
    WEIR_ASSIGN_OR_RETURN(const std::vector<ShardStatus> shards, aggregator_.Shards());
    response.set_content(
        CapacityJson(aggregator_.options().limits, shards, options_.goodput_bits_per_s),
        "application/json");
    return OkStatus();
  }

  Status Grant(const Request& request, Response& response) {
    WEIR_ASSIGN_OR_RETURN(const LeaseRequest asked, ParseLeaseRequest(request.body));
    WEIR_ASSIGN_OR_RETURN(const LeaseGrant grant, aggregator_.Grant(asked));
    response.status = 201;
    response.set_content(GrantJson(grant), "application/json");
    return OkStatus();
  }

  Status Revoke(const Request& request, Response& response) {
    WEIR_ASSIGN_OR_RETURN(const uint32_t epoch, EpochOf(request));
    WEIR_RETURN_IF_ERROR(aggregator_.Revoke(request.path.substr(kLeasePath.size()), epoch,
                                            request.get_header_value("Weir-Lease-Owner")));
    response.set_content("{}\n", "application/json");
    return OkStatus();
  }

  const HttpOptions options_;
  AggregatorServer& aggregator_;
  TlsFiles tls_;
  std::unique_ptr<httplib::Server> server_;
  std::thread thread_;
  int port_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                        AggregatorServer* server) {
  auto http = std::make_unique<HttplibServer>(options, server);
  WEIR_RETURN_IF_ERROR(http->Listen());
  return std::unique_ptr<HttpServer>(std::move(http));
}

}  // namespace weir::aggregation
