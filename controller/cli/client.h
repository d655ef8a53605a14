// SPDX-License-Identifier: Apache-2.0
#pragma once
// weirctl's connection to the controller, and how errors become exit codes.

#include <memory>
#include <string>

#include "datapath/base/status.h"
#include "weir/v1/admin.grpc.pb.h"

namespace weir::cli {

/// Stable: scripts rely on them.
enum ExitCode {
  kOk = 0,
  kFailure = 1,       // the call failed for another reason, or a check found a problem
  kUsage = 2,         // wrong flags or arguments
  kNotFoundExit = 3,  // the named thing does not exist, or the file
  kUnreachable = 4,   // no controller answers
  kConflict = 5,      // the controller refuses in its present state, or the document is invalid
};

ExitCode ExitCodeFor(const Status& status);

struct ClientOptions {
  std::string controller = "127.0.0.1:7700";
  double timeout_s = 10;
  std::string ca_file, cert_file, key_file;  // any set: TLS
  std::string token;                         // sent as "authorization: Bearer ..."
};

/// Thread-safe. Every call has the deadline of `timeout_s`; Watch runs until ended.
class Client {
 public:
  /// kNotFound: a TLS file cannot be read; kInvalidArgument: it is not valid, or has expired. Both
  /// name it. kFailedPrecondition: the token would
  /// leave this machine in plain text.
  static StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);

  v1::AdminService::Stub& stub() { return *stub_; }
  /// Deadline and credentials of one call.
  void Prepare(grpc::ClientContext* context, bool with_deadline = true) const;
  /// Our status; where no controller answers it names the address and the flag that mends it.
  Status ToStatus(const grpc::Status& status) const;
  const ClientOptions& options() const { return options_; }

  /// One unary call.
  template <typename Request, typename Response>
  Status Call(grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
              const Request& request, Response* response) {
    grpc::ClientContext context;
    Prepare(&context);
    return ToStatus((stub_.get()->*method)(&context, request, response));
  }

  /// All pages of a list, joined: each has the deadline of a call. kInternal: the list has no end.
  template <typename Request, typename Response>
  Status CallAllPages(grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Response*),
                      Request request, Response* all) {
    constexpr int kPagesMax = 10000;
    for (int pages = 0; pages < kPagesMax; ++pages) {
      Response page;
      WEIR_RETURN_IF_ERROR(Call(method, request, &page));
      if (!page.next_page_token().empty() && page.next_page_token() == request.page_token()) break;
      request.set_page_token(page.next_page_token());
      page.clear_next_page_token();
      all->MergeFrom(page);
      if (request.page_token().empty()) return OkStatus();
    }
    return Internal("the controller's list of pages has no end");
  }

 private:
  explicit Client(ClientOptions options) : options_(std::move(options)) {}
  ClientOptions options_;
  std::unique_ptr<v1::AdminService::Stub> stub_;
};

/// The whole text of a file, "-" for standard input; at most 1 MiB. Errors name the file.
StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace weir::cli
