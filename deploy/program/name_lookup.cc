// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/name_lookup.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <utility>

namespace weir {
namespace {

constexpr size_t kAddressesMax = 16;

bool IsNumeric(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::vector<std::string> Texts(const addrinfo* found) {
  std::vector<std::string> texts;
  for (; found != nullptr && texts.size() < kAddressesMax; found = found->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.emplace_back(text);
  }
  return texts;
}

class SystemLookup : public PendingLookup {
 public:
  explicit SystemLookup(const std::string& host) : request_(std::make_unique<Request>()) {
    request_->host = host;
    request_->hints.ai_family = AF_UNSPEC;
    request_->hints.ai_socktype = SOCK_STREAM;
    request_->hints.ai_flags = AI_ADDRCONFIG;
    request_->block.ar_name = request_->host.c_str();
    request_->block.ar_request = &request_->hints;
    gaicb* const blocks[] = {&request_->block};
    refused_ = getaddrinfo_a(GAI_NOWAIT, const_cast<gaicb**>(blocks), 1, nullptr);
  }

  ~SystemLookup() override {
    if (refused_ != 0) return;
    if (gai_error(&request_->block) == EAI_INPROGRESS &&
        gai_cancel(&request_->block) == EAI_NOTCANCELED) {
      // The system writes into it when the answer comes, which cannot be prevented.
      (void)request_.release();
      return;
    }
    if (request_->block.ar_result != nullptr) freeaddrinfo(request_->block.ar_result);
  }

  std::optional<Answer> Wait(Duration at_most) override {
    if (refused_ != 0) return Answer(Failure(refused_));
    const TimePoint deadline = RealClock().Now() + at_most;
    int state = 0;
    while ((state = gai_error(&request_->block)) == EAI_INPROGRESS) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::max(deadline - RealClock().Now(), Duration::zero()))
                            .count();
      if (left == 0) return std::nullopt;
      const timespec timeout{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
      const gaicb* const blocks[] = {&request_->block};
      (void)gai_suspend(blocks, 1, &timeout);  // returns early on a signal
    }
    if (state != 0) return Answer(Failure(state));
    std::vector<std::string> texts = Texts(request_->block.ar_result);
    if (texts.empty()) return Answer(Unavailable(StrCat("no address of host ", request_->host)));
    return Answer(std::move(texts));
  }

 private:
  struct Request {
    std::string host;
    addrinfo hints{};
    gaicb block{};
  };

  Status Failure(int code) const {
    return Unavailable(StrCat("cannot look up host ", request_->host, ": ", gai_strerror(code)));
  }

  std::unique_ptr<Request> request_;
  int refused_ = 0;
};

}  // namespace

std::unique_ptr<PendingLookup> StartSystemLookup(const std::string& host) {
  return std::make_unique<SystemLookup>(host);
}

NameLookup::NameLookup(std::string host, StartLookup start, const Clock& clock)
    : host_(std::move(host)), start_(std::move(start)), clock_(clock), numeric_(IsNumeric(host_)) {}

StatusOr<std::string> NameLookup::Address(Duration at_most) {
  if (numeric_) return host_;
  const bool fresh =
      !addresses_.empty() && ToSeconds(clock_.Now() - found_at_) < kFreshS && pending_ == nullptr;
  if (fresh) return addresses_.front();
  if (pending_ == nullptr) pending_ = start_(host_);
  auto answer = pending_->Wait(addresses_.empty() ? at_most : Duration::zero());
  if (!answer.has_value()) {
    if (!addresses_.empty()) return addresses_.front();  // the old address until the lookup ends
    return DeadlineExceeded(
        StrCat("no name server answered for host ", host_, " within ", ToSeconds(at_most), " s"));
  }
  pending_ = nullptr;
  if (answer->ok()) {
    addresses_ = **std::move(answer);
    found_at_ = clock_.Now();
  } else if (addresses_.empty()) {
    return answer->status();
  } else {
    found_at_ = clock_.Now();  // so that not every call asks again
  }
  return addresses_.front();
}

void NameLookup::Failed() {
  if (!addresses_.empty()) addresses_.erase(addresses_.begin());
}

}  // namespace weir
