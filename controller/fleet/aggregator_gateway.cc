// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/aggregator_gateway.h"

#include <httplib.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <set>
#include <thread>
#include <variant>

#include "datapath/base/bounded_queue.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/log.h"
#include "deploy/program/tls/tls_files.h"

namespace weir {
namespace {

constexpr size_t kCallsMax = 64;
constexpr size_t kAnswerBytesMax = 8u << 20;

struct LeaseEnd {
  std::string job;  // as the aggregator knows it
  uint32_t epoch = 0;
};
using Call = std::variant<LeaseAsk, LeaseEnd>;

std::string ErrorText(httplib::Error error) {
  if (error == httplib::Error::Connection) return "cannot connect";
  if (error == httplib::Error::Read) return "no answer in time, or it hung up";
  if (error == httplib::Error::SSLServerVerification) return "its certificate is not trusted";
  return httplib::to_string(error);
}

// The connection to one aggregator; its thread does one thing at a time.
class Line {
 public:
  Line(AggregatorAddress address, const GatewayOptions& options, const GatewayEvents& events)
      : address_(std::move(address)),
        options_(options),
        events_(events),
        host_(HostOf(address_)),
        lookup_(host_, options.start_lookup, RealClock()),
        authorities_({.ca = options.ca_file}),
        client_(address_.url) {
    client_.set_connection_timeout(options_.connect_timeout);
    client_.set_read_timeout(options_.answer_timeout);
    client_.set_write_timeout(options_.answer_timeout);
    client_.set_follow_location(false);
    if (!options_.token.empty()) client_.set_bearer_token_auth(options_.token);
    if (!options_.ca_file.empty()) client_.set_ca_cert_path(options_.ca_file.c_str());
    client_.enable_server_certificate_verification(true);
    thread_ = std::thread([this] { Loop(); });
    pthread_setname_np(thread_.native_handle(), "weir-aggregat");
  }
  ~Line() {
    Stop();
    thread_.join();
  }

  /// Cancels the current call; the thread then ends.
  void Stop() {
    stopping_ = true;
    calls_.Close();
    client_.stop();
  }

  const std::string& name() const { return address_.name; }
  bool Push(Call call) { return calls_.TryPush(std::move(call)); }

 private:
  void Loop() {
    TimePoint next_poll = RealClock().Now();
    while (!stopping_) {
      if (const auto call = calls_.Pop(next_poll); call.has_value() && !stopping_) {
        std::visit([this](const auto& one) { Run(one); }, *call);
        next_poll = RealClock().Now();  // so that grants and ends show at once
      } else if (!stopping_ && RealClock().Now() >= next_poll) {
        Poll();
        next_poll = RealClock().Now() + options_.poll_interval;
      }
    }
  }

  // The client reads its CA file only once, so a store with the current certificates replaces it.
  Status TrustCurrentAuthorities() {
    if (options_.ca_file.empty() || !address_.url.starts_with("https:")) return OkStatus();
    WEIR_ASSIGN_OR_RETURN(auto now, authorities_.Current());
    if (now == trusted_) return OkStatus();
    client_.set_ca_cert_store(MakeAuthorityStore(*now));
    trusted_ = std::move(now);
    return OkStatus();
  }

  // Sends a request and returns the body of an answer with status 200 or 201.
  StatusOr<std::string> Talk(const char* method, const std::string& path, const std::string& body,
                             const std::string& owner = "") {
    if (stopping_) return Unavailable("the controller stops");
    WEIR_ASSIGN_OR_RETURN(const std::string numeric, lookup_.Address(options_.connect_timeout));
    WEIR_RETURN_IF_ERROR(TrustCurrentAuthorities());
    // The certificate is still checked against the name.
    if (numeric != host_) client_.set_hostname_addr_map({{host_, numeric}});
    const TimePoint deadline = RealClock().Now() + options_.call_timeout;
    httplib::Request request;
    request.method = method;
    request.path = path;
    if (!owner.empty()) request.set_header("Weir-Lease-Owner", owner);
    if (!body.empty()) {
      request.set_header("Content-Type", "application/json");
      request.body = body;
    }
    std::string answer;
    bool too_long = false, too_late = false;
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      too_long = answer.size() + size > kAnswerBytesMax;
      too_late = RealClock().Now() > deadline || stopping_;
      if (too_long || too_late) return false;
      answer.append(data, size);
      return true;
    };
    const httplib::Result result = client_.send(request);
    if (too_long) {
      return ResourceExhausted(StrCat("an answer of more than ", kAnswerBytesMax, " bytes"));
    }
    if (too_late) {
      return DeadlineExceeded(
          StrCat("no whole answer within ", ToSeconds(options_.call_timeout), " s"));
    }
    if (!result) {
      if (result.error() == httplib::Error::Connection) lookup_.Failed();
      return Unavailable(ErrorText(result.error()));
    }
    if (result->status == 200 || result->status == 201) return answer;
    return FailedPrecondition(StrCat(ReadRefusal(answer), " (HTTP ", result->status, ")"));
  }

