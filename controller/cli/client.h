// SPDX-License-Identifier: Apache-2.0
#pragma once
// weirctl's connection to the controller, and how errors become exit codes.

#include <grpcpp/security/credentials.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "datapath/base/mutex.h"
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
  std::string controller = "127.0.0.1:7700";  // several with commas, of which one leads
  double timeout_s = 10;
  std::string ca_file, cert_file, key_file;  // any set: TLS
  std::string token;                         // sent as "authorization: Bearer ..."
};

/// The answer of one of several controllers, as far as it is about them.
struct Standing {
  bool shared = false;  // there may be several
  bool leads = false;
  std::string leader = {};  // its address; empty: nobody knows one
  std::string store = {};   // why the shared store cannot be used; empty: it can
};

/// Thread-safe. Every call has the deadline of `timeout_s`; Watch runs until ended. Of several
/// controllers the leader is asked, whom a standby names, and a standby where no leader answers.
class Client {
 public:
  /// kNotFound: a TLS file cannot be read; kInvalidArgument: it is not valid, or has expired. Both
  /// name it. kFailedPrecondition: the token would
  /// leave this machine in plain text.
  static StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);

  /// Reaches the controller that answered last.
  v1::AdminService::Stub& stub();
  /// As the last answer said.
  Standing standing() const;
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
    return Ask([&](v1::AdminService::Stub& stub, grpc::ClientContext* context) {
      response->Clear();
      return (stub.*method)(context, request, response);
    });
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
  using Stub = v1::AdminService::Stub;
  explicit Client(ClientOptions options) : options_(std::move(options)) {}
  Status Ask(const std::function<grpc::Status(Stub&, grpc::ClientContext*)>& ask);
  StatusOr<Stub*> StubOf(const std::string& target) WEIR_EXCLUDES(mutex_);
  std::string target() const WEIR_EXCLUDES(mutex_);
  void Note(const std::string& target, const Standing& standing) WEIR_EXCLUDES(mutex_);

  ClientOptions options_;
  std::vector<std::string> controllers_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  bool tls_ = false;
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<Stub>> stubs_ WEIR_GUARDED_BY(mutex_);  // by address
  std::string target_ WEIR_GUARDED_BY(mutex_);
  Standing standing_ WEIR_GUARDED_BY(mutex_);
};

/// The whole text of a file, "-" for standard input; at most 1 MiB. Errors name the file.
StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace weir::cli
