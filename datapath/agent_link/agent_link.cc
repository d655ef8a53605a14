// SPDX-License-Identifier: Apache-2.0
#include "datapath/agent_link/agent_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "datapath/base/caught.h"
#include "datapath/base/json.h"
#include "datapath/base/log.h"
#include "datapath/wire/agent_socket.h"

namespace weir {
namespace {

constexpr Duration kFlushMax = std::chrono::milliseconds(200);
constexpr Duration kHealthyAfter = std::chrono::seconds(5);
constexpr size_t kReadBytes = 64 << 10;

Status SystemError(std::string_view what) {
  return Unavailable(StrCat(what, ": ", std::strerror(errno)));
}

int Milliseconds(Duration d) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

}  // namespace

StatusOr<std::unique_ptr<AgentLink>> AgentLink::Create(AgentLinkOptions options,
                                                       AgentHandler& handler) {
  WEIR_RETURN_IF_ERROR(CheckAgentAddress(options.address));
  std::unique_ptr<AgentLink> link(new AgentLink(std::move(options), handler));
  link->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (link->wake_fd_ < 0) return SystemError("eventfd");
  return link;
}

AgentLink::AgentLink(AgentLinkOptions options, AgentHandler& handler)
    : options_(std::move(options)), handler_(handler) {}

AgentLink::~AgentLink() {
  Stop();
  if (wake_fd_ >= 0) close(wake_fd_);
}

void AgentLink::Start() {
  thread_ = StartThread("weir-agent", [this] { Loop(); });
}

void AgentLink::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  Wake();
  thread_.join();
}

void AgentLink::Send(RankMessage message) {
  if (!connected()) return;
  const bool is_report =
      std::holds_alternative<StepReport>(message) || std::holds_alternative<PathReport>(message);
  (is_report ? reports_ : messages_).PushDroppingOldest(std::move(message));
  Wake();
}

void AgentLink::Wake() {
  const uint64_t one = 1;
  // This fails only if the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void AgentLink::DrainWakeups() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof count);
}

void AgentLink::Pause(Duration at_most) {
  const TimePoint end = RealClock().Now() + at_most;
  while (!stopping_.load()) {
    const Duration left = end - RealClock().Now();
    if (left <= Duration(0)) return;
    pollfd wait{wake_fd_, POLLIN, 0};
    poll(&wait, 1, Milliseconds(left) + 1);
    DrainWakeups();
  }
}

// A lack of memory for a message ends the connection, as a network error would, and the link
// reconnects later. Training is not affected.
void AgentLink::Loop() {
  Duration backoff = options_.backoff_min;
  while (!stopping_.load()) {
    int fd = -1;
    const Status connected = Caught([&]() -> Status {
      WEIR_ASSIGN_OR_RETURN(
          fd, ConnectToAgent(options_.address, options_.connect_timeout, wake_fd_, stopping_));
      return OkStatus();
    });
    if (!connected.ok()) {
      (void)Caught([&] { LogUnreachable(connected); });
    } else {
      const TimePoint since = RealClock().Now();
      const Status why = Caught([&] { return Serve(fd); });
      connected_.store(false);
      close(fd);
      if (stopping_.load()) return;
      (void)Caught([&] { LogLost(why); });
      if (RealClock().Now() - since >= kHealthyAfter) backoff = options_.backoff_min;
    }
    Pause(refused_ ? retry_after_ : backoff);
    backoff = std::min(backoff * 2, options_.backoff_max);
    refused_ = false;
  }
}

void AgentLink::Greet() {
  if (told_refusal_.empty()) {
    Log(LogLevel::kInfo, "session",
        StrCat(options_.name, ": agent at ", options_.address, ": connected",
               was_connected_ ? " again" : ""));
  }
  was_connected_ = true;
  // Messages queued for an earlier connection are out of date, and the greeting has their content.
  while (reports_.TryPop().has_value()) {
  }
  while (messages_.TryPop().has_value()) {
  }
  connected_.store(true);  // from here on messages queue behind the greeting
  for (RankMessage& message : handler_.Greeting()) {
    auto* const hello = std::get_if<RankHello>(&message);
    if (hello != nullptr && !options_.job_key.empty()) Prove(hello);
    std::string text = EncodeRankMessage(message);
    if (hello != nullptr && text.size() > kSocketFrameBytesMax) {
      hello->active_plan.reset();  // the version alone tells a controller that has its history
      text = EncodeRankMessage(message);
    }
    AppendFrame(text);
  }
}

Status AgentLink::SendTokenProof() {
  if (options_.token.empty()) return OkStatus();
  if (!challenge_.has_value()) {
    return Unavailable("it sent no challenge, and the token is not sent in plain text");
  }
  WEIR_ASSIGN_OR_RETURN(const std::string proof,
                        ProveToken(options_.token, challenge_->node, challenge_->challenge));
  AppendFrame(DumpJson({{"token_proof", proof}}));
  return OkStatus();
}

void AgentLink::Prove(RankHello* hello) {
  if (!challenge_.has_value()) {
    Log(LogLevel::kWarning, "session",
        StrCat(options_.name, ": the agent at ", options_.address,
               " sent no challenge: this rank attaches without a proof of the job's key"));
    return;
  }
  StatusOr<RankProof> proof = ProveRank(
      options_.job_key, {hello->job, challenge_->node, static_cast<uint32_t>(hello->rank),
                         static_cast<uint32_t>(hello->world), hello->epoch, challenge_->challenge});
  if (proof.ok()) {
    hello->proof = *std::move(proof);
  } else {
    Log(LogLevel::kError, "session",
        StrCat(options_.name, ": no proof of the job's key: ", Message(proof.status())));
  }
}

