// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "controller/messages/limits.h"
#include "deploy/program/loopback.h"
#include "deploy/program/tls/tls_files.h"

namespace weir::cli {
namespace {
constexpr size_t kFileBytesMax = 1 << 20;
}

ExitCode ExitCodeFor(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kOk;
    case StatusCode::kNotFound:
      return kNotFoundExit;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return kUnreachable;
    case StatusCode::kFailedPrecondition:
    case StatusCode::kAborted:
    case StatusCode::kAlreadyExists:
    case StatusCode::kInvalidArgument:
      return kConflict;
    default:  // absl's enum has a do-not-use enumerator: the rest share one exit code
      return kFailure;
  }
}

StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file;
  std::istream* input = &std::cin;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return NotFound(StrCat("cannot read ", path, ": ", std::strerror(errno)));
    input = &file;
  }
  std::string text(kFileBytesMax + 1, '\0');
  input->read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(input->gcount()));
  if (text.size() > kFileBytesMax) {
    return InvalidArgument(StrCat(path, ": larger than ", kFileBytesMax, " bytes"));
  }
  return text;
}

namespace {

// The last cause of what gRPC says in hundreds of characters: "Connection refused".
std::string CauseOf(const std::string& message) {
  const size_t at = message.rfind(": ");
  return at == std::string::npos ? message : message.substr(at + 2);
}

// Whether no connection came about, as gRPC words it; other answers are the controller's own.
bool NotConnected(const std::string& message) {
  for (const char* const begin : {"failed to connect", "DNS resolution failed",
                                  "empty address list", "connections to all backends failing"}) {
    if (message.find(begin) != std::string::npos) return true;
  }
  return false;
}

// Controllers that share a store say this in every answer (controller/server/grpc).
Standing StandingIn(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto text = [&metadata](const char* name) {
    const auto found = metadata.find(name);
    return found == metadata.end() ? std::string()
                                   : std::string(found->second.data(), found->second.size());
  };
  const std::string word = text("weir-standing");
  return {!word.empty(), word == "leader", text("weir-leader"), text("weir-store")};
}

}  // namespace

StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  std::unique_ptr<Client> client(new Client(options));
  client->tls_ = !options.ca_file.empty() || !options.cert_file.empty();
  client->credentials_ = grpc::InsecureChannelCredentials();
  std::string list = options.controller + ",";
  for (size_t end = 0; (end = list.find(',')) != std::string::npos; list.erase(0, end + 1)) {
    if (end > 0) client->controllers_.push_back(list.substr(0, end));
  }
  if (client->controllers_.empty()) return InvalidArgument("--controller names no address");
  if (client->tls_) {
    TlsFiles files({.cert = options.cert_file, .key = options.key_file, .ca = options.ca_file});
    const auto material = files.Current();
    if (!material.ok()) {
      const bool absent = material.status().code() == StatusCode::kUnavailable;
      return absent ? NotFound(Message(material.status())) : material.status();
    }
    client->credentials_ = grpc::SslCredentials({.pem_root_certs = (*material)->ca,
                                                 .pem_private_key = (*material)->key,
                                                 .pem_cert_chain = (*material)->cert});
  }
  for (const std::string& each : client->controllers_) {
    WEIR_RETURN_IF_ERROR(client->StubOf(each).status());
  }
  client->Note(client->controllers_.front(), {});
  return client;
}

StatusOr<Client::Stub*> Client::StubOf(const std::string& target) {
  if (!options_.token.empty() && !tls_ && !IsLoopbackTarget(target)) {
    return FailedPrecondition(
        StrCat("the token would cross the network to ", target,
               " in plain text: give the controller's authority with --ca, or reach it through a "
               "tunnel that ends on loopback"));
  }
  MutexLock lock(mutex_);
  std::unique_ptr<Stub>& stub = stubs_[target];
  if (stub == nullptr) {
    grpc::ChannelArguments arguments;  // gRPC's own bound is below what the controller may send
    arguments.SetMaxReceiveMessageSize(kGrpcMessageBytesMax);
    stub = v1::AdminService::NewStub(grpc::CreateCustomChannel(target, credentials_, arguments));
  }
  return stub.get();
}

v1::AdminService::Stub& Client::stub() {
  MutexLock lock(mutex_);
  return *stubs_[target_];
}

std::string Client::target() const {
  MutexLock lock(mutex_);
  return target_;
}

Standing Client::standing() const {
  MutexLock lock(mutex_);
  return standing_;
}

void Client::Note(const std::string& target, const Standing& standing) {
  MutexLock lock(mutex_);
  target_ = target;
  standing_ = standing;
}

Status Client::Ask(const std::function<grpc::Status(Stub&, grpc::ClientContext*)>& ask) {
  std::string target = this->target();
  std::string standby;  // that named the leader
  size_t left = controllers_.size();
  while (true) {
    WEIR_ASSIGN_OR_RETURN(Stub* const stub, StubOf(target));
    grpc::ClientContext context;
    Prepare(&context);
    const grpc::Status answer = ask(*stub, &context);
    const Standing standing = StandingIn(context);
    const bool absent = answer.error_code() == grpc::StatusCode::UNAVAILABLE &&
                        NotConnected(answer.error_message());
    if (absent && !standby.empty() && target != standby) {
      target = standby;  // it answers from what the store holds
      continue;
    }
    if (absent && standby.empty() && controllers_.size() > 1 && --left > 0) {
      const auto at = std::find(controllers_.begin(), controllers_.end(), target);
      target = at == controllers_.end() || at + 1 == controllers_.end() ? controllers_.front()
                                                                        : *(at + 1);
      continue;
    }
    if (standing.shared && !standing.leads && !standing.leader.empty() && standby.empty() &&
        standing.leader != target) {
      standby = target;
      target = standing.leader;
      continue;
    }
    Note(target, standing);
    return ToStatus(answer);
  }
}

void Client::Prepare(grpc::ClientContext* context, bool with_deadline) const {
  if (with_deadline) {
    context->set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::milliseconds(static_cast<int64_t>(options_.timeout_s * 1e3)));
  }
  if (!options_.token.empty()) context->AddMetadata("authorization", "Bearer " + options_.token);
}

Status Client::ToStatus(const grpc::Status& status) const {
  if (status.ok()) return OkStatus();
  const Status ours =
      MakeStatus(static_cast<StatusCode>(status.error_code()), status.error_message());
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return MakeStatus(ours.code(),
                      StrCat("the controller at ", options_.controller, " did not answer within ",
                             options_.timeout_s, " s; give more time with --timeout"));
  }
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return ours;
  if (!NotConnected(status.error_message())) {
    return Annotate(ours, StrCat("controller at ", options_.controller));
  }
  return MakeStatus(ours.code(),
                    StrCat("no controller answers at ", options_.controller, " (",
                           CauseOf(status.error_message()),
                           "): start weir-controller, or name another address with --controller or "
                           "weirctl context"));
}

}  // namespace weir::cli
