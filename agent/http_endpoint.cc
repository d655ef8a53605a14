// SPDX-License-Identifier: Apache-2.0
#include "agent/http_endpoint.h"

#include <utility>

#include "agent/measure/socket.h"
#include "deploy/program/http/http_server.h"

namespace weir::agent {
namespace {

constexpr HttpLimits kLimits{.connections_max = 32, .connections_of_peer_max = 16};
constexpr size_t kBodyBytesMax = 1024;

class HttpEndpointImpl : public HttpEndpoint {
 public:
  HttpEndpointImpl(const Options& options, std::function<std::string()> text,
                   std::function<Status()> healthy)
      : tokens_(options.tokens),
        text_(std::move(text)),
        healthy_(std::move(healthy)),
        server_(options.tls, kLimits, options.access_log ? &access_ : nullptr) {}

  Status Listen(const std::string& host, int port) {
    server_.set_payload_max_length(kBodyBytesMax);
    server_.Get("/metrics", [this](const httplib::Request& request, httplib::Response& response) {
      Metrics(request, response);
    });
    server_.Get("/healthz", [this](const httplib::Request&, httplib::Response& response) {
      const Status well = healthy_();
      if (!well.ok()) response.status = 503;
      response.set_content(well.ok() ? "ok\n" : Message(well) + "\n", "text/plain");
    });
    return server_.Begin(host, port);
  }

  int port() const override { return server_.port(); }

 private:
  void Metrics(const httplib::Request& request, httplib::Response& response) {
    if (tokens_ != nullptr) {
      const StatusOr<std::string> name =
          tokens_->Find(request.get_header_value("Authorization"), request.remote_addr);
      if (!name.ok()) {
        response.status = name.status().code() == StatusCode::kResourceExhausted ? 429 : 401;
        response.set_content(Message(name.status()) + "\n", "text/plain");
        return;
      }
      HttpServer::NameCaller(*name);
    }
    response.set_content(text_(), "text/plain; version=0.0.4; charset=utf-8");
  }

  TokenFile* const tokens_;
  const std::function<std::string()> text_;
  const std::function<Status()> healthy_;
  AccessLog access_;
  HttpServer server_;  // last: its threads use the others
};

}  // namespace

StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const Options& options,
                                                            std::function<std::string()> text,
                                                            std::function<Status()> healthy) {
  WEIR_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::Parse(options.address));
  if (options.tls != nullptr) WEIR_RETURN_IF_ERROR(options.tls->Current().status());
  auto endpoint = std::make_unique<HttpEndpointImpl>(options, std::move(text), std::move(healthy));
  WEIR_RETURN_IF_ERROR(endpoint->Listen(address.ip(), address.port()));
  return std::unique_ptr<HttpEndpoint>(std::move(endpoint));
}

}  // namespace weir::agent