Status AgentLink::Serve(int fd) {
  SocketFrameReader reader;
  out_.clear();
  out_offset_ = 0;
  challenge_.reset();
  TimePoint flush_end = TimePoint::max();
  const bool waits = !options_.job_key.empty() || !options_.token.empty();
  const TimePoint greet_by = RealClock().Now() + (waits ? options_.challenge_timeout : Duration(0));
  for (;;) {
    if (!connected() && (challenge_.has_value() || RealClock().Now() >= greet_by)) {
      WEIR_RETURN_IF_ERROR(SendTokenProof());
      Greet();
    }
    if (stopping_.load() && flush_end == TimePoint::max()) {
      flush_end = RealClock().Now() + kFlushMax;
    }
    while (connected() && out_offset_ >= out_.size() && Refill()) {
    }
    const bool pending = out_offset_ < out_.size();
    if (stopping_.load() && (!pending || RealClock().Now() >= flush_end)) return OkStatus();
    pollfd waits[2] = {{fd, static_cast<short>(POLLIN | (pending ? POLLOUT : 0)), 0},
                       {wake_fd_, POLLIN, 0}};
    const int wait_ms = connected() ? -1 : Milliseconds(greet_by - RealClock().Now()) + 1;
    poll(waits, 2, stopping_.load() ? Milliseconds(kFlushMax) / 10 : wait_ms);
    if (waits[1].revents != 0) DrainWakeups();
    if (waits[0].revents & (POLLIN | POLLHUP | POLLERR)) {
      WEIR_RETURN_IF_ERROR(ReadCommands(fd, reader));
    }
    if (waits[0].revents & POLLOUT) WEIR_RETURN_IF_ERROR(WriteSome(fd));
  }
}

bool AgentLink::Refill() {
  std::optional<RankMessage> message = messages_.TryPop();
  if (!message.has_value()) message = reports_.TryPop();
  if (!message.has_value()) return false;
  out_.clear();
  out_offset_ = 0;
  AppendFrame(EncodeRankMessage(*message));
  return true;
}

void AgentLink::AppendFrame(const std::string& text) {
  if (text.size() <= kSocketFrameBytesMax) {
    out_ += EncodeSocketFrame(text);
    return;
  }
  Log(LogLevel::kWarning, "session",
      StrCat(options_.name, ": a message of ", text.size(), " bytes to the agent was left out; at ",
             "most ", kSocketFrameBytesMax, " fit"));
}

Status AgentLink::WriteSome(int fd) {
  const ssize_t sent = send(fd, out_.data() + out_offset_, out_.size() - out_offset_, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return OkStatus();
    return SystemError("send");
  }
  out_offset_ += static_cast<size_t>(sent);
  return OkStatus();
}

Status AgentLink::ReadCommands(int fd, SocketFrameReader& reader) {
  char bytes[kReadBytes];
  const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
  if (got == 0) return Unavailable("the agent closed the connection");
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return OkStatus();
    return SystemError("receive");
  }
  reader.Append(std::string_view(bytes, static_cast<size_t>(got)));
  for (;;) {
    StatusOr<std::optional<std::string>> text = reader.Next();
    if (!text.ok()) return Annotate(text.status(), "malformed command");
    if (!text->has_value()) return OkStatus();
    WEIR_RETURN_IF_ERROR(OnText(**text));
  }
}

Status AgentLink::OnText(const std::string& text) {
  StatusOr<RankCommand> command = ParseRankCommand(text);
  if (!command.ok()) return Annotate(command.status(), "malformed command");
  if (auto* challenge = std::get_if<RankChallenge>(&*command)) {
    if (!challenge_.has_value()) challenge_ = std::move(*challenge);
    return OkStatus();
  }
  if (const auto* refusal = std::get_if<RankRefusal>(&*command)) {
    refused_ = true;
    retry_after_ = options_.refusal_pause;
    if (refusal->retry_after_s > 0 && refusal->retry_after_s < ToSeconds(retry_after_)) {
      retry_after_ = std::max(FromSeconds(refusal->retry_after_s), options_.backoff_min);
    }
    return Unavailable(StrCat("the agent refused this rank: ", refusal->reason));
  }
  if (!std::exchange(told_refusal_, "").empty()) {
    Log(LogLevel::kInfo, "session",
        StrCat(options_.name, ": agent at ", options_.address, ": accepts this rank now"));
  }
  handler_.OnCommand(std::move(*command));
  return OkStatus();
}

void AgentLink::LogUnreachable(const Status& cause) {
  if (said_unreachable_ || was_connected_) return;  // a loss was logged by LogLost
  said_unreachable_ = true;
  Log(LogLevel::kWarning, "session",
      StrCat(options_.name, ": no agent at ", options_.address, " (", Message(cause),
             "): ", handler_.Stance()));
}

void AgentLink::LogLost(const Status& cause) {
  // A rank that is refused tries again and again, so the same reason is logged once.
  if (refused_ && std::exchange(told_refusal_, Message(cause)) == Message(cause)) return;
  Log(LogLevel::kWarning, "session",
      StrCat(options_.name, ": lost the agent at ", options_.address, " (", Message(cause),
             "): ", handler_.Stance()));
}

}  // namespace weir
