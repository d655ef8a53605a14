// SPDX-License-Identifier: Apache-2.0
#include "controller/server/controller.h"

#include <charconv>
#include <filesystem>
#include <fstream>

#include "controller/fleet/policy_watcher.h"
#include "controller/server/admin_calls.h"
#include "controller/server/audit.h"
#include "controller/server/event_hub.h"
#include "controller/server/executor.h"
#include "controller/server/grpc/grpc_server.h"
#include "controller/server/rest/rest_server.h"
#include "controller/server/served_plane.h"
#include "controller/server/succession.h"
#include "controller/store/etcd/election.h"
#include "controller/store/etcd/etcd_store.h"
#include "controller/store/store.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/log.h"
#include "deploy/program/http/health_listener.h"
#include "deploy/program/loopback.h"
#include "deploy/program/tls/tls_files.h"
#include "deploy/program/token_file.h"

namespace weir {
namespace {

struct HostPort {
  std::string host;
  int port = 0;
};

StatusOr<HostPort> ParseAddress(const std::string& flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort out;
  if (colon != std::string::npos) {
    const std::string port = address.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
    if (error == std::errc() && end == port.data() + port.size() && out.port >= 0 &&
        out.port < 65536) {
      out.host = address.substr(0, colon);
      if (out.host.size() > 2 && out.host.front() == '[')
        out.host = out.host.substr(1, out.host.size() - 2);
      if (!out.host.empty()) return out;
    }
  }
  return InvalidArgument(StrCat(flag, " is '", address, "', expected host:port"));
}

// A Unix socket is protected by the permissions of its directory.
bool IsUnixSocket(const std::string& address) { return address.starts_with("unix:"); }

Status CheckExposure(const ControllerOptions& options, const HostPort& grpc, const HostPort& http,
                     const HostPort& health) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return InvalidArgument("--tls-cert and --tls-key belong together");
  }
  const bool grpc_is_local = IsUnixSocket(options.listen_grpc) || IsLoopback(grpc.host);
  const bool is_local = grpc_is_local && IsLoopback(http.host);
  if (!is_local && options.tls_cert.empty() && !options.token_file.empty()) {
    return FailedPrecondition(
        "--token-file: its tokens would cross the network in plain text: give --tls-cert and "
        "--tls-key, or addresses of loopback");
  }
  if (options.insecure) return OkStatus();
  if (!grpc_is_local && (options.tls_cert.empty() || options.tls_ca.empty())) {
    return FailedPrecondition(StrCat("gRPC on ", options.listen_grpc,
                                     " is reachable from outside: give "
                                     "--tls-cert, --tls-key and --tls-ca, or --insecure"));
  }
  if (!options.listen_health.empty() && !IsLoopback(health.host) && options.tls_cert.empty()) {
    return FailedPrecondition(StrCat("--listen-health ", options.listen_health,
                                     " is reachable from outside: give --tls-cert and --tls-key, "
                                     "or --insecure"));
  }
  if (!IsLoopback(http.host) && (options.token_file.empty() || options.tls_cert.empty())) {
    return FailedPrecondition(StrCat("HTTP on ", options.listen_http,
                                     " is reachable from outside: give "
                                     "--token-file, --tls-cert and --tls-key, or --insecure"));
  }
  return OkStatus();
}

// Aggregators off loopback need https: bearer tokens and answers about leases contain secrets.
// --insecure gives up the latter, which end with their lease, but no token.
StatusOr<GatewayOptions> ReadAggregators(const ControllerOptions& options) {
  GatewayOptions out;
  out.ca_file = options.aggregator_ca;
  if (!options.aggregator_token_file.empty()) {
    auto token = ReadTokenFile(options.aggregator_token_file);
    if (!token.ok()) return Annotate(token.status(), "--aggregator-token-file");
    out.token = *std::move(token);
  }
  for (const std::string& text : options.aggregators) {
    WEIR_ASSIGN_OR_RETURN(const AggregatorAddress address, ParseAggregator(text));
    const bool exposed = !address.url.starts_with("https://") && !IsLoopback(HostOf(address));
    if (exposed && !out.token.empty()) {
      return FailedPrecondition(StrCat("--aggregator ", text,
                                       ": the token would cross the network in plain text: give an "
                                       "https address, or no --aggregator-token-file"));
    }
    if (exposed && !options.insecure) {
      return FailedPrecondition(StrCat("--aggregator ", text,
                                       ": cookies of leases would cross the network in plain text: "
                                       "give an https address, or --insecure"));
    }
    out.aggregators.push_back(address);
  }
  return out;
}

