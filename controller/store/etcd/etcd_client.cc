// SPDX-License-Identifier: Apache-2.0
#include "controller/store/etcd/etcd_client.h"

#include <httplib.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "datapath/base/log.h"
#include "deploy/program/name_lookup.h"
#include "deploy/program/tls/tls_files.h"

namespace weir {
namespace {

using Json = nlohmann::json;

constexpr size_t kMembersMax = 16;
constexpr size_t kSaidMax = 200;  // bytes of an answer that an error quotes
constexpr int64_t kPageRows = 128;
// gRPC's codes, which the gateway passes on.
constexpr int kCodeResourceExhausted = 8, kCodeUnavailable = 14, kCodeUnauthenticated = 16;
constexpr int kCodeDeadlineExceeded = 4;

std::string ToBase64(const std::string& bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3), '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                  reinterpret_cast<const unsigned char*>(bytes.data()),
                  static_cast<int>(bytes.size()));
  return out;
}

StatusOr<std::string> FromBase64(const std::string& text) {
  if (text.size() % 4 != 0) return DataLoss("etcd answers with a text that is not base64");
  std::string out(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0) return DataLoss("etcd answers with a text that is not base64");
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  out.resize(static_cast<size_t>(size) - padding);
  return out;
}

// The gateway writes 64-bit integers as texts, and leaves out zeros.
int64_t Integer(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number()) return found->get<int64_t>();
  if (!found->is_string()) return 0;
  const auto& text = found->get_ref<const std::string&>();
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

