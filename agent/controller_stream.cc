// SPDX-License-Identifier: Apache-2.0
#include "agent/controller_stream.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "agent/measure/socket.h"
#include "datapath/base/log.h"
#include "datapath/base/random.h"
#include "deploy/program/token_file.h"
#include "weir/v1/agent.grpc.pb.h"

namespace weir::agent {
namespace {

constexpr int kReceiveBytesMax = 8 << 20;
constexpr const char* kRetryAfter = "weir-retry-after-ms";  // trailing metadata, see agent.proto
constexpr int64_t kRetryAfterMaxMs = 120'000;
constexpr Duration kConnectSlice = std::chrono::milliseconds(100);  // a stop waits for two at most

int Milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

// How long a busy controller asks to wait; zero: it does not.
Duration RetryAfter(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(kRetryAfter);
  if (found == trailers.end()) return Duration::zero();
  int64_t milliseconds = 0;
  const char* const end = found->second.data() + found->second.size();
  const auto [parsed, error] = std::from_chars(found->second.data(), end, milliseconds);
  if (error != std::errc() || parsed != end) return Duration::zero();
  return std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 0, kRetryAfterMaxMs));
}

}  // namespace

struct ControllerStream::Call {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::AgentService::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::ControllerMessage>> stream;
};

ControllerStream::ControllerStream(Options options, Handler& handler, const Clock& clock)
    : options_(std::move(options)),
      handler_(handler),
      clock_(clock),
      queue_(options_.queue_items_max, options_.queue_bytes_max),
      controllers_(SplitControllers(options_.controller)),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

ControllerStream::~ControllerStream() {
  thread_.request_stop();
  {
    MutexLock lock(mutex_);
    if (call_ != nullptr) call_->context.TryCancel();
  }
  thread_.join();
}

void ControllerStream::Send(uint64_t generation, v1::AgentMessage message, Tier tier) {
  const size_t bytes = message.ByteSizeLong();
  MutexLock lock(mutex_);
  if (generation == 0 || generation != generation_ || overflowed_) return;
  if (queue_.Push(std::move(message), tier, bytes) ==
      TieredQueue<v1::AgentMessage>::Outcome::kFull) {
    overflowed_ = true;
    if (call_ != nullptr) call_->context.TryCancel();
    return;
  }
  ready_.NotifyOne();
}

uint64_t ControllerStream::dropped() const {
  MutexLock lock(mutex_);
  return queue_.dropped();
}

void ControllerStream::Run(const std::stop_token& stop) {
  NameThread("weir-control");
  Random random(options_.seed);
  Duration back_off = options_.back_off_min;
  std::map<std::string, std::string> last_failures;
  const bool several = controllers_.size() > 1;
  TimePoint lost_at = clock_.Now();
  size_t tried = 0;  // since the last pause
  while (!stop.stop_requested()) {
    led_here_ = !leader_.empty();
    target_ = led_here_ ? std::exchange(leader_, "") : controllers_[next_++ % controllers_.size()];
    const Ended ended = RunOnce(stop);
    if (stop.stop_requested()) return;
    if (ended.pause > Duration::zero()) {
      // It has said when, and gives every agent a time of its own.
      leader_ = target_;
      Pause(stop, ended.pause);
      continue;
    }
    if (ended.was_connected) {
      back_off = options_.back_off_min;
      lost_at = clock_.Now();
      last_failures.clear();
    } else if (std::string& last = last_failures[target_]; Message(ended.why) != last) {
      last = Message(ended.why);  // logged once, not at every attempt
      Log(LogLevel::kWarning, "agent", StrCat("controller ", target_, ": ", last));
    }
    // A standby has named the leader, or another controller may be it.
    if (!leader_.empty() || (several && ++tried < controllers_.size())) continue;
    tried = 0;
    if (several && clock_.Now() - lost_at < options_.standby_search) {
      back_off = std::min(back_off, options_.standby_back_off_max);
    }
    Pause(stop, Duration(static_cast<int64_t>(static_cast<double>(back_off.count()) *
                                              (0.5 + random.Uniform()))));
    back_off = std::min(back_off * 2, options_.back_off_max);
  }
}

void ControllerStream::Pause(const std::stop_token& stop, Duration pause) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop, pause, [] { return false; });
}

// A channel tells why it cannot connect, such as that a certificate is not accepted, only to a call
// that does not wait for it.
std::string ControllerStream::WhyNotConnected(const Call& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kConnectSlice);
  const grpc::Status failed = v1::AgentService::NewStub(call.channel)->Connect(&context)->Finish();
  return failed.error_code() == grpc::StatusCode::UNAVAILABLE ? failed.error_message()
                                                              : "nothing has answered";
}