// Off loopback the store needs TLS: it holds a secret, and the login is one.
StatusOr<EtcdOptions> ReadEtcd(const ControllerOptions& options) {
  WEIR_ASSIGN_OR_RETURN(EtcdOptions etcd, ParseEtcdAddress(options.store));
  if (options.store_cert.empty() != options.store_key.empty()) {
    return InvalidArgument("--store-cert and --store-key belong together");
  }
  etcd.tls_ca = options.store_ca;
  etcd.tls_cert = options.store_cert;
  etcd.tls_key = options.store_key;
  if (!etcd.tls && !(etcd.tls_ca + etcd.tls_cert).empty()) {
    return InvalidArgument(StrCat("--store ", options.store,
                                  " is plain text, but TLS files are given: expected etcds://"));
  }
  for (const std::string& member : etcd.members) {
    if (etcd.tls || IsLoopbackTarget(member)) continue;
    if (options.insecure && options.store_login_file.empty()) continue;
    return FailedPrecondition(StrCat("--store: the state would cross the network to ", member,
                                     " in plain text: give etcds:// and --store-ca",
                                     options.store_login_file.empty() ? ", or --insecure" : ""));
  }
  if (options.store_login_file.empty()) return etcd;
  std::ifstream file(options.store_login_file);
  std::string login;
  std::getline(file, login);
  const size_t colon = login.find(':');
  if (login.size() > 512 || colon == std::string::npos || colon == 0) {
    return InvalidArgument(StrCat("--store-login-file: expected a line USER:PASSWORD in '",
                                  options.store_login_file, "'"));
  }
  etcd.user = login.substr(0, colon);
  etcd.password = login.substr(colon + 1);
  return etcd;
}

// The secret is stored, so that a restarted controller keeps the leases of its jobs.
StatusOr<std::string> LeaseOwnerSecret(Store& store) {
  constexpr std::string_view kFact = "lease_owner_secret";
  WEIR_ASSIGN_OR_RETURN(const std::string kept, store.GetFact(kFact));
  if (!kept.empty()) return kept;
  WEIR_ASSIGN_OR_RETURN(const std::string fresh, NewChallenge());
  WEIR_RETURN_IF_ERROR(store.PutFact(kFact, fresh));
  return fresh;
}

class ControllerImpl : public Controller {
 public:
  explicit ControllerImpl(ControllerOptions options) : options_(std::move(options)) {}

  ~ControllerImpl() override {
    watcher_.reset();
    events_.Close();
    if (grpc_ != nullptr) grpc_->Stop(std::chrono::milliseconds(500));
    if (rest_ != nullptr) rest_->Stop();
    health_.reset();
    // Handlers may still have posted tasks that use the fleet, so the executor runs all of them
    // first.
    executor_.Stop();
    gateway_.reset();
    if (store_ != nullptr) (void)store_->Flush();
    election_.reset();  // gives the lead back
  }