const Json& Part(const Json& object, const char* name) {
  static const Json kNothing;
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

std::string Text(const Json& object, const char* name) {
  const Json& member = Part(object, name);
  return member.is_string() ? member.get<std::string>() : "";
}

std::string ErrorText(httplib::Error error, Duration timeout) {
  if (error == httplib::Error::Connection) return "cannot connect";
  if (error == httplib::Error::Read) return StrCat("no answer within ", ToSeconds(timeout), " s");
  if (error == httplib::Error::SSLServerVerification) return "its certificate is not trusted";
  return httplib::to_string(error);
}

int64_t RevisionOf(const Json& answer) {
  const Json& header = Part(answer, "header");
  return header.is_object() ? Integer(header, "revision") : 0;
}

Json RangeJson(const EtcdRange& range) {
  Json out = {{"key", ToBase64(range.key)}};
  if (!range.end.empty()) out["range_end"] = ToBase64(range.end);
  if (range.limit > 0) out["limit"] = range.limit;
  if (range.keys_only) out["keys_only"] = true;
  if (range.count_only) out["count_only"] = true;
  if (range.serializable) out["serializable"] = true;
  if (range.oldest_first) {
    out["sort_target"] = "MOD";
    out["sort_order"] = "ASCEND";
  } else if (range.descending) {
    out["sort_target"] = "KEY";
    out["sort_order"] = "DESCEND";
  }
  return out;
}

Json OperationJson(const EtcdOperation& operation) {
  if (const auto* put = std::get_if<EtcdPut>(&operation)) {
    Json body = {{"key", ToBase64(put->key)}, {"value", ToBase64(put->value)}};
    if (put->lease != 0) body["lease"] = put->lease;
    return {{"request_put", std::move(body)}};
  }
  if (const auto* gone = std::get_if<EtcdDelete>(&operation)) {
    Json body = {{"key", ToBase64(gone->key)}};
    if (!gone->end.empty()) body["range_end"] = ToBase64(gone->end);
    return {{"request_delete_range", std::move(body)}};
  }
  return {{"request_range", RangeJson(std::get<EtcdRange>(operation))}};
}

StatusOr<EtcdRows> RowsOf(const Json& answer) {
  EtcdRows out;
  out.count = Integer(answer, "count");
  out.revision = RevisionOf(answer);
  for (const Json& each : Part(answer, "kvs")) {
    EtcdRow row;
    WEIR_ASSIGN_OR_RETURN(row.key, FromBase64(Text(each, "key")));
    WEIR_ASSIGN_OR_RETURN(row.value, FromBase64(Text(each, "value")));
    row.create_revision = Integer(each, "create_revision");
    row.mod_revision = Integer(each, "mod_revision");
    row.lease = Integer(each, "lease");
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace

StatusOr<EtcdOptions> ParseEtcdAddress(const std::string& text) {
  EtcdOptions out;
  std::string rest;
  if (text.starts_with("etcd://")) {
    rest = text.substr(7);
  } else if (text.starts_with("etcds://")) {
    rest = text.substr(8);
    out.tls = true;
  }
  const auto wrong = [&text](std::string_view why) {
    return InvalidArgument(StrCat("the store '", text, "' ", why,
                                  ", expected etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"));
  };
  if (rest.empty()) return wrong("is no address of etcd");
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (slash + 1 < rest.size()) out.prefix = rest.substr(slash);
  while (out.prefix.size() > 1 && out.prefix.back() == '/') out.prefix.pop_back();
  std::set<std::string> names;
  for (size_t begin = 0; begin <= slash;) {
    const size_t end = std::min(rest.find(',', begin), slash);
    const std::string member = rest.substr(begin, end - begin);
    const size_t colon = member.rfind(':');
    int port = 0;
    if (colon != std::string::npos) {
      std::from_chars(member.data() + colon + 1, member.data() + member.size(), port);
    }
    if (colon == std::string::npos || colon == 0 || port <= 0 || port > 65535) {
      return wrong(StrCat("has the member '", member, "'"));
    }
    if (!names.insert(member).second) return wrong(StrCat("names ", member, " twice"));
    out.members.push_back(member);
    begin = end + 1;
  }
  if (out.members.size() > kMembersMax) return wrong("has more than 16 members");
  return out;
}

std::string EtcdPrefixEnd(std::string prefix) {
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

// The connections to the members.
class EtcdClient::Wire {
 public:
  explicit Wire(const EtcdOptions& options)
      : options_(options),
        files_({.cert = options.tls_cert, .key = options.tls_key, .ca = options.tls_ca}) {
    for (const std::string& member : options.members) {
      const std::string host = member.substr(0, member.rfind(':'));
      lines_.push_back({member, host, NameLookup(Bare(host), StartSystemLookup, RealClock()), {}});
    }
  }

  // Asks one member after the other until `deadline`.
  StatusOr<Json> Call(const std::string& path, const Json& request, TimePoint deadline) {
    std::string said;
    const std::string body = request.dump();
    for (bool logged_in_again = false; true;) {
      const TimePoint now = RealClock().Now();
      if (now >= deadline) break;
      if (token_.empty() && !options_.user.empty() && !open_) {
        const Status allowed = LogIn(deadline);
        if (allowed.code() == StatusCode::kFailedPrecondition) return allowed;
        if (!allowed.ok()) {
          said = Message(allowed);
          Turn(deadline);
          continue;
        }
      }
      Line& line = lines_[current_];
      auto answer = Attempt(line, path, body, std::min(deadline - now, options_.attempt_timeout));
      if (!answer.ok()) {
        said = StrCat(line.member, ": ", Message(answer.status()));
        Turn(deadline);
        continue;
      }
      const int code = answer->code;
      if (code == 0) {
        turns_ = 0;
        return std::move(answer->body);
      }
      const std::string text = Text(answer->body, "message");
      const bool login_wanted = code == kCodeUnauthenticated ||
                                text.find("invalid auth token") != std::string::npos ||
                                (open_ && text.find("user name is empty") != std::string::npos);
      if (login_wanted && !options_.user.empty() && !logged_in_again) {
        token_.clear();
        open_ = false;
        logged_in_again = true;
        continue;
      }
      if (code == kCodeUnavailable || code == kCodeDeadlineExceeded) {
        said = StrCat(line.member, ": ", text);
        Turn(deadline);
        continue;
      }
      turns_ = 0;
      if (code == kCodeResourceExhausted) return ResourceExhausted(StrCat("etcd: ", text));
      if (text.find("permission denied") != std::string::npos ||
          text.find("user name is empty") != std::string::npos) {
        return FailedPrecondition(StrCat("etcd: ", text, ": give a login with --store-login-file"));
      }
      return Internal(StrCat("etcd: ", text, " (code ", code, ")"));
    }
    return Unavailable(
        StrCat("no etcd member answers", said.empty() ? "" : " (", said, said.empty() ? "" : ")"));
  }

 private:
  struct Line {
    std::string member, host;
    NameLookup lookup;
    std::unique_ptr<httplib::Client> client;
  };
  struct Answer {
    int code = 0;  // 0: OK
    Json body;
  };

  // Without the brackets of an IPv6 address.
  static std::string Bare(const std::string& host) {
    return host.size() > 2 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
  }

  // Goes on to the next member. After a whole round it waits a little, so that members that refuse
  // at once are not asked all the time.
  void Turn(TimePoint deadline) {
    current_ = (current_ + 1) % lines_.size();
    if (++turns_ % lines_.size() != 0) return;
    const Duration left = deadline - RealClock().Now();
    if (left > Duration(0)) {
      std::this_thread::sleep_for(std::min<Duration>(left, std::chrono::milliseconds(50)));
    }
  }

  Status LogIn(TimePoint deadline) {
    const TimePoint now = RealClock().Now();
    if (now >= deadline) return DeadlineExceeded("no time left to log in");
    Line& line = lines_[current_];
    const Json login = {{"name", options_.user}, {"password", options_.password}};
    WEIR_ASSIGN_OR_RETURN(const Answer answer,
                          Attempt(line, "/v3/auth/authenticate", login.dump(),
                                  std::min(deadline - now, options_.attempt_timeout)));
    if (answer.code == kCodeUnavailable || answer.code == kCodeDeadlineExceeded) {
      return Unavailable(StrCat(line.member, ": ", Text(answer.body, "message")));
    }
    token_ = Text(answer.body, "token");
    if (!token_.empty()) return OkStatus();
    // As etcd's own clients do: a cluster whose authentication is yet to be switched on, or was
    // switched off, takes calls from everybody.
    if (Text(answer.body, "message").find("authentication is not enabled") != std::string::npos) {
      open_ = true;
      Log(LogLevel::kWarning, "controller",
          StrCat("etcd asks for no login, so that of user '", options_.user,
                 "' is not used: whoever reaches etcd can change what is stored; switch it on with "
                 "'etcdctl auth enable'"));
      return OkStatus();
    }
    return FailedPrecondition(StrCat("etcd refuses the login of user '", options_.user,
                                     "': ", Text(answer.body, "message")));
  }

  Status Connect(Line& line, Duration timeout) {
    WEIR_ASSIGN_OR_RETURN(const std::string numeric, line.lookup.Address(timeout));
    std::shared_ptr<const TlsMaterial> material;
    if (options_.tls) {
      WEIR_ASSIGN_OR_RETURN(material, files_.Current());
    }
    if (material != material_) {  // renewed files are for new connections
      for (Line& each : lines_) each.client.reset();
      material_ = material;
    }
    if (line.client == nullptr) {
      line.client = std::make_unique<httplib::Client>(
          StrCat(options_.tls ? "https://" : "http://", line.member), options_.tls_cert,
          options_.tls_key);
      if (!line.client->is_valid()) return Internal("OpenSSL makes no context for a client");
      line.client->set_keep_alive(true);
      line.client->set_tcp_nodelay(true);
      line.client->set_follow_location(false);
      if (options_.tls && !options_.tls_ca.empty()) {
        line.client->set_ca_cert_store(MakeAuthorityStore(*material_));
      }
      line.client->enable_server_certificate_verification(true);
    }
    // The certificate is still checked against the name.
    if (numeric != Bare(line.host)) {
      line.client->set_hostname_addr_map({{Bare(line.host), numeric}});
    }
    return OkStatus();
  }

  StatusOr<Answer> Attempt(Line& line, const std::string& path, const std::string& body,
                           Duration timeout) {
    WEIR_RETURN_IF_ERROR(Connect(line, timeout));
    line.client->set_connection_timeout(timeout);
    line.client->set_read_timeout(timeout);
    line.client->set_write_timeout(timeout);
    const TimePoint deadline = RealClock().Now() + timeout;
    httplib::Request request;
    request.method = "POST";
    request.path = path;
    request.set_header("Content-Type", "application/json");
    if (!token_.empty()) request.set_header("Authorization", token_);
    request.body = body;
    std::string text;
    int http_status = 0;
    request.response_handler = [&http_status](const httplib::Response& head) {
      http_status = head.status;
      return true;
    };
    bool too_long = false, too_late = false;
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      too_long = text.size() + size > kAnswerBytesMax;
      too_late = RealClock().Now() > deadline;
      if (too_long || too_late) return false;
      text.append(data, size);
      return true;
    };
    const httplib::Result result = line.client->send(request);
    if (too_long || too_late) line.client.reset();
    if (too_long) {
      return ResourceExhausted(StrCat("an answer of more than ", kAnswerBytesMax, " bytes"));
    }
    if (too_late) return DeadlineExceeded(StrCat("no answer within ", ToSeconds(timeout), " s"));
    Answer answer;
    answer.body = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!result) {
      line.client.reset();  // a late answer must not be taken for that of the next request
      if (result.error() == httplib::Error::Connection) line.lookup.Failed();
      // The gateway ends errors with a trailer, which the library takes for a broken answer.
      const bool whole = http_status >= 400 && answer.body.is_object();
      if (!whole) return Unavailable(ErrorText(result.error(), timeout));
    }
    if (!answer.body.is_object()) {
      const std::string said =
          Json(text.substr(0, kSaidMax)).dump(-1, ' ', false, Json::error_handler_t::replace);
      return Unavailable(
          StrCat("it does not speak etcd's API (HTTP ", http_status, ", it says ", said, ")"));
    }
    // Calls whose answer is a stream wrap it, and report errors of it with HTTP status 200.
    if (answer.body.contains("result")) answer.body = Json(answer.body["result"]);
    const bool failed = answer.body.contains("error");
    if (http_status == 200 && !failed) return answer;
    const Json& error = Part(answer.body, "error");
    if (error.is_object()) answer.body = Json(error);
    answer.code = static_cast<int>(Integer(answer.body, "code"));
    if (answer.code == 0) answer.code = static_cast<int>(Integer(answer.body, "grpc_code"));
    if (answer.code == 0) answer.code = kCodeUnavailable;
    return answer;
  }

  const EtcdOptions& options_;
  TlsFiles files_;
  std::shared_ptr<const TlsMaterial> material_;
  std::vector<Line> lines_;
  std::string token_;
  bool open_ = false;  // etcd said that it asks for no login
  size_t current_ = 0, turns_ = 0;
};

EtcdClient::EtcdClient(EtcdOptions options)
    : options_(std::move(options)), wire_(std::make_unique<Wire>(options_)) {}

EtcdClient::~EtcdClient() = default;

StatusOr<EtcdRows> EtcdClient::Range(const EtcdRange& range, TimePoint deadline) {
  WEIR_ASSIGN_OR_RETURN(const Json answer, wire_->Call("/v3/kv/range", RangeJson(range), deadline));
  return RowsOf(answer);
}

StatusOr<std::vector<EtcdRow>> EtcdClient::RangeAll(EtcdRange range, TimePoint deadline) {
  std::vector<EtcdRow> all;
  range.limit = kPageRows;
  while (true) {
    WEIR_ASSIGN_OR_RETURN(EtcdRows page, Range(range, deadline));
    const bool last = page.count <= static_cast<int64_t>(page.rows.size());
    for (EtcdRow& row : page.rows) all.push_back(std::move(row));
    if (last || page.rows.empty()) return all;
    range.key = all.back().key + '\0';
  }
}

StatusOr<EtcdOutcome> EtcdClient::Commit(const std::vector<EtcdCompare>& comparisons,
                                         const std::vector<EtcdOperation>& then,
                                         const std::vector<EtcdOperation>& otherwise,
                                         TimePoint deadline) {
  Json request = {
      {"compare", Json::array()}, {"success", Json::array()}, {"failure", Json::array()}};
  for (const EtcdCompare& compare : comparisons) {
    const bool create = compare.target == EtcdCompare::Target::kCreateRevision;
    request["compare"].push_back({{"key", ToBase64(compare.key)},
                                  {"result", "EQUAL"},
                                  {"target", create ? "CREATE" : "MOD"},
                                  {create ? "create_revision" : "mod_revision", compare.revision}});
  }
  for (const EtcdOperation& each : then) request["success"].push_back(OperationJson(each));
  for (const EtcdOperation& each : otherwise) request["failure"].push_back(OperationJson(each));
  WEIR_ASSIGN_OR_RETURN(const Json answer, wire_->Call("/v3/kv/txn", request, deadline));
  EtcdOutcome out;
  out.succeeded = Part(answer, "succeeded") == true;
  out.revision = RevisionOf(answer);
  for (const Json& each : Part(answer, "responses")) {
    WEIR_ASSIGN_OR_RETURN(
        EtcdRows rows,
        RowsOf(each.contains("response_range") ? each["response_range"] : Json::object()));
    out.answers.push_back(std::move(rows));
  }
  out.answers.resize((out.succeeded ? then : otherwise).size());
  return out;
}

StatusOr<EtcdClient::Lease> EtcdClient::GrantLease(int64_t ttl_s, TimePoint deadline) {
  WEIR_ASSIGN_OR_RETURN(const Json answer,
                        wire_->Call("/v3/lease/grant", {{"TTL", ttl_s}}, deadline));
  return Lease{Integer(answer, "ID"), Integer(answer, "TTL")};
}

StatusOr<int64_t> EtcdClient::KeepAlive(int64_t lease, TimePoint deadline) {
  WEIR_ASSIGN_OR_RETURN(const Json answer,
                        wire_->Call("/v3/lease/keepalive", {{"ID", lease}}, deadline));
  return Integer(answer, "TTL");
}

Status EtcdClient::Revoke(int64_t lease, TimePoint deadline) {
  return wire_->Call("/v3/lease/revoke", {{"ID", lease}}, deadline).status();
}

Status EtcdClient::Compact(int64_t revision, TimePoint deadline) {
  return wire_->Call("/v3/kv/compaction", {{"revision", revision}}, deadline).status();
}

StatusOr<EtcdMember> EtcdClient::Member(TimePoint deadline) {
  WEIR_ASSIGN_OR_RETURN(const Json answer,
                        wire_->Call("/v3/maintenance/status", Json::object(), deadline));
  EtcdMember out;
  out.revision = RevisionOf(answer);
  out.db_bytes = static_cast<double>(Integer(answer, "dbSizeInUse"));
  for (const Json& each : Part(answer, "errors")) {
    if (each.is_string()) out.alarms += (out.alarms.empty() ? "" : "; ") + each.get<std::string>();
  }
  return out;
}

}  // namespace weir
