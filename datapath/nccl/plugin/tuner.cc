// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/tuner.h"

#include <utility>

namespace weir::nccl::plugin {

Tuner::Tuner(TunerOptions options) : options_(std::move(options)), active_(options_.first) {
  if (options_.communicator == 0) {
    obstacle_ = "this version of NCCL does not tell the communicator's id";
    return;
  }
  if (options_.shared_directory.empty()) {
    obstacle_ = "switching is off";
    return;
  }
  StatusOr<std::unique_ptr<SharedRegister>> shared =
      SharedRegister::Open(options_.shared_directory, options_.communicator, options_.ranks);
  if (!shared.ok()) {
    obstacle_ = Message(shared.status());
    return;
  }
  StatusOr<std::unique_ptr<Participant>> participant =
      Participant::Join((*shared)->get(), options_.ranks, active_->identity());
  if (!participant.ok()) {
    obstacle_ = Message(participant.status());
    return;
  }
  shared_ = std::move(*shared);
  participant_ = std::move(*participant);
  if (participant_->complete()) shared_->Unlink();  // a process may exit before its first tick
}

void Tuner::Choose(int function, size_t bytes, int pipelined_operations, float* cost_table,
                   int algorithms, int protocols, int* channels) {
  const MutexLock lock(mutex_);
  ++calls_;
  if (participant_ != nullptr) {
    const uint64_t what = (static_cast<uint64_t>(function) << 56) ^
                          (static_cast<uint64_t>(pipelined_operations) << 48) ^ bytes;
    const uint64_t identity = participant_->OnCall(what);
    if (identity != active_->identity()) active_ = accepted_;
  }
  const std::optional<Choice> choice = active_->Find(function, bytes, options_.ranks);
  if (!choice.has_value()) return;
  float* const cell = cost_table + choice->algorithm * protocols + choice->protocol;
  if (choice->algorithm >= algorithms || choice->protocol >= protocols || !(*cell >= 0)) {
    ++refused_;
    return;
  }
  *cell = 0;
  if (choice->channels > 0) *channels = choice->channels;
  ++steered_;
}

// NCCL asks for chunks of the calls of a group after all its calls were chosen. The table in use
// changes only in Choose, so it is the same one here on every rank.
void Tuner::ChooseChunk(int function, size_t bytes, int algorithm, int protocol,
                        size_t* chunk_bytes) {
  const MutexLock lock(mutex_);
  const std::optional<Choice> choice = active_->Find(function, bytes, options_.ranks);
  if (choice.has_value() && choice->chunk_bytes > 0 && choice->algorithm == algorithm &&
      choice->protocol == protocol) {
    *chunk_bytes = choice->chunk_bytes;
  }
}

void Tuner::Want(std::shared_ptr<const Table> table) {
  const MutexLock lock(mutex_);
  wanted_ = std::move(table);
}

void Tuner::Tick() {
  const MutexLock lock(mutex_);
  if (participant_ == nullptr) return;
  if (participant_->complete() || RealClock().Now() - made_ >= options_.join_timeout) {
    shared_->Unlink();
  }
  if (wanted_ != nullptr && participant_->Accept(wanted_->identity())) {
    accepted_ = std::exchange(wanted_, nullptr);
  }
  participant_->Tick();
}

TunerState Tuner::State() const {
  const MutexLock lock(mutex_);
  TunerState state{
      options_.communicator, options_.ranks, options_.nodes, calls_, steered_, refused_,
      active_->identity(),   obstacle_};
  if (participant_ == nullptr) return state;
  if (participant_->calls_differ()) {
    state.obstacle = "the ranks make different calls";
  } else if (!participant_->complete()) {
    state.obstacle = "not all ranks share memory";
  }
  return state;
}

}  // namespace weir::nccl::plugin
