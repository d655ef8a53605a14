// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/plugin.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "datapath/base/caught.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/json.h"
#include "datapath/base/log.h"
#include "datapath/nccl/plugin/report.h"
#include "datapath/wire/agent_socket.h"

namespace weir::nccl::plugin {
namespace {

constexpr Duration kSendTimeout = std::chrono::milliseconds(100);
constexpr Duration kConnectTimeout = std::chrono::seconds(2);
constexpr double kRefusalPause_s = 30;
constexpr size_t kReasonBytesMax = 4096;

int Milliseconds(Duration d) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

}  // namespace

Plugin::Plugin(PluginOptions options)
    : options_(std::move(options)), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

Plugin::~Plugin() {
  {
    const MutexLock lock(mutex_);
    tuners_.clear();
    profiles_.clear();
  }
  Update();
  if (wake_fd_ >= 0) close(wake_fd_);
}

Tuner* Plugin::AddTuner(uint64_t communicator, uint32_t ranks, uint32_t nodes) {
  TunerOptions options;
  options.communicator = communicator;
  options.ranks = ranks;
  options.nodes = nodes;
  options.shared_directory = options_.shared_directory;
  options.first = options_.first;
  auto tuner = std::make_unique<Tuner>(std::move(options));
  Tuner* added = nullptr;
  {
    const MutexLock lock(mutex_);
    if (tuners_.size() >= kCommunicatorsMax) return nullptr;
    if (wanted_ != nullptr) tuner->Want(wanted_);
    added = tuners_.emplace_back(std::move(tuner)).get();
  }
  Update();
  return added;
}

Profile* Plugin::AddProfile(ProfileOptions options) {
  options.sample_every = options_.sample_every;
  auto profile = std::make_unique<Profile>(std::move(options));
  Profile* added = nullptr;
  {
    const MutexLock lock(mutex_);
    if (profiles_.size() >= kCommunicatorsMax) return nullptr;
    added = profiles_.emplace_back(std::move(profile)).get();
  }
  Update();
  return added;
}

void Plugin::Remove(const Tuner* tuner) {
  {
    const MutexLock lock(mutex_);
    std::erase_if(tuners_, [tuner](const auto& entry) { return entry.get() == tuner; });
  }
  Update();
}

void Plugin::Remove(const Profile* profile) {
  {
    const MutexLock lock(mutex_);
    std::erase_if(profiles_, [profile](const auto& entry) { return entry.get() == profile; });
  }
  Update();
}

bool Plugin::idle() {
  const MutexLock lock(mutex_);
  return tuners_.empty() && profiles_.empty();
}

void Plugin::Update() {
  const MutexLock lifecycle(lifecycle_mutex_);
  const bool wanted = !idle();
  if (wanted && !thread_.joinable()) {
    stopping_.store(false);
    std::thread started;
    (void)Caught([&] { started = StartThread("weir-nccl", [this] { Loop(); }); });
    thread_ = std::move(started);
  } else if (!wanted && thread_.joinable()) {
    stopping_.store(true);
    const uint64_t one = 1;
    (void)!write(wake_fd_, &one, sizeof one);
    thread_.join();
  }
}

void Plugin::Tick() {
  const MutexLock lock(mutex_);
  for (const auto& tuner : tuners_) tuner->Tick();
}

// Ends early when the thread is to stop. Agreements go on.
void Plugin::Pause(Duration at_most) {
  const TimePoint end = RealClock().Now() + at_most;
  for (;;) {
    Tick();
    const Duration left = end - RealClock().Now();
    if (stopping_.load() || left <= Duration(0)) return;
    pollfd wait{wake_fd_, POLLIN, 0};
    if (poll(&wait, 1, Milliseconds(std::min(left, options_.tick)) + 1) > 0) {
      uint64_t count = 0;
      (void)!read(wake_fd_, &count, sizeof count);
    }
  }
}

void Plugin::Loop() {
  Duration backoff = options_.reconnect_min;
  while (!stopping_.load()) {
    if (options_.agent.empty()) {
      Pause(std::chrono::hours(1));
      continue;
    }
    pause_ = backoff;
    backoff = std::min(2 * backoff, options_.reconnect_max);
    const Status status = Caught([&]() -> Status {
      WEIR_ASSIGN_OR_RETURN(const int fd,
                            ConnectToAgent(options_.agent, kConnectTimeout, wake_fd_, stopping_));
      backoff = options_.reconnect_min;
      const Status served = Caught([&] { Serve(fd); });
      close(fd);
      return served;
    });
    if (!status.ok() && !std::exchange(told_unreachable_, true)) {
      Log(LogLevel::kInfo, "nccl",
          StrCat("no agent at ", options_.agent, " (", Message(status),
                 "): NCCL runs with the table it has, and nothing is reported"));
    }
    Pause(pause_);
  }
}

void Plugin::Serve(int fd) {
  SocketFrameReader reader;
  Status status;
  admitted_ = options_.agent_token.empty();
  TimePoint next_report = RealClock().Now();
  while (status.ok() && !stopping_.load()) {
    Tick();
    const TimePoint now = RealClock().Now();
    if (admitted_ && now >= next_report) {
      next_report = now + options_.report_every;
      status = Report(fd);
      if (!status.ok()) break;
    }
    pollfd waits[2] = {{fd, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    poll(waits, 2, Milliseconds(options_.tick) + 1);
    if (waits[1].revents != 0) {
      uint64_t count = 0;
      (void)!read(wake_fd_, &count, sizeof count);
    }
    if (waits[0].revents != 0) status = ReadCommands(fd, reader);
  }
  if (!status.ok()) {
    Log(LogLevel::kInfo, "nccl",
        StrCat("lost the agent at ", options_.agent, ": ", Message(status)));
  }
}

Status Plugin::SendAll(int fd, const std::string& bytes) const {
  const TimePoint end = RealClock().Now() + kSendTimeout;
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return Unavailable(StrCat("send: ", std::strerror(errno)));
    }
    const Duration left = end - RealClock().Now();
    if (left <= Duration(0)) return DeadlineExceeded("send: the agent does not read");
    pollfd wait{fd, POLLOUT, 0};
    poll(&wait, 1, Milliseconds(left) + 1);
  }
  return OkStatus();
}

// The texts are made under the lock, so that no communicator goes away, and sent without it.
Status Plugin::Report(int fd) {
  std::vector<std::string> texts;
  {
    const MutexLock lock(mutex_);
    std::vector<TunerState> states;
    states.reserve(tuners_.size());
    for (const auto& tuner : tuners_) states.push_back(tuner->State());
    texts.push_back(EncodeTuners(states, table_error_, wanted_ != nullptr && wanted_->size() > 0));
    for (const auto& profile : profiles_) texts.push_back(EncodeProfile(*profile));
  }
  for (const std::string& text : texts) {
    if (text.size() > kSocketFrameBytesMax) continue;
    WEIR_RETURN_IF_ERROR(SendAll(fd, EncodeSocketFrame(text)));
  }
  return OkStatus();
}

Status Plugin::ReadCommands(int fd, SocketFrameReader& reader) {
  char bytes[16 << 10];
  const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
  if (n == 0) return Unavailable("it closed the connection");
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return OkStatus();
    return Unavailable(StrCat("receive: ", std::strerror(errno)));
  }
  reader.Append(std::string_view(bytes, static_cast<size_t>(n)));
  for (;;) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<std::string> text, reader.Next());
    if (!text.has_value()) return OkStatus();
    WEIR_RETURN_IF_ERROR(OnCommand(fd, *text));
  }
}