  Status Run() {
    HostPort grpc;
    if (!IsUnixSocket(options_.listen_grpc)) {
      WEIR_ASSIGN_OR_RETURN(grpc, ParseAddress("--listen-grpc", options_.listen_grpc));
    }
    WEIR_ASSIGN_OR_RETURN(const HostPort http, ParseAddress("--listen-http", options_.listen_http));
    HostPort health;
    if (!options_.listen_health.empty()) {
      WEIR_ASSIGN_OR_RETURN(health, ParseAddress("--listen-health", options_.listen_health));
    }
    WEIR_RETURN_IF_ERROR(CheckExposure(options_, grpc, http, health));
    if (options_.token_file.empty()) {
      authenticator_ = std::make_unique<Authenticator>();
    } else {
      WEIR_ASSIGN_OR_RETURN(authenticator_, Authenticator::FromFile(options_.token_file));
    }
    authenticator_->OnFileChange(
        [this](const std::string& before, const StatusOr<std::string>& after) {
          executor_.Post([this, before, after] {
            Record(FileRecord("ReadTokens", options_.token_file, before, after));
          });
        });
    if (!options_.tls_cert.empty()) {
      tls_ = std::make_unique<TlsFiles>(
          TlsPaths{.cert = options_.tls_cert, .key = options_.tls_key, .ca = options_.tls_ca});
      WEIR_RETURN_IF_ERROR(tls_->Current().status());
    }
    WEIR_RETURN_IF_ERROR(OpenStore());
    served_ = std::make_unique<ServedPlane>(election_.get());
    audit_ = std::make_unique<AuditTrail>(*store_);
    backups_ = std::make_unique<Backups>(*store_, options_.state_file + ".backup");
    calls_ = std::make_unique<AdminCalls>(executor_, *served_, *audit_, *authenticator_, *backups_);
    succession_ = std::make_unique<Succession>(SuccessionOptions(), RealClock(), *store_, events_,
                                               *served_, election_.get());
    WEIR_RETURN_IF_ERROR(succession_->Begin());
    executor_.Start([this] { succession_->OnTick(); });
    if (!options_.policy_directory.empty()) {
      watcher_ = std::make_unique<PolicyWatcher>(
          options_.policy_directory, [this](PolicyWatcher::Contents contents) {
            executor_.Post([this, contents = std::move(contents)] { OnPolicyFiles(contents); });
          });
    }
    RestOptions rest{http.host, http.port, tls_.get(), options_.fleet.version};
    WEIR_ASSIGN_OR_RETURN(rest.local, LocalRightsOfHttp(http.host));
    rest.names = options_.http_names;
    rest.access = options_.access_log ? &access_ : nullptr;
    if (!options_.listen_health.empty()) {
      WEIR_ASSIGN_OR_RETURN(health_, HealthListener::Start(
                                         {health.host, health.port, tls_.get()},
                                         [this] { return CheckHealth(executor_); },
                                         [this] { return CheckReady(executor_, *served_); }));
    }
    WEIR_ASSIGN_OR_RETURN(
        rest_, RestServer::Start(rest, executor_, *served_, *calls_, events_, *authenticator_));
    calls_->SetPageUrl(PageUrl(http.host));
    GrpcOptions admitted{options_.listen_grpc, tls_.get(), LocalRightsOfGrpc()};
    admitted.host = grpc.host;
    admitted.access = rest.access;
    admitted.admission = options_.admission;
    if (IsLoopback(grpc.host) && options_.tls_ca.empty() && !options_.trust_loopback) {
      WEIR_ASSIGN_OR_RETURN(admitted.others, LocalRightsOfHttp(grpc.host));
    }
    WEIR_ASSIGN_OR_RETURN(
        grpc_, GrpcServer::Start(admitted, executor_, *served_, *calls_, events_, *authenticator_));
    if (election_ != nullptr) election_->Start(OwnAddress(grpc.host, http.host));
    Log(LogLevel::kInfo, "controller",
        StrCat(health_ == nullptr ? "" : StrCat("health on port ", health_->port(), ", "),
               "gRPC on ",
               grpc.host.empty() ? options_.listen_grpc : StrCat(grpc.host, ":", grpc_->port()),
               ", HTTP on ", http.host, ":", rest_->port(), ", state in ",
               options_.store.empty() ? options_.state_file : options_.store));
    return OkStatus();
  }

  int grpc_port() const override { return grpc_->port(); }
  int http_port() const override { return rest_->port(); }

 private:
  // The trail is the leader's to write.
  void Record(v1::AuditRecord record) {
    if (served_->acts()) audit_->Add(std::move(record));
  }

  void OnPolicyFiles(const PolicyWatcher::Contents& contents) {
    Fleet& fleet = (*served_)->fleet;
    std::string errors;
    const auto in_use = [&fleet, &errors] {
      std::string text;
      errors.clear();
      for (const PolicyEntry& entry : fleet.policies().All()) {
        if (entry.origin == "api" || entry.origin == "built in") continue;
        if (entry.valid) {
          text += StrCat(entry.origin, " ", SourceTag(entry.source), "\n", entry.source);
        }
        if (!entry.error.empty()) errors += StrCat(errors.empty() ? "" : "; ", entry.error);
      }
      return text;
    };
    const std::string before = in_use();
    fleet.OnPolicyFiles(contents);
    const std::string after = in_use();
    if (!contents.ok()) errors = Message(contents.status());
    if (after == before && errors.empty()) return;
    Record(FileRecord("ReadPolicies", options_.policy_directory, before,
                      errors.empty() ? StatusOr<std::string>(after) : InvalidArgument(errors)));
  }

  // A listener that asks for certificates or tokens grants nothing to callers that show none.
  LocalRights LocalRightsOfGrpc() const {
    LocalRights local{.agent = options_.tls_ca.empty()};
    if (options_.tls_ca.empty() && options_.token_file.empty()) local.role = Role::kAdmin;
    return local;
  }
  StatusOr<LocalRights> LocalRightsOfHttp(const std::string& host) const {
    LocalRights local;
    if (!options_.token_file.empty()) return local;
    if (!IsLoopback(host)) {
      local.role = Role::kAdmin;  // --insecure asks for it
    } else if (options_.local_role != "none") {
      WEIR_ASSIGN_OR_RETURN(local.role, ParseRole(options_.local_role));
    }
    return local;
  }
  std::string PageUrl(const std::string& host) const {
    const bool any = host == "0.0.0.0" || host == "::";
    const std::string named = any                           ? "localhost"
                              : host.find(':') == host.npos ? host
                                                            : "[" + host + "]";
    return StrCat(tls_ == nullptr ? "http://" : "https://", named, ":", rest_->port());
  }

