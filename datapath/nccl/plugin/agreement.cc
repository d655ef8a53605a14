// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/agreement.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "datapath/base/json.h"

namespace weir::nccl::plugin {
namespace {

// The word: two bits of state, 16 bits that count proposals, and 46 bits of the call. The count
// makes a proposal differ from an earlier one for the same call, so that a rank that was stopped in
// the middle of the earlier one cannot settle it.
enum State : uint64_t { kNone = 0, kProposed = 1, kCommitted = 2, kAborted = 3 };
constexpr int kCallBits = 46;
constexpr uint64_t kCallMask = (uint64_t{1} << kCallBits) - 1;

constexpr uint64_t kMarginMin = 64;
constexpr uint64_t kMarginMax = 1 << 20;

State StateOf(uint64_t word) { return static_cast<State>(word >> 62); }
uint64_t CallOf(uint64_t word) { return word & kCallMask; }
uint64_t WithState(uint64_t word, State state) {
  return (word & ~(uint64_t{3} << 62)) | (static_cast<uint64_t>(state) << 62);
}
uint64_t NextProposal(uint64_t word, uint64_t call) {
  const uint64_t count = ((word >> kCallBits) + 1) & 0xffff;
  return (uint64_t{kProposed} << 62) | (count << kCallBits) | (call & kCallMask);
}

// Aborts `word` unless somebody has settled it, and returns the word that is there then.
uint64_t Abort(WEIR_NCCL_ATOMIC<uint64_t>& word, uint64_t proposed) {
  const uint64_t aborted = WithState(proposed, kAborted);
  return word.compare_exchange_strong(proposed, aborted) ? aborted : proposed;
}

}  // namespace

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share these");

StatusOr<std::unique_ptr<Participant>> Participant::Join(Register& shared, uint32_t ranks,
                                                         uint64_t first_table) {
  uint32_t found = 0;
  if (!shared.ranks.compare_exchange_strong(found, ranks) && found != ranks) {
    return FailedPrecondition(StrCat("expected the memory of ", ranks, " ranks, found ", found));
  }
  const uint32_t index = shared.joined.fetch_add(1);
  if (index >= ranks) {
    shared.joined.fetch_sub(1);
    return FailedPrecondition(StrCat("all ", ranks, " ranks have joined before"));
  }
  return std::unique_ptr<Participant>(new Participant(shared, ranks, index, first_table));
}

Participant::Participant(Register& shared, uint32_t ranks, uint32_t index, uint64_t first_table)
    : shared_(shared),
      ranks_(ranks),
      slot_(shared.slots()[index]),
      active_(first_table),
      margin_(kMarginMin) {
  slot_.active.store(first_table);
}

Participant::~Participant() { slot_.left.store(1); }

void Participant::Announce(uint64_t what) {
  hash_ = (hash_ ^ what) * 0x9e3779b97f4a7c15u;
  hash_ ^= hash_ >> 29;
  ++calls_;
  if (calls_ % Register::kHistoryEvery == 0) {
    const uint64_t checkpoint = calls_ / Register::kHistoryEvery - 1;
    slot_.history[checkpoint % Register::kHistory].store(hash_);
  }
  slot_.calls.store(calls_);
}

uint64_t Participant::Decide() {
  const uint64_t call = calls_ - 1;
  uint64_t word = shared_.word.load();
  if (StateOf(word) == kProposed && call >= CallOf(word)) word = Abort(shared_.word, word);
  Note(word);
  if (switch_at_.has_value() && call >= *switch_at_) {
    switch_at_.reset();
    active_ = accepted_;
    slot_.active.store(active_);
    settled_ = word;  // still the committed one, since the next proposal waits for this
    slot_.settled.store(word);
  }
  return active_;
}

// A committed word is settled when its table is in use, an aborted one at once.
void Participant::Note(uint64_t word) {
  if (word == settled_) return;
  if (StateOf(word) == kCommitted) switch_at_ = CallOf(word);
  if (StateOf(word) == kAborted) {
    settled_ = word;
    slot_.settled.store(word);
  }
}

// First the former table is withdrawn, so that whatever is committed from then on can only concern
// the new one: had the new one been published at once, a commit that is found afterwards could
// concern either.
bool Participant::Accept(uint64_t table) {
  Note(shared_.word.load());
  if (switch_at_.has_value()) return false;
  if (table == accepted_) return true;
  slot_.accepted.store(0);
  uint64_t word = shared_.word.load();
  if (StateOf(word) == kProposed) word = Abort(shared_.word, word);
  Note(word);
  if (switch_at_.has_value()) {  // committed before the withdrawal was visible
    slot_.accepted.store(accepted_);
    return false;
  }
  accepted_ = table;
  slot_.accepted.store(table);
  return true;
}

std::optional<uint64_t> Participant::CommonTable() const {
  const uint64_t table = accepted_;
  if (table == 0) return std::nullopt;
  for (uint32_t i = 0; i < ranks_; ++i) {
    const Register::Slot& slot = shared_.slots()[i];
    if (slot.accepted.load() != table || slot.left.load() != 0) return std::nullopt;
  }
  return table;
}

bool Participant::SameHistory() {
  const auto count = [this](uint32_t i) {
    return shared_.slots()[i].calls.load() / Register::kHistoryEvery;
  };
  uint64_t common = UINT64_MAX;
  for (uint32_t i = 0; i < ranks_; ++i) common = std::min(common, count(i));
  if (common == 0) return false;  // nothing to compare yet
  const size_t place = (common - 1) % Register::kHistory;
  const uint64_t own = slot_.history[place].load();
  for (uint32_t i = 0; i < ranks_; ++i) {
    const uint64_t other = shared_.slots()[i].history[place].load();
    // The place may hold a later checkpoint by now; then a later tick compares.
    if (count(i) - common + 1 >= Register::kHistory) return false;
    if (other != own) {
      shared_.calls_differ.store(1);
      return false;
    }
  }
  return true;
}

std::optional<uint64_t> Participant::Propose() {
  uint64_t word = shared_.word.load();
  Note(word);
  if (!complete() || calls_differ() || StateOf(word) == kProposed) return std::nullopt;
  const std::optional<uint64_t> table = CommonTable();
  if (!table.has_value()) return std::nullopt;
  bool in_use = true;
  uint64_t call = 0;
  for (uint32_t i = 0; i < ranks_; ++i) {
    const Register::Slot& slot = shared_.slots()[i];
    if (slot.settled.load() != word) return std::nullopt;
    in_use = in_use && slot.active.load() == *table;
    call = std::max(call, slot.calls.load());
  }
  if (in_use || !SameHistory()) return std::nullopt;
  const uint64_t proposed = NextProposal(word, call + margin_);
  if (!shared_.word.compare_exchange_strong(word, proposed)) return std::nullopt;
  return proposed;
}

void Participant::Settle(uint64_t proposed) {
  bool good = CommonTable().has_value();
  for (uint32_t i = 0; i < ranks_; ++i) {
    good = good && shared_.slots()[i].calls.load() <= CallOf(proposed);
  }
  uint64_t word = proposed;
  const bool settled =
      shared_.word.compare_exchange_strong(word, WithState(proposed, good ? kCommitted : kAborted));
  margin_ = settled && good ? kMarginMin : std::min(2 * margin_, kMarginMax);
  Note(shared_.word.load());
}

StatusOr<std::unique_ptr<SharedRegister>> SharedRegister::Open(const std::string& directory,
                                                               uint64_t communicator,
                                                               uint32_t ranks) {
  if (ranks == 0 || ranks > kAgreementRanksMax) {
    return FailedPrecondition(
        StrCat("expected 1 to ", kAgreementRanksMax, " ranks that share memory, found ", ranks));
  }
  const size_t bytes = Register::Bytes(ranks);
  std::string path = StrCat(directory, "/weir-nccl-", geteuid(), "-", Hex64(communicator));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Unavailable(StrCat("open ", path, ": ", std::strerror(errno)));
  struct stat info {};
  Status status;
  void* mapped = MAP_FAILED;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & 0077) != 0) {
    status = FailedPrecondition(StrCat(path, " is not a private file of this user"));
  } else if (info.st_size != 0 && static_cast<size_t>(info.st_size) != bytes) {
    status = FailedPrecondition(
        StrCat("expected ", bytes, " bytes in ", path, ", found ", info.st_size));
  } else if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    status = Unavailable(StrCat("resize ", path, ": ", std::strerror(errno)));
  } else {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
      status = Unavailable(StrCat("map ", path, ": ", std::strerror(errno)));
    }
  }
  close(fd);
  if (!status.ok()) return status;
  return std::unique_ptr<SharedRegister>(
      new SharedRegister(std::move(path), static_cast<Register*>(mapped), bytes));
}

SharedRegister::~SharedRegister() {
  Unlink();
  munmap(register_, bytes_);
}

void SharedRegister::Unlink() {
  if (path_.empty()) return;
  unlink(path_.c_str());
  path_.clear();
}

}  // namespace weir::nccl::plugin
