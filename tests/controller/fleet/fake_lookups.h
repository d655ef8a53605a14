// SPDX-License-Identifier: Apache-2.0
#pragma once
// Name lookups with answers that a test sets.

#include <memory>
#include <optional>
#include <string>

#include "deploy/program/name_lookup.h"

namespace weir {

/// A name server that answers when the test says so. Not thread-safe.
class FakeLookups {
 public:
  StartLookup Start() {
    return [this](const std::string& host) {
      ++started;
      last_host = host;
      return std::make_unique<Fake>(*this);
    };
  }
  std::optional<PendingLookup::Answer> answer;
  Duration waited{};  // the last time
  int started = 0;
  std::string last_host;

 private:
  class Fake : public PendingLookup {
   public:
    explicit Fake(FakeLookups& owner) : owner_(owner) {}
    std::optional<Answer> Wait(Duration at_most) override {
      owner_.waited = at_most;
      return owner_.answer;
    }

   private:
    FakeLookups& owner_;
  };
};

}  // namespace weir
