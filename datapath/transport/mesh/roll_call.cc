// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/roll_call.h"

#include <algorithm>

#include "datapath/base/log.h"

namespace weir::mesh {
namespace {
using std::chrono::milliseconds;
constexpr Duration kBackOffMin = milliseconds(10);
constexpr Duration kBackOffMax = milliseconds(500);
constexpr Duration kPollMax = milliseconds(100);
}  // namespace

RollCall::RollCall(const TransportOptions& options)
    : options_(options), random_(MixSeed(options.job, static_cast<uint64_t>(options.rank))) {}

Status RollCall::Begin(const std::vector<TransportAddress>& addresses) {
  addresses_ = addresses;
  entries_.clear();
  entries_.resize(addresses.size());
  for (int r = 0; r < options_.rank; ++r) {
    StatusOr<SocketAddress> address = ResolveAddress(addresses[r]);
    if (!address.ok()) return Annotate(address.status(), StrCat("rank ", r));
    entries_[r].address = *address;
  }
  return OkStatus();
}

std::string RollCall::NameOf(int rank) const {
  return StrCat("rank ", rank, " (", addresses_[rank], ")");
}

bool RollCall::Complete() const {
  for (int r = 0; r < options_.world; ++r) {
    if (r != options_.rank && entries_[r].state != State::kEstablished) return false;
  }
  return true;
}

Status RollCall::Missing() const {
  std::string missing;
  for (int r = 0; r < options_.world; ++r) {
    if (r == options_.rank || entries_[r].state == State::kEstablished) continue;
    missing += StrCat(missing.empty() ? "" : "; ", NameOf(r), " ", entries_[r].last_failure);
  }
  if (refused_ > 0) {
    missing += StrCat("; refused ", refused_, " connections, the last one: ", last_refusal_);
  }
  return DeadlineExceeded(StrCat("rank ", options_.rank, " is missing ", missing));
}

bool RollCall::IsDue(int rank, TimePoint now) const {
  return entries_[rank].state == State::kIdle && now >= entries_[rank].next_dial;
}

TimePoint RollCall::WakeAt(TimePoint now, TimePoint deadline) const {
  TimePoint wake_at = std::min(deadline, now + kPollMax);
  for (int r = 0; r < options_.rank; ++r) {
    if (entries_[r].state == State::kIdle) wake_at = std::min(wake_at, entries_[r].next_dial);
  }
  return wake_at;
}

void RollCall::Retry(int rank, std::string why, TimePoint now) {
  Entry& entry = entries_[rank];
  entry.state = State::kIdle;
  entry.last_failure = std::move(why);
  entry.back_off = std::clamp(entry.back_off * 2, kBackOffMin, kBackOffMax);
  // The delay is random, so that the ranks of a job do not dial at the same moment.
  entry.next_dial = now + FromSeconds(ToSeconds(entry.back_off) * (0.5 + 0.5 * random_.Uniform()));
}

void RollCall::NoteRefusal(std::string whom_and_why) {
  ++refused_;
  last_refusal_ = std::move(whom_and_why);
  Log(LogLevel::kWarning, "transport", StrCat("rank ", options_.rank, " refused ", last_refusal_));
}

// ---- hellos

Introduction RollCall::Own(uint32_t called) const {
  return {options_.job, static_cast<uint32_t>(options_.rank), static_cast<uint32_t>(options_.world),
          called};
}

std::string RollCall::Judge(const Introduction& caller) const {
  const auto differs = [](std::string_view what, auto expected, auto found) {
    return StrCat(what, ": expected ", expected, ", found ", found);
  };
  const Introduction own = Own(kUnknownPeer);
  if (caller.job != own.job) return differs("job", own.job, caller.job);
  if (caller.world != own.world) return differs("world", own.world, caller.world);
  if (caller.expected_peer != own.rank) {
    return differs("called rank", own.rank, caller.expected_peer);
  }
  if (caller.rank < caller.world && caller.rank > own.rank) return "";
  return StrCat("rank: expected ", own.rank + 1, "..", own.world - 1, " to dial rank ", own.rank,
                ", found ", caller.rank);
}

Status RollCall::CheckAnswer(int rank, const Introduction& answer) const {
  if (answer.job == options_.job && answer.rank == static_cast<uint32_t>(rank) &&
      answer.world == static_cast<uint32_t>(options_.world)) {
    return OkStatus();
  }
  return FailedPrecondition(StrCat(NameOf(rank), " answered as rank ", answer.rank, " of ",
                                   answer.world, "; expected rank ", rank, " of ", options_.world));
}

}  // namespace weir::mesh
