// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/rest_server.h"

#include <google/protobuf/message.h>
#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "controller/messages/json.h"
#include "controller/server/rest/browser_guard.h"
#include "controller/server/rest/compression.h"
#include "controller/server/rest/openapi.h"
#include "controller/server/rest/routes.h"
#include "controller/server/status_mapping.h"
#include "controller/server/web/web_files.h"
#include "datapath/base/log.h"
#include "deploy/program/loopback.h"

namespace weir {
namespace {

using ProtoMessage = google::protobuf::Message;
using MessagePtr = std::unique_ptr<ProtoMessage>;

constexpr Duration kReadyMax = std::chrono::seconds(2);
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

MessagePtr NewMessage(const google::protobuf::Descriptor* descriptor) {
  return MessagePtr(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor)->New());
}

// Sends `body` as it is. The library compresses what it is given as a string with Brotli at its
// highest quality, which takes seconds of CPU for a job's history; it leaves what a provider writes
// alone.
void SendBytes(std::shared_ptr<const std::string> body, const std::string& type,
               httplib::Response& response) {
  const size_t size = body->size();
  if (size == 0) return response.set_content("", type);
  response.set_content_provider(
      size, type, [body = std::move(body)](size_t offset, size_t length, httplib::DataSink& sink) {
        return sink.write(body->data() + offset, length);
      });
}

// Sends `body`, by gzip where the client takes that and the body is large enough to gain by it.
void SendText(const httplib::Request& request, std::string body, const std::string& type,
              httplib::Response& response) {
  response.set_header("Vary", "Accept-Encoding");
  if (body.size() >= kGzipBytesMin && AcceptsGzip(request.get_header_value("Accept-Encoding"))) {
    response.set_header("Content-Encoding", "gzip");
    body = Gzip(body, kGzipFast);
  }
  SendBytes(std::make_shared<const std::string>(std::move(body)), type, response);
}

void SendError(const Status& status, httplib::Response& response) {
  response.status = HttpCode(status.code());
  SendBytes(std::make_shared<const std::string>(ErrorJson(status)), "application/json", response);
}

// A file of the page, and its gzip form where that is smaller.
struct StoredFile {
  const WebFile* file;
  std::shared_ptr<const std::string> plain, gzip;
};

std::vector<StoredFile> StoreFiles() {
  std::vector<StoredFile> stored;
  for (const WebFile& file : WebFiles()) {
    std::string plain(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
    std::string small = Gzip(plain, kGzipBest);
    const bool smaller = plain.size() >= kGzipBytesMin && small.size() < plain.size();
    stored.push_back({&file, std::make_shared<const std::string>(std::move(plain)),
                      smaller ? std::make_shared<const std::string>(std::move(small)) : nullptr});
  }
  return stored;
}

class HttplibRestServer : public RestServer {
 public:
  HttplibRestServer(RestOptions options, Executor& executor, ServedPlane& served, AdminCalls& calls,
                    EventHub& events, Authenticator& authenticator)
      : options_(std::move(options)),
        executor_(executor),
        served_(served),
        calls_(calls),
        events_(events),
        authenticator_(authenticator) {}

  ~HttplibRestServer() override { Stop(); }

  Status Listen() {
    server_ = std::make_unique<HttpServer>(options_.tls, options_.limits, options_.access);
    server_->set_payload_max_length(kBodyBytesMax);
    InstallHandlers();
    return Annotate(server_->Begin(options_.host, options_.port),
                    "give another address with --listen-http");
  }

  int port() const override { return server_->port(); }

  void Stop() override {
    stopping_ = true;
    if (server_ != nullptr) server_->End();
  }

 private:
  void InstallHandlers() {
    const auto handler = [this](const httplib::Request& request, httplib::Response& response) {
      Handle(request, response);
    };
    server_->Get(".*", handler);
    server_->Post(".*", handler);
    server_->Put(".*", handler);
    server_->Delete(".*", handler);
    server_->Patch(".*", handler);
    server_->Options(".*", handler);
    server_->set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.has_header("Content-Type")) return;  // the handler said what is wrong
      Status status = InvalidArgument("the request is not valid HTTP");
      if (response.status == 413) {
        status = InvalidArgument(StrCat("the body has more than ", kBodyBytesMax, " bytes"));
      } else if (response.status == 404) {
        status = NotFound("no such path");
      }
      SendBytes(std::make_shared<const std::string>(ErrorJson(status)), "application/json",
                response);
    });
    server_->set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          SendError(Internal("the request could not be handled"), response);
        });
  }

  void Handle(const httplib::Request& request, httplib::Response& response) {
    const std::string_view target(request.target);
    const std::string_view path = target.substr(0, target.find('?'));
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Content-Security-Policy", kContentSecurityPolicy);
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cross-Origin-Opener-Policy", "same-origin");
    response.set_header("Cross-Origin-Resource-Policy", "same-origin");
    if (path != "/healthz" && path != "/readyz") {
      if (const Status asked = Guard(request, path); !asked.ok()) {
        SendError(asked, response);
        if (asked.code() == StatusCode::kInvalidArgument) response.status = 415;
        return;
      }
    }
    if (path.starts_with("/v1")) {
      response.set_header("Cache-Control", "no-store");
      TellLeader(response);
      const Status status =
          path == "/v1/session" ? SessionCall(request, response) : Api(request, path, response);
      if (!status.ok()) SendError(status, response);
      return;
    }
    if (request.method != "GET" && request.method != "HEAD") {
      SendError(Unimplemented(StrCat(request.method, " is not possible here")), response);
      response.status = 405;
      return;
    }
    if (path == "/healthz" || path == "/readyz") {
      const StatusOr<std::string> well =
          path == "/healthz" ? CheckHealth(executor_) : CheckReady(executor_, served_);
      if (!well.ok()) return SendError(well.status(), response);
      SendText(request, StrCat(*well, "\n"), "text/plain", response);
    } else if (path == "/openapi.json") {
      SendText(request, OpenApiDocument({options_.version, port(), options_.local.role}),
               "application/json", response);
    } else if (path == "/metrics") {
      Metrics(request, response);
    } else {
      StaticFile(path, request, response);
    }
  }

  Status Guard(const httplib::Request& request, std::string_view path) const {
    return CheckBrowser({.method = request.method,
                         .path = path,
                         .host = request.get_header_value("Host"),
                         .origin = request.get_header_value("Origin"),
                         .fetch_site = request.get_header_value("Sec-Fetch-Site"),
                         .content_type = request.get_header_value("Content-Type")},
                        {.loopback = IsLoopback(options_.host), .hosts = options_.names});
  }

  // Answers of a standby name the leader.
  void TellLeader(httplib::Response& response) const {
    if (!served_.shared() || served_.acts()) return;
    const LeadershipView view = served_.view();
    if (view.leader.has_value()) response.set_header("Weir-Leader", view.leader->http);
  }

  // Browsers send cookies to every port of a host, so the name has the port.
  std::string CookieName() const { return StrCat("weir_session_", port()); }

  std::string CookieOf(const httplib::Request& request) const {
    const std::string cookies = request.get_header_value("Cookie");
    const std::string name = CookieName() + "=";
    for (size_t begin = 0; begin < cookies.size();) {
      const size_t end = std::min(cookies.find(';', begin), cookies.size());
      const size_t word = cookies.find_first_not_of(' ', begin);
      if (word < end && cookies.compare(word, name.size(), name) == 0) {
        return cookies.substr(word + name.size(), end - word - name.size());
      }
      begin = end + 1;
    }
    return "";
  }

  // The credentials in a request, and the texts that they refer to.
  struct Shown {
    std::string authorization, session, csrf;
    Credentials credentials;
  };
  std::unique_ptr<Shown> Show(const httplib::Request& request,
                              const httplib::Response& response) const {
    auto shown = std::make_unique<Shown>();
    shown->authorization = request.get_header_value("Authorization");
    shown->session = CookieOf(request);
    shown->csrf = request.get_header_value("Weir-CSRF");
    shown->credentials = {.peer = request.remote_addr,
                          .request_id = HttpServer::RequestId(response),
                          .authorization = shown->authorization,
                          .session = shown->session,
                          .csrf = shown->csrf,
                          .reads_only = request.method == "GET" || request.method == "HEAD",
                          .local = options_.local};
    return shown;
  }

  // Begins, shows or ends the session of a person at the page.
  Status SessionCall(const httplib::Request& request, httplib::Response& response) {
    const auto shown = Show(request, response);
    nlohmann::ordered_json answer;
    if (request.method == "POST") {
      const auto body = nlohmann::json::parse(request.body, nullptr, false);
      const auto text = [&body](const char* name) {
        return body.is_object() && body.contains(name) && body[name].is_string()
                   ? body[name].get<std::string>()
                   : "";
      };
      const std::string code = text("code"), token = text("token");
      if (code.empty() == token.empty()) return InvalidArgument("expected a code or a token");
      const std::string authorization = "Bearer " + token;
      const auto begun = token.empty()
                             ? authenticator_.BeginSession(code, request.remote_addr)
                             : authenticator_.BeginSession(
                                   {.peer = request.remote_addr, .authorization = authorization});
      if (!begun.ok()) {
        calls_.Refuse(nullptr, shown->credentials.origin(), "BeginSession", "", begun.status());
        return begun.status();
      }
      SetCookie(begun->secrets.cookie, ToSeconds(Sessions::kSessionMax), response);
      answer = DescribePrincipal(begun->principal);
      answer["csrf"] = begun->secrets.csrf;
    } else if (request.method == "DELETE") {
      authenticator_.EndSession(shown->session);
      SetCookie("", 0, response);
      answer = nlohmann::ordered_json::object();
    } else {
      WEIR_ASSIGN_OR_RETURN(const Caller caller, authenticator_.Identify(shown->credentials));
      answer = DescribePrincipal(caller);
    }
    SendText(request, answer.dump(), "application/json", response);
    return OkStatus();
  }

  static nlohmann::ordered_json DescribePrincipal(const Principal& principal) {
    return {{"name", principal.name},
            {"role", principal.role.has_value() ? std::string(RoleName(*principal.role)) : ""},
            {"proof", principal.proof}};
  }

  void SetCookie(const std::string& value, double seconds, httplib::Response& response) const {
    response.set_header("Set-Cookie",
                        StrCat(CookieName(), "=", value, "; Path=/; HttpOnly; SameSite=Strict; ",
                               options_.tls == nullptr ? "" : "Secure; ",
                               "Max-Age=", static_cast<int64_t>(seconds)));
  }

  void Metrics(const httplib::Request& request, httplib::Response& response) {
    const auto caller = authenticator_.Identify(Show(request, response)->credentials);
    Status allowed = caller.ok() ? RequireRole(*caller, Role::kViewer) : caller.status();
    if (allowed.ok()) allowed = calls_.Count(*caller);
    if (!allowed.ok()) return SendError(allowed, response);
    std::optional<TlsHealth> tls;
    if (options_.tls != nullptr) tls = options_.tls->Health();
    auto text = std::make_shared<std::string>();
    const Status status = executor_.Call([text, tls, served = &served_] {
      *text = (*served)->admin.MetricsText(tls);
      return OkStatus();
    });
    if (!status.ok()) return SendError(status, response);
    *text += served_.MetricsText();
    SendText(request, std::move(*text), "text/plain; version=0.0.4; charset=utf-8", response);
  }

  // Files change with the binary only: a browser asks whether they did, and takes them from its
  // cache where not.
  void StaticFile(std::string_view path, const httplib::Request& request,
                  httplib::Response& response) {
    if (path == "/") path = "/index.html";
    const std::string known = request.get_header_value("If-None-Match");
    for (const StoredFile& stored : files_) {
      const WebFile& file = *stored.file;
      if (file.path != path) continue;
      response.set_header("Cache-Control", "no-cache");
      response.set_header("Vary", "Accept-Encoding");
      response.set_header("ETag", StrCat("W/", file.etag));  // weak: of both forms
      if (known.find(file.etag) != std::string::npos) {
        response.status = 304;
        return;
      }
      const bool gzip =
          stored.gzip != nullptr && AcceptsGzip(request.get_header_value("Accept-Encoding"));
      if (gzip) response.set_header("Content-Encoding", "gzip");
      SendBytes(gzip ? stored.gzip : stored.plain, std::string(file.mime_type), response);
      return;
    }
    SendError(NotFound(StrCat("no such page '", path.substr(0, 200), "'")), response);
  }

  Status Api(const httplib::Request& request, std::string_view path, httplib::Response& response) {
    const auto match = MatchRoute(request.method == "HEAD" ? "GET" : request.method, path);
    if (!match.ok() && match.status().code() == StatusCode::kUnimplemented) {
      SendError(match.status(), response);
      response.status = 405;
      return OkStatus();
    }
    WEIR_RETURN_IF_ERROR(match.status());
    const Route& route = *match->route;
    const auto shown = Show(request, response);
    if (const auto known = authenticator_.Identify(shown->credentials);
        known.ok() && known->role.has_value()) {
      HttpServer::NameCaller(known->name);
      response.set_header("Weir-Role", std::string(RoleName(*known->role)));
    }
    // Strangers are refused before anything of theirs is parsed; the path names the job.
    const MessagePtr named = NewMessage(MethodOf(route)->input_type());
    for (const auto& [name, value] : match->path_fields) {
      WEIR_RETURN_IF_ERROR(SetField(named.get(), name, value));
    }
    WEIR_ASSIGN_OR_RETURN(const Caller caller, calls_.Admit(shown->credentials, route, *named));
    std::shared_ptr<ProtoMessage> message(NewMessage(MethodOf(route)->input_type()).release());
    if (request.method == "POST" || request.method == "PUT") {
      if (!request.body.empty()) WEIR_RETURN_IF_ERROR(FromJson(request.body, message.get()));
    } else {
      for (const auto& [name, value] : request.params) {
        WEIR_RETURN_IF_ERROR(SetField(message.get(), name, value));
      }
    }
    for (const auto& [name, value] : match->path_fields) {
      WEIR_RETURN_IF_ERROR(SetField(message.get(), name, value));
    }
    WEIR_RETURN_IF_ERROR(TakeHeaders(request, message.get()));
    if (route.event_stream) return Watch(static_cast<const v1::WatchRequest&>(*message), response);
    std::shared_ptr<ProtoMessage> answer(NewMessage(MethodOf(route)->output_type()).release());
    const Status called = executor_.Call([message, answer, caller, &route, calls = &calls_] {
      return calls->Call(caller, route, *message, answer.get());
    });
    if (called.code() == StatusCode::kAborted && request.has_header("If-Match")) {
      SendError(called, response);
      response.status = 412;
      return OkStatus();
    }
    WEIR_RETURN_IF_ERROR(called);
    SendText(request, ToJson(*answer), "application/json", response);
    return OkStatus();
  }

  // Conditions that HTTP has headers for.
  static Status TakeHeaders(const httplib::Request& request, ProtoMessage* message) {
    const auto* descriptor = message->GetDescriptor();
    if (descriptor->FindFieldByName("if_match") != nullptr && request.has_header("If-Match")) {
      std::string tag = request.get_header_value("If-Match");
      std::erase(tag, '"');
      return SetField(message, "if_match", tag);
    }
    if (descriptor == v1::WatchRequest::descriptor() && request.has_header("Last-Event-ID")) {
      static_cast<v1::WatchRequest*>(message)->set_replay(true);
      return SetField(message, "after_id", request.get_header_value("Last-Event-ID"));
    }
    return OkStatus();
  }

  Status Watch(const v1::WatchRequest& request, httplib::Response& response) {
    if (++event_streams_ > kEventStreamsMax) {
      --event_streams_;
      return ResourceExhausted(
          StrCat("at most ", kEventStreamsMax, " event streams over HTTP at a time"));
    }
    auto subscription = events_.Subscribe(request);
    if (!subscription.ok()) {
      --event_streams_;
      return subscription.status();
    }
    HttpServer::KeepStreaming();
    auto quiet_since = std::make_shared<TimePoint>();
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, subscription = *subscription, quiet_since](size_t, httplib::DataSink& sink) {
          return SendEvents(*subscription, *quiet_since, sink);
        },
        [this, subscription = *subscription](bool) {
          events_.Unsubscribe(subscription);
          --event_streams_;
        });
    return OkStatus();
  }

  bool SendEvents(Subscription& subscription, TimePoint& quiet_since, httplib::DataSink& sink) {
    const TimePoint now = RealClock().Now();
    std::string text;
    if (quiet_since == TimePoint{}) text = ": watching\n\n";  // headers reach the client at once
    if (const auto event =
            subscription.Next(text.empty() ? std::chrono::milliseconds(500) : Duration(0));
        event != nullptr) {
      text += StrCat("id: ", event->id(), "\nevent: ", event->kind(), "\ndata: ", ToJson(*event),
                     "\n\n");
    } else if (text.empty() && ToSeconds(now - quiet_since) >= 10) {
      text = ": still here\n\n";
    }
    if (stopping_ || (subscription.closed() && text.empty())) return false;
    if (text.empty()) return true;
    quiet_since = now;
    return sink.write(text.data(), text.size());
  }

  const RestOptions options_;
  Executor& executor_;
  ServedPlane& served_;
  AdminCalls& calls_;
  EventHub& events_;
  Authenticator& authenticator_;
  const std::vector<StoredFile> files_ = StoreFiles();
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> event_streams_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace

StatusOr<std::string> CheckHealth(const Executor& executor) {
  WEIR_RETURN_IF_ERROR(executor.Alive());
  return std::string("ok");
}

StatusOr<std::string> CheckReady(Executor& executor, ServedPlane& served) {
  // A standby is ready when it knows the leader: it may then receive agents and tell them.
  if (!served.acts()) {
    WEIR_RETURN_IF_ERROR(served.RequireLeaderKnown());
    return std::string(served.shared() ? "ok, standing by" : "ok");
  }
  WEIR_RETURN_IF_ERROR(executor.Call([&served] { return served->admin.Ready(); }, kReadyMax));
  return std::string("ok");
}

StatusOr<std::unique_ptr<RestServer>> RestServer::Start(RestOptions options, Executor& executor,
                                                        ServedPlane& served, AdminCalls& calls,
                                                        EventHub& events,
                                                        Authenticator& authenticator) {
  auto server = std::make_unique<HttplibRestServer>(std::move(options), executor, served, calls,
                                                    events, authenticator);
  WEIR_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<RestServer>(std::move(server));
}

}  // namespace weir
