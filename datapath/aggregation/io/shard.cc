// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/io/shard.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace weir::aggregation {
namespace {

constexpr Duration kCallMax = std::chrono::seconds(5);
constexpr Duration kIdleMax = std::chrono::seconds(1);
constexpr Duration kTick = std::chrono::milliseconds(1);  // the longest delay of a cut-off

Duration ThreadCpuTime() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

}  // namespace

StatusOr<std::unique_ptr<Shard>> Shard::Start(const ShardOptions& options) {
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<UdpPort> port, UdpPort::Bind(options.port));
  mesh::UniqueFd wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return Unavailable("cannot create an eventfd");
  return std::unique_ptr<Shard>(new Shard(options, std::move(port), std::move(wake)));
}

Shard::Shard(const ShardOptions& options, std::unique_ptr<UdpPort> port, mesh::UniqueFd wake)
    : options_(options),
      port_(std::move(port)),
      wake_(std::move(wake)),
      aggregator_(options.limits),
      random_(MixSeed(options.seed, static_cast<uint64_t>(options.number))) {
  kept_.reserve(kWorkersMax);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), StrCat("weir-shard-", options.number).c_str());
}

Shard::~Shard() {
  stopping_ = true;
  Wake();
  thread_.join();
}

void Shard::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);  // a full counter means that it is awake
}

Status Shard::Call(const std::function<Status(Aggregator*)>& work) {
  Command command{.work = &work};
  const TimePoint deadline = RealClock().Now() + kCallMax;
  MutexLock lock(mutex_);
  commands_.push_back(&command);
  called_ = true;
  Wake();
  // Work that has begun is about to end and uses the caller's stack, so it must be waited for.
  while (!command.done) {
    const bool late = !answered_.WaitUntil(mutex_, deadline);
    if (command.done || command.begun || (!late && !stopping_)) continue;
    std::erase(commands_, &command);
    if (stopping_) return Unavailable(StrCat("shard ", options_.number, " ends"));
    return DeadlineExceeded(
        StrCat("shard ", options_.number, " has not answered for ", ToSeconds(kCallMax), " s"));
  }
  return command.result;
}

void Shard::RunCommands() {
  while (true) {
    Command* command = nullptr;
    {
      MutexLock lock(mutex_);
      if (commands_.empty()) {
        called_ = false;
        return;
      }
      command = commands_.front();
      commands_.erase(commands_.begin());
      command->begun = true;
    }
    Status result = (*command->work)(&aggregator_);
    MutexLock lock(mutex_);
    command->result = std::move(result);
    command->done = true;
    answered_.NotifyAll();
  }
}

StatusOr<ShardCounters> Shard::Counters() {
  ShardCounters counters;
  WEIR_RETURN_IF_ERROR(Call([&](Aggregator* aggregator) {
    counters = {.packets = aggregator->counters(),
                .port = port_->counters(),
                .dropped = dropped_,
                .cpu_time = ThreadCpuTime()};
    return OkStatus();
  }));
  return counters;
}

void Shard::Loop() {
  TimePoint now = RealClock().Now();
  TimePoint tick = now;
  bool timed = false;
  const UdpPort::Sink sink = [&](SourceAddress from, std::span<const std::byte> datagram) {
    if (!Dropped()) aggregator_.OnPacket(from, datagram, now, this);
  };
  while (!stopping_) {
    if (called_) {
      uint64_t calls = 0;
      (void)!read(wake_.get(), &calls, sizeof calls);
      RunCommands();
      timed = aggregator_.NeedsTimer();
    }
    now = RealClock().Now();
    const bool some = port_->Receive(sink);
    if (timed && now >= tick) {
      tick = now + kTick;
      aggregator_.OnTimer(now, this);
    }
    port_->Flush();
    if (!some) port_->Wait(now, timed ? tick : now + kIdleMax, wake_.get());
  }
  MutexLock lock(mutex_);
  answered_.NotifyAll();
}

bool Shard::Dropped() {
  if (options_.drop <= 0 || random_.Uniform() >= options_.drop) return false;
  ++dropped_;
  return true;
}

void Shard::Send(SourceAddress to, std::span<const std::byte> packet) {
  if (!Dropped()) port_->Send(to, packet);
}

void Shard::SendToAll(std::span<const SourceAddress> to, std::span<const std::byte> packet) {
  if (options_.drop <= 0) return port_->Send(to, packet);
  kept_.clear();
  for (const SourceAddress address : to) {
    if (!Dropped()) kept_.push_back(address);
  }
  if (!kept_.empty()) port_->Send(kept_, packet);
}

}  // namespace weir::aggregation