  Status OpenStore() {
    if (options_.store.empty()) {
      WEIR_ASSIGN_OR_RETURN(store_, OpenSqliteStore(options_.state_file));
      return OkStatus();
    }
    WEIR_ASSIGN_OR_RETURN(const EtcdOptions etcd, ReadEtcd(options_));
    WEIR_RETURN_IF_ERROR(ReadAggregators(options_).status());  // before it is needed
    if (std::error_code none; std::filesystem::exists(options_.state_file, none)) {
      Log(LogLevel::kWarning, "controller",
          StrCat("'", options_.state_file, "' (--state) is not read: the state is in --store ",
                 options_.store, ", to which nothing is copied from there"));
    }
    WEIR_ASSIGN_OR_RETURN(const std::string identity, NewChallenge());
    election_ = std::make_unique<EtcdElection>(ElectionOptions{.etcd = etcd, .identity = identity});
    store_ = OpenEtcdStore(etcd, *election_);
    return OkStatus();
  }

  Succession::Options SuccessionOptions() {
    Succession::Options out{.fleet = options_.fleet};
    if (!options_.policy_directory.empty()) {
      // Policies must be known before the first decision; later changes come from the watcher.
      out.prepare = [this](ControlPlane& plane) {
        plane.fleet.OnPolicyFiles(ReadPolicyDirectory(options_.policy_directory));
      };
    }
    out.begin = [this] { return StartAggregators(); };
    out.end = [this] {
      (*served_)->fleet.sums().Use({}, nullptr);
      gateway_.reset();
    };
    return out;
  }

  ControllerAddress OwnAddress(const std::string& grpc_host, const std::string& http_host) const {
    ControllerAddress own{options_.advertise_grpc, options_.advertise_http};
    if (own.grpc.empty()) {
      own.grpc = grpc_host.empty() ? options_.listen_grpc : StrCat(grpc_host, ":", grpc_->port());
    }
    if (own.http.empty()) own.http = PageUrl(http_host);
    return own;
  }

  Status StartAggregators() {
    if (options_.aggregators.empty()) return OkStatus();
    WEIR_ASSIGN_OR_RETURN(GatewayOptions gateway, ReadAggregators(options_));
    WEIR_ASSIGN_OR_RETURN(gateway.owner_secret, LeaseOwnerSecret(*store_));
    const std::vector<AggregatorAddress> aggregators = gateway.aggregators;
    GatewayEvents events;
    events.state = [this](AggregatorReport said) {
      executor_.Post([this, said = std::move(said)] { (*served_)->fleet.sums().OnReport(said); });
    };
    events.answer = [this](const LeaseAsk& ask, StatusOr<SlotGrant> answer) {
      executor_.Post([this, ask, answer = std::move(answer)] {
        (*served_)->fleet.OnLeaseAnswer(ask, answer);
      });
    };
    WEIR_ASSIGN_OR_RETURN(gateway_, StartHttpGateway(std::move(gateway), std::move(events)));
    (*served_)->fleet.sums().Use(aggregators, gateway_.get());
    return OkStatus();
  }

  const ControllerOptions options_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<TlsFiles> tls_;           // of both listeners; null: plain text
  std::unique_ptr<EtcdElection> election_;  // null: the state is this controller's alone
  std::unique_ptr<Store> store_;
  EventHub events_;
  std::unique_ptr<ServedPlane> served_;
  std::unique_ptr<Succession> succession_;
  Executor executor_;
  std::unique_ptr<AuditTrail> audit_;
  std::unique_ptr<Backups> backups_;
  std::unique_ptr<AdminCalls> calls_;
  std::unique_ptr<LeaseGateway> gateway_;
  std::unique_ptr<PolicyWatcher> watcher_;
  AccessLog access_;
  std::unique_ptr<HealthListener> health_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<RestServer> rest_;
};

}  // namespace

StatusOr<std::unique_ptr<Controller>> Controller::Start(ControllerOptions options) {
  auto controller = std::make_unique<ControllerImpl>(std::move(options));
  WEIR_RETURN_IF_ERROR(controller->Run());
  return std::unique_ptr<Controller>(std::move(controller));
}

}  // namespace weir
