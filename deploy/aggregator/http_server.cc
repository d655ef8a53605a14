// SPDX-License-Identifier: Apache-2.0
#include "deploy/aggregator/http_server.h"

#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "datapath/base/identity/rank_proof.h"
#include "deploy/aggregator/lease_api.h"
#include "deploy/aggregator/metrics.h"
#include "deploy/program/http/health_listener.h"
#include "deploy/program/http/http_server.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::aggregation {
namespace {

constexpr weir::HttpLimits kLimits{.connections_max = 64, .connections_of_peer_max = 32};
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
    if (server_ != nullptr) server_->End();
  }

  Status Listen() {
    TlsFiles* const tls = options_.tls_cert.empty() ? nullptr : &tls_;
    if (tls != nullptr) WEIR_RETURN_IF_ERROR(tls->Current().status());
    server_ =
        std::make_unique<weir::HttpServer>(tls, kLimits, options_.access_log ? &access_ : nullptr);
    server_->set_payload_max_length(kLeaseBytesMax);
    InstallHandlers();
    WEIR_RETURN_IF_ERROR(server_->Begin(options_.host, options_.port));
    if (options_.health_host.empty()) return OkStatus();
    const auto well = [] { return std::string("ok"); };
    const auto ready = [this]() -> StatusOr<std::string> {
      WEIR_RETURN_IF_ERROR(aggregator_.Shards().status());
      return std::string("ok");
    };
    WEIR_ASSIGN_OR_RETURN(
        health_,
        HealthListener::Start({options_.health_host, options_.health_port, tls}, well, ready));
    return OkStatus();
  }

  int port() const override { return server_->port(); }
  int health_port() const override { return health_ == nullptr ? 0 : health_->port(); }

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
    if (options_.tokens == nullptr) return OkStatus();
    WEIR_ASSIGN_OR_RETURN(
        const std::string name,
        options_.tokens->Find(request.get_header_value("Authorization"), request.remote_addr));
    weir::HttpServer::NameCaller(name);
    return OkStatus();
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
  AccessLog access_;
  std::unique_ptr<weir::HttpServer> server_;
  std::unique_ptr<HealthListener> health_;
};

}  // namespace

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                        AggregatorServer* server) {
  auto http = std::make_unique<HttplibServer>(options, server);
  WEIR_RETURN_IF_ERROR(http->Listen());
  return std::unique_ptr<HttpServer>(std::move(http));
}

}  // namespace weir::aggregation
