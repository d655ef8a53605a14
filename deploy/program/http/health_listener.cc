// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/http/health_listener.h"

#include <utility>

#include "deploy/program/http/http_server.h"

namespace weir {
namespace {

// A probe asks every few seconds, so a few connections are enough, and slow ones may be given up
// soon.
constexpr HttpLimits kLimits{.connections_max = 32,
                             .connections_of_peer_max = 16,
                             .request_max = std::chrono::seconds(2),
                             .answer_max = std::chrono::seconds(5),
                             .write_max = std::chrono::seconds(1),
                             .idle_max = std::chrono::seconds(1),
                             .requests_max = 1};
constexpr size_t kBodyBytesMax = 1024;

class HealthListenerImpl : public HealthListener {
 public:
  explicit HealthListenerImpl(const Options& options, Check healthy, Check ready)
      : healthy_(std::move(healthy)), ready_(std::move(ready)), server_(options.tls, kLimits) {}

  Status Listen(const Options& options) {
    server_.set_payload_max_length(kBodyBytesMax);
    server_.Get("/healthz", Answer(healthy_));
    server_.Get("/readyz", Answer(ready_));
    return server_.Begin(options.host, options.port);
  }

  int port() const override { return server_.port(); }

 private:
  static httplib::Server::Handler Answer(const Check& check) {
    return [&check](const httplib::Request&, httplib::Response& response) {
      const StatusOr<std::string> answer = check();
      if (!answer.ok()) response.status = 503;
      response.set_content(StrCat(answer.ok() ? *answer : Message(answer.status()), "\n"),
                           "text/plain");
    };
  }

  const Check healthy_, ready_;
  HttpServer server_;  // last: its threads use the others
};

}  // namespace

StatusOr<std::unique_ptr<HealthListener>> HealthListener::Start(const Options& options,
                                                                Check healthy, Check ready) {
  auto listener =
      std::make_unique<HealthListenerImpl>(options, std::move(healthy), std::move(ready));
  WEIR_RETURN_IF_ERROR(listener->Listen(options));
  return std::unique_ptr<HealthListener>(std::move(listener));
}

}  // namespace weir