// A bad table changes nothing, and the next report says why. Commands that are meant for ranks are
// ignored.
Status Plugin::OnCommand(int fd, const std::string& text) {
  WEIR_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(text, kSocketFrameBytesMax));
  WEIR_ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Make(document, "command"));
  if (const nlohmann::json* value = reader.Find("refusal")) {
    WEIR_ASSIGN_OR_RETURN(ObjectReader refusal, ObjectReader::Make(*value, "refusal"));
    std::string reason;
    double retry_after_s = 0;
    WEIR_RETURN_IF_ERROR(refusal.String("reason", kReasonBytesMax, &reason));
    WEIR_RETURN_IF_ERROR(refusal.Double("retry_after_s", &retry_after_s));
    const bool given = retry_after_s > 0 && retry_after_s < kRefusalPause_s;
    pause_ = std::max(FromSeconds(given ? retry_after_s : kRefusalPause_s), options_.reconnect_min);
    return Unavailable(StrCat("refused: ", reason));
  }
  if (const nlohmann::json* value = reader.Find("challenge"); value != nullptr && !admitted_) {
    WEIR_ASSIGN_OR_RETURN(ObjectReader challenge, ObjectReader::Make(*value, "challenge"));
    std::string node, digits;
    WEIR_RETURN_IF_ERROR(challenge.String("node", kReasonBytesMax, &node));
    WEIR_RETURN_IF_ERROR(challenge.String("challenge", kChallengeDigits, &digits));
    WEIR_ASSIGN_OR_RETURN(const std::string proof, ProveToken(options_.agent_token, node, digits));
    admitted_ = true;
    return SendAll(fd, EncodeSocketFrame(DumpJson({{"token_proof", proof}})));
  }
  const nlohmann::json* value = reader.Find("nccl_table");
  if (value == nullptr) return OkStatus();
  StatusOr<Table> table = Table::Parse(DumpJson(*value));
  table_error_ = table.ok() ? "" : Message(table.status());
  if (!table.ok()) {
    Log(LogLevel::kWarning, "nccl", StrCat("the agent's table is refused: ", table_error_));
    return OkStatus();
  }
  auto wanted = std::make_shared<const Table>(*std::move(table));
  const MutexLock lock(mutex_);
  wanted_ = std::move(wanted);
  for (const auto& tuner : tuners_) tuner->Want(wanted_);
  return OkStatus();
}

}  // namespace weir::nccl::plugin
