// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the tests of all transports: the list of transports, how to connect them, and waits
// that must succeed or fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "datapath/base/log.h"
#include "datapath/transport/fault.h"
#include "tests/support/inproc_transport.h"
#include "tests/support/world.h"

namespace weir::testing {

using Bytes = std::vector<std::byte>;
using World = std::vector<std::unique_ptr<Transport>>;

inline const TransportFactory& Inproc() {
  static const std::unique_ptr<TransportFactory> factory = MakeInprocFactory();
  return *factory;
}

/// Even ranks choose their medium and odd ones must use tcp, so one mesh has two media.
class MixedFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }
  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    return (*Transports().Find(options.rank % 2 == 0 ? "auto" : "tcp"))->Create(options);
  }

 private:
  const TransportTraits traits_ = {.name = "mixed"};
};

/// The key of the tests' jobs.
inline JobKey TestKey() {
  JobKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(3 * i + 5);
  return key;
}

inline void UseKey(TransportOptions* options) {
  options->job_key = TestKey();
  options->unauthenticated = false;
}

inline void UseEncryption(TransportOptions* options) {
  UseKey(options);
  options->encrypt = true;
}

/// A transport, tcp by default, with options that change how its bytes are sent.
class TunedFactory : public TransportFactory {
 public:
  TunedFactory(std::string name, std::function<void(TransportOptions*)> tune,
               std::string of = "tcp")
      : traits_{.name = std::move(name),
                .needs_device = (*Transports().Find(of))->Traits().needs_device},
        tune_(std::move(tune)),
        of_(std::move(of)) {}
  const TransportTraits& Traits() const override { return traits_; }
  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    TransportOptions tuned = options;
    tune_(&tuned);
    return (*Transports().Find(of_))->Create(tuned);
  }

 private:
  const TransportTraits traits_;
  const std::function<void(TransportOptions*)> tune_;
  const std::string of_;
};

/// Every transport that can be created on this machine, a mixture, and tcp within a host, with
/// several connections, with a key, and with all options together.
inline std::vector<const TransportFactory*> WiredFactories() {
  static const MixedFactory mixed;
  static const TunedFactory within_host("tcp_within_host", [](TransportOptions* options) {
    std::string& listen = options->listen;
    if (listen.starts_with("127.0.0.2:")) listen.replace(0, 9, "127.0.0.1");
  });
  static const TunedFactory striped("tcp_striped",
                                    [](TransportOptions* options) { options->connections = 3; });
  static const TunedFactory tuned("tcp_tuned", [](TransportOptions* options) {
    options->zero_copy_bytes_min = 1;
    options->pacing_bytes_per_s = uint64_t{8} << 30;
    options->busy_poll = std::chrono::microseconds(20);
  });
  static const TunedFactory keyed("tcp_authenticated", UseKey);
  static const TunedFactory encrypted("tcp_encrypted", [](TransportOptions* options) {
    UseEncryption(options);
    options->connections = 3;
    options->zero_copy_bytes_min = 1;
  });
  static const TunedFactory keyed_auto("auto_authenticated", UseKey, "auto");
  std::vector<const TransportFactory*> factories = UsableFactories();
  const bool has_verbs = std::any_of(factories.begin(), factories.end(), [](const auto* factory) {
    return factory->Traits().name == "verbs";
  });
  factories.insert(factories.end(),
                   {&mixed, &within_host, &striped, &tuned, &keyed, &encrypted, &keyed_auto});
  if (has_verbs) {
    static const TunedFactory keyed_verbs("verbs_authenticated", UseKey, "verbs");
    static const TunedFactory encrypted_verbs("verbs_encrypted", UseEncryption, "verbs");
    factories.insert(factories.end(), {&keyed_verbs, &encrypted_verbs});
  }
  return factories;
}

/// These and the in-memory one.
inline std::vector<const TransportFactory*> PlainFactories() {
  std::vector<const TransportFactory*> factories = WiredFactories();
  factories.push_back(&Inproc());
  return factories;
}

/// Options of a job that no other test uses.
inline TransportOptions FreshJob() {
  static std::atomic<uint64_t> job = 1000;
  TransportOptions options;
  options.job = ++job;
  // Addresses of devices are not loopback addresses.
  options.unauthenticated = std::getenv("WEIR_TEST_DEVICE_HOSTS") != nullptr;
  return options;
}

class TransportConformance : public ::testing::TestWithParam<const TransportFactory*> {
 protected:
  World Connect(int world, const TransportFactory* factory = nullptr) {
    StatusOr<World> connected = ConnectWorld(factory ? *factory : *GetParam(), world, FreshJob());
    EXPECT_TRUE(connected.ok()) << connected.status();
    return connected.ok() ? std::move(*connected) : World();
  }
};

/// Collects what is logged while it lives.
class Logged {
 public:
  Logged() {
    SetLogSink([this](LogLevel, std::string_view, std::string_view text) {
      const std::lock_guard lock(mutex_);
      text_ += StrCat(text, "\n");
    });
  }
  ~Logged() { SetLogSink({}); }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// A wait that must succeed.
inline FrameHeader Done(Transport& transport, const StatusOr<Ticket>& ticket) {
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  if (!ticket.ok()) return {};
  const StatusOr<FrameHeader> header = transport.Wait(*ticket, Within(kPatience));
  EXPECT_TRUE(header.ok()) << header.status();
  return header.ok() ? *header : FrameHeader();
}

/// A wait that must fail.
inline Status Failure(Transport& transport, const StatusOr<Ticket>& ticket,
                      double seconds = kPatience) {
  if (!ticket.ok()) return ticket.status();
  return transport.Wait(*ticket, Within(seconds)).status();
}

#define EXPECT_STATUS(status, wanted_code, matcher)                            \
  do {                                                                         \
    const Status actual_status = (status);                                     \
    EXPECT_EQ(actual_status.code(), StatusCode::wanted_code) << actual_status; \
    EXPECT_THAT(Message(actual_status), matcher);                              \
  } while (false)

}  // namespace weir::testing
