// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/client.h"

#include <grpcpp/grpcpp.h>

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

}  // namespace

StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  const bool tls = !options.ca_file.empty() || !options.cert_file.empty();
  if (!options.token.empty() && !tls && !IsLoopbackTarget(options.controller)) {
    return FailedPrecondition(
        StrCat("the token would cross the network to ", options.controller,
               " in plain text: give the controller's authority with --ca, or reach it through a "
               "tunnel that ends on loopback"));
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (tls) {
    TlsFiles files({.cert = options.cert_file, .key = options.key_file, .ca = options.ca_file});
    const auto material = files.Current();
    if (!material.ok()) {
      const bool absent = material.status().code() == StatusCode::kUnavailable;
      return absent ? NotFound(Message(material.status())) : material.status();
    }
    credentials = grpc::SslCredentials({.pem_root_certs = (*material)->ca,
                                        .pem_private_key = (*material)->key,
                                        .pem_cert_chain = (*material)->cert});
  }
  std::unique_ptr<Client> client(new Client(options));
  grpc::ChannelArguments arguments;  // gRPC's own bound is below what the controller may send
  arguments.SetMaxReceiveMessageSize(kGrpcMessageBytesMax);
  client->stub_ = v1::AdminService::NewStub(
      grpc::CreateCustomChannel(options.controller, credentials, arguments));
  return client;
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
