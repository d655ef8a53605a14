// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/byte_budget.h"

#include <algorithm>

namespace weir::agent {

ByteBudget::ByteBudget(const Options& options, TimePoint now)
    : options_(options), tokens_(options.capacity_bytes), refilled_(now) {}

void ByteBudget::OnTrainingBytes(uint64_t bytes) {
  Add(options_.share * static_cast<double>(bytes));
}

bool ByteBudget::TryTake(uint64_t bytes, TimePoint now) {
  Refill(now);
  if (static_cast<double>(bytes) > tokens_) return false;
  tokens_ -= static_cast<double>(bytes);
  return true;
}

void ByteBudget::Return(uint64_t bytes) { Add(static_cast<double>(bytes)); }

uint64_t ByteBudget::Available(TimePoint now) {
  Refill(now);
  return static_cast<uint64_t>(tokens_);
}

void ByteBudget::Refill(TimePoint now) {
  if (now <= refilled_) return;
  Add(options_.floor_bytes_per_s * ToSeconds(now - refilled_));
  refilled_ = now;
}

void ByteBudget::Add(double bytes) { tokens_ = std::min(options_.capacity_bytes, tokens_ + bytes); }

}  // namespace weir::agent
