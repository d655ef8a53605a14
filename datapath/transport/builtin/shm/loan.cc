#include "datapath/transport/builtin/shm/loan.h"

#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weir::shm {
namespace {

// What another process does not have by chance where this one has it.
uint64_t NewProbe() {
  uint64_t probe = 0;
  (void)!getrandom(&probe, sizeof probe, GRND_NONBLOCK);
  return probe;
}

// The kernel reads ordinary memory for others, not what belongs to a device or is secret. It
// decides by mapping, so both ends speak for what is between them.
bool IsLendable(pid_t self, std::span<const std::byte> bytes) {
  std::byte ends[2];
  const iovec here = {ends, sizeof ends};
  const auto at = [](const std::byte& byte) { return iovec{const_cast<std::byte*>(&byte), 1}; };
  const iovec there[] = {at(bytes.front()), at(bytes.back())};
  return process_vm_readv(self, &here, 1, there, 2, 0) == ssize_t{sizeof ends};
}

}  // namespace

// ---- lending

Lender::Lender(LoanControl& control, size_t bytes_min)
    : control_(control), bytes_min_(bytes_min), self_(getpid()), probe_(NewProbe()) {
  control_.probe.store(probe_, std::memory_order_relaxed);
  control_.probe_address.store(reinterpret_cast<uint64_t>(&probe_), std::memory_order_release);
}

bool Lender::Lend(uint64_t at, uint64_t begins, std::span<const std::byte> bytes) {
  if (bytes.size() < bytes_min_ || control_.borrows.load(std::memory_order_relaxed) == 0) {
    return false;
  }
  OpenFrom(0);
  if (broken_ || lent_ - repaid_ >= kLoansMax || !IsLendable(self_, bytes)) return false;
  LoanControl::Loan& loan = control_.loans[lent_ % kLoansMax];
  loan.at.store(at, std::memory_order_relaxed);
  loan.address.store(reinterpret_cast<uint64_t>(bytes.data()), std::memory_order_relaxed);
  loan.bytes.store(bytes.size(), std::memory_order_relaxed);
  begins_[lent_ % kLoansMax] = begins;
  control_.lent.store(++lent_, std::memory_order_seq_cst);
  return true;
}

uint64_t Lender::OpenFrom(uint64_t end) {
  const uint64_t repaid = control_.repaid.load(std::memory_order_acquire);
  broken_ = broken_ || lent_ - repaid > lent_ - repaid_;
  if (!broken_) repaid_ = repaid;
  return repaid_ == lent_ ? end : begins_[repaid_ % kLoansMax];
}

bool Lender::PrepareSleep() {
  control_.lender_sleeps.store(1, std::memory_order_seq_cst);
  return control_.repaid.load(std::memory_order_seq_cst) == repaid_;
}

// Before anything that the caller does to the memory; the reader looks after it has copied.
void Lender::Revoke() {
  OpenFrom(0);
  if (repaid_ == lent_) return;
  control_.revoked.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// ---- borrowing

void Borrower::Introduce() {
  const uint64_t address = control_.probe_address.load(std::memory_order_acquire);
  if (address == 0) return;
  introduced_ = true;
  uint64_t found = 0;
  const auto out = std::as_writable_bytes(std::span(&found, 1));
  if (memory_ == nullptr || memory_->Read(address, out) != 0) return;
  if (found != control_.probe.load(std::memory_order_relaxed)) return;
  control_.borrows.store(1, std::memory_order_relaxed);
}

void Borrower::Look() {
  if (!introduced_) Introduce();
  const uint64_t lent = control_.lent.load(std::memory_order_acquire);
  if (lent == lent_) return;
  const bool had = open();
  broken_ = broken_ || memory_ == nullptr || lent - repaid_ > kLoansMax;
  if (broken_) return;
  lent_ = lent;
  if (!had) Open();
}

void Borrower::Open() {
  const LoanControl::Loan& loan = control_.loans[repaid_ % kLoansMax];
  at_ = loan.at.load(std::memory_order_relaxed);
  address_ = loan.address.load(std::memory_order_relaxed);
  rest_ = loan.bytes.load(std::memory_order_relaxed);
  broken_ = rest_ == 0;
}

void Borrower::Next() {
  ++repaid_;
  if (open()) Open();
}

// What was read before was what was lent.
bool Borrower::StillOpen() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return control_.revoked.load(std::memory_order_seq_cst) == 0 && memory_->WasThere();
}

ssize_t Borrower::Read(std::span<std::byte> out, bool* awaited) {
  if (broken_) return -EPROTO;
  const size_t n = std::min<uint64_t>(out.size(), rest_);
  if (const int error = memory_->Read(address_, out.first(n)); error != 0) {
    if (StillOpen()) return error;
    Next();
    return -ECONNRESET;
  }
  address_ += n;
  rest_ -= n;
  if (rest_ > 0) return static_cast<ssize_t>(n);
  const bool taken = StillOpen();
  Next();
  if (!taken) return -ECONNRESET;
  control_.repaid.store(repaid_, std::memory_order_seq_cst);
  std::atomic<uint32_t>& sleeps = control_.lender_sleeps;
  *awaited = sleeps.load(std::memory_order_seq_cst) != 0 && sleeps.exchange(0) != 0;
  return static_cast<ssize_t>(n);
}

}  // namespace weir::shm