  void Poll() {
    AggregatorReport state{.name = address_.name, .url = address_.url};
    const Status read = ReadState(&state);
    if (!read.ok()) {
      state = {.name = address_.name, .url = address_.url};
      state.error = Message(read);
    }
    state.reachable = read.ok();
    if (!stopping_) events_.state(std::move(state));
  }

  Status ReadState(AggregatorReport* state) {
    WEIR_ASSIGN_OR_RETURN(const std::string capacity, Talk("GET", "/v1/capacity", ""));
    WEIR_RETURN_IF_ERROR(ReadCapacity(capacity, state));
    WEIR_ASSIGN_OR_RETURN(const std::string leases, Talk("GET", "/v1/leases", ""));
    return ReadLeases(leases, state);
  }

  // The secret that shows an aggregator that a lease is this controller's. An aggregator cannot use
  // it at another one.
  StatusOr<std::string> OwnerOf(const std::string& job) const {
    return DeriveToken(options_.owner_secret,
                       StrCat("weir lease owner 1 ", address_.name, " ", job));
  }

  StatusOr<std::string> TalkOfLease(const LeaseAsk& ask) {
    WEIR_ASSIGN_OR_RETURN(const std::string owner,
                          OwnerOf(LeaseJobName(LeaseOwner(ask.job, ask.mode))));
    return Talk("POST", "/v1/leases", LeaseAskJson(ask, owner));
  }

  StatusOr<std::string> TalkOfEnd(const LeaseEnd& end) {
    WEIR_ASSIGN_OR_RETURN(const std::string owner, OwnerOf(end.job));
    return Talk("DELETE", StrCat("/v1/leases/", end.job, "?epoch=", end.epoch), "", owner);
  }

  void Run(const LeaseAsk& ask) {
    const auto body = TalkOfLease(ask);
    if (stopping_) return;
    if (body.ok()) {
      events_.answer(ask, ReadGrant(*body, ask));
    } else {
      events_.answer(ask, body.status());
    }
  }

  void Run(const LeaseEnd& end) {
    const auto body = TalkOfEnd(end);
    if (body.ok() || stopping_) return;
    Log(LogLevel::kInfo, "controller",
        StrCat("aggregator ", address_.name, ": the lease of job ", end.job, ", epoch ", end.epoch,
               ", was not ended: ", Message(body.status())));
  }

  const AggregatorAddress address_;
  const GatewayOptions& options_;
  const GatewayEvents& events_;
  const std::string host_;
  NameLookup lookup_;  // used only by the thread
  TlsFiles authorities_;
  std::shared_ptr<const TlsMaterial> trusted_;  // used only by the thread
  httplib::Client client_;
  BoundedQueue<Call> calls_{kCallsMax};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class HttpGateway : public LeaseGateway {
 public:
  HttpGateway(GatewayOptions options, GatewayEvents events)
      : options_(std::move(options)), events_(std::move(events)) {
    for (const AggregatorAddress& address : options_.aggregators) {
      lines_.push_back(std::make_unique<Line>(address, options_, events_));
    }
  }

  ~HttpGateway() override {
    for (const auto& line : lines_) line->Stop();  // all are told to stop before any is waited for
  }

  bool Ask(const LeaseAsk& ask) override {
    Line* line = Find(ask.aggregator);
    return line != nullptr && line->Push(ask);
  }

  void End(const std::string& aggregator, const std::string& job, uint32_t epoch) override {
    Line* line = Find(aggregator);
    if (line != nullptr && line->Push(LeaseEnd{LeaseJobName(job), epoch})) return;
    Log(LogLevel::kWarning, "controller",
        StrCat("aggregator ", aggregator, ": too much waits for it; the lease of job ", job,
               " ends when it is idle"));
  }

 private:
  Line* Find(const std::string& name) {
    for (const auto& line : lines_) {
      if (line->name() == name) return line.get();
    }
    return nullptr;
  }

  const GatewayOptions options_;
  const GatewayEvents events_;
  std::vector<std::unique_ptr<Line>> lines_;
};

}  // namespace

StatusOr<std::unique_ptr<LeaseGateway>> StartHttpGateway(GatewayOptions options,
                                                         GatewayEvents events) {
  if (options.aggregators.size() > kAggregatorsMax) {
    return InvalidArgument(StrCat("expected at most ", kAggregatorsMax, " aggregators, found ",
                                  options.aggregators.size()));
  }
  std::set<std::string> names;
  for (const AggregatorAddress& address : options.aggregators) {
    if (!names.insert(address.name).second) {
      return InvalidArgument(StrCat("aggregator ", address.name, " is given twice"));
    }
  }
  if (!options.ca_file.empty() && access(options.ca_file.c_str(), R_OK) != 0) {
    return InvalidArgument(StrCat("cannot read the CA file '", options.ca_file, "'"));
  }
  if (options.owner_secret.empty()) {
    WEIR_ASSIGN_OR_RETURN(options.owner_secret, NewChallenge());
  }
  return std::unique_ptr<LeaseGateway>(
      std::make_unique<HttpGateway>(std::move(options), std::move(events)));
}

}  // namespace weir