StatusOr<std::unique_ptr<ControllerStream::Call>> ControllerStream::Open(
    const std::stop_token& stop) {
  WEIR_RETURN_IF_ERROR(options_.credentials.Permit(target_));  // a standby may have named it
  WEIR_ASSIGN_OR_RETURN(const auto credentials, options_.credentials());
  grpc::ChannelArguments arguments;
  const bool several = controllers_.size() > 1;
  arguments.SetInt(
      GRPC_ARG_KEEPALIVE_TIME_MS,
      Milliseconds(several ? options_.standby_keepalive_interval : options_.keepalive_interval));
  arguments.SetInt(
      GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
      Milliseconds(several ? options_.standby_keepalive_timeout : options_.keepalive_timeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Every attempt makes a new connection, so that only our own back-off applies.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
  auto call = std::make_unique<Call>();
  call->channel = grpc::CreateCustomChannel(target_, credentials, arguments);
  const Duration patience = several ? options_.standby_connect_timeout : options_.connect_timeout;
  const TimePoint deadline = clock_.Now() + patience;
  while (!call->channel->WaitForConnected(std::chrono::system_clock::now() + kConnectSlice)) {
    if (stop.stop_requested()) return Aborted("stopping");
    if (clock_.Now() >= deadline) {
      return DeadlineExceeded(StrCat("no connection within ", ToSeconds(patience), " s (",
                                     WhyNotConnected(*call), "); trying on"));
    }
  }
  if (!options_.token_file.empty()) {
    WEIR_ASSIGN_OR_RETURN(const std::string token, ReadTokenFile(options_.token_file));
    call->context.AddMetadata("authorization", "Bearer " + token);
  }
  call->stub = v1::AgentService::NewStub(call->channel);
  call->stream = call->stub->Connect(&call->context);
  return call;
}

ControllerStream::Ended ControllerStream::RunOnce(const std::stop_token& stop) {
  const StatusOr<std::unique_ptr<Call>> opened = Open(stop);
  if (!opened.ok()) return {opened.status()};
  const std::unique_ptr<Call>& call = *opened;
  Ended ended;
  const uint64_t generation = ++connections_;
  {
    MutexLock lock(mutex_);
    call_ = call.get();
    if (stop.stop_requested()) call->context.TryCancel();
    generation_ = generation;
    overflowed_ = false;
    writing_ = true;
  }
  handler_.OnControllerConnected(generation);
  std::thread writer([&] { WriteLoop(*call); });
  v1::ControllerMessage message;
  Status stale;
  while (call->stream->Read(&message)) {
    if (!ended.was_connected) stale = CheckTerm(*call);
    if (!stale.ok()) break;
    ended.was_connected = true;  // only a controller says anything
    handler_.OnControllerMessage(generation, std::move(message));
    message.Clear();
  }
  std::vector<v1::AgentMessage> unsent;
  bool overflowed = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    generation_ = 0;
    overflowed = overflowed_;
    ready_.NotifyAll();
    // The call has ended once reading has ended, and writes fail; a cancellation could only replace
    // what the controller said at the end.
    if (!stale.ok()) call->context.TryCancel();
  }
  writer.join();
  {
    MutexLock lock(mutex_);
    call_ = nullptr;
    unsent = queue_.TakeControl();
  }
  const grpc::Status finished = call->stream->Finish();
  ChooseNext(*call);
  const std::string reason =
      !stale.ok() ? Message(stale)
      : overflowed
          ? "it did not read fast enough; starting over with the whole state"
          : StrCat("stream ended: ", finished.error_message().empty() ? "closed by the controller"
                                                                      : finished.error_message());
  if (!ended.was_connected) ended.pause = RetryAfter(call->context);
  handler_.OnControllerLost(generation, reason, std::move(unsent));
  ended.why = Unavailable(reason);
  return ended;
}

// The term of a leader, among several controllers: one that led before may not know yet that it
// does not lead any more.
Status ControllerStream::CheckTerm(const Call& call) {
  const auto& metadata = call.context.GetServerInitialMetadata();
  const auto found = metadata.find("weir-term");
  if (found == metadata.end()) return OkStatus();
  const std::string text(found->second.data(), found->second.size());
  const uint64_t term = std::strtoull(text.c_str(), nullptr, 10);
  if (term < term_) {
    return FailedPrecondition(
        StrCat("it leads in term ", term, ", and another controller has led in term ", term_));
  }
  if (term > term_) Log(LogLevel::kInfo, "agent", StrCat(target_, " leads in term ", term));
  term_ = term;
  return OkStatus();
}

void ControllerStream::ChooseNext(const Call& call) {
  if (led_here_)
    return;  // one standby is believed at a time, so that two cannot send us in circles
  const auto& metadata = call.context.GetServerTrailingMetadata();
  const auto found = metadata.find("weir-leader");
  if (found == metadata.end()) return;
  leader_ = std::string(found->second.data(), found->second.size());
  if (leader_ == target_) leader_.clear();
}

void ControllerStream::WriteLoop(Call& call) {
  NameThread("weir-ctl-write");
  while (true) {
    std::optional<v1::AgentMessage> message;
    {
      MutexLock lock(mutex_);
      while (writing_ && queue_.empty()) ready_.Wait(mutex_);
      if (!writing_) return;
      message = queue_.Pop();
    }
    // Waits for the controller's flow control; cancelling ends the wait.
    // A write fails when the call has ended; the reader then hears why.
    if (!call.stream->Write(*message)) return;
  }
}

}  // namespace weir::agent
