// SPDX-License-Identifier: Apache-2.0
#pragma once
// A whole job of sessions in one process. The pipeline threads of every session do the work, so one
// test thread can drive all ranks: begin and submit return at once, and only the ends wait.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datapath/base/random.h"
#include "datapath/session/session.h"
#include "tests/support/inproc_transport.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_file.h"
#include "tests/support/world.h"

namespace weir::testing {

/// An agent that records a session's messages and sends it commands. Thread-safe.
class FakeAgentPort : public AgentPort {
 public:
  void Send(RankMessage message) override {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
  }
  bool connected() const override { return true; }

  template <typename T>
  std::vector<T> All() const {
    MutexLock lock(mutex_);
    std::vector<T> found;
    for (const RankMessage& message : messages_) {
      if (const T* match = std::get_if<T>(&message)) found.push_back(*match);
    }
    return found;
  }
  std::vector<RankMessage> Take() {
    MutexLock lock(mutex_);
    return std::exchange(messages_, {});
  }

 private:
  mutable Mutex mutex_;
  std::vector<RankMessage> messages_ WEIR_GUARDED_BY(mutex_);
};

struct WorldOptions {
  int world = 2;
  std::string transport = "auto";  // or another of the registry, or "inproc"
  double operation_timeout_s = 20;
  std::string plan_file = {};
  std::string agent = {};
  const TransportFactory* factory = nullptr;  // used instead of `transport`
  double lease_min_s = 3;
  double operation_timeout_floor_s = 10;
  int encode_workers = 1;
  std::vector<int> encode_workers_of = {};  // the number for each rank; empty: equal on all
  uint64_t compare_every_steps = kCompareEverySteps;
  std::string job = {};                // its name, which determines seeds; empty: a unique one
  std::optional<JobKey> job_key = {};  // SessionOptions::job_key
  bool caller_sums = false;            // SessionOptions::caller_sums, but for some ranks
  std::vector<int> callers_that_cannot = {};
  std::function<void(int rank, SessionOptions*)> adjust = {};
};

class SessionWorld {
 public:
  explicit SessionWorld(const WorldOptions& options) : ports(options.world) {
    static std::atomic<int> jobs{0};
    const auto inproc = MakeInprocFactory();
    const int job = jobs.fetch_add(1);
    for (int rank = 0; rank < options.world; ++rank) {
      SessionOptions session;
      session.job = options.job.empty() ? StrCat("job-", job) : options.job;
      session.rank = rank;
      session.world = options.world;
      session.operation_timeout = FromSeconds(options.operation_timeout_s);
      session.connect_timeout = std::chrono::seconds(20);
      session.plan_file = options.plan_file;
      session.agent = options.agent;
      session.job_key = options.job_key;
      if (options.transport != "inproc") session.transport = options.transport;
      session.operation_timeout_floor = FromSeconds(options.operation_timeout_floor_s);
      session.encode_workers = options.encode_workers;
      if (!options.encode_workers_of.empty()) {
        session.encode_workers = options.encode_workers_of[rank];
      }
      session.compare_every_steps = options.compare_every_steps;
      session.lease_min = FromSeconds(options.lease_min_s);
      session.caller_sums =
          options.caller_sums && std::ranges::count(options.callers_that_cannot, rank) == 0;
      if (options.adjust) options.adjust(rank, &session);
      SessionParts parts;
      if (options.agent.empty()) {
        ports[rank] = std::make_unique<FakeAgentPort>();
        parts.agent = ports[rank].get();
      }
      parts.transport = MakeTransport(options, *inproc, job, rank);
      auto created = Session::Create(session, std::move(parts));
      EXPECT_TRUE(created.ok()) << ToString(created.status());
      sessions.push_back(std::move(created).value());
    }
  }

  std::vector<Status> Connect() {
    std::vector<TransportAddress> addresses;
    for (const auto& session : sessions) addresses.push_back(session->address());
    std::vector<Status> statuses(sessions.size());
    RunRanks(static_cast<int>(sessions.size()),
             [&](int rank) { statuses[rank] = sessions[rank]->Connect(addresses); });
    return statuses;
  }

  /// Connects and expects success.
  SessionWorld& Up() {
    for (const Status& status : Connect()) EXPECT_TRUE(status.ok()) << ToString(status);
    return *this;
  }

  uint64_t Define(const std::vector<ResidualParameter>& parameters, Dtype dtype = Dtype::kFloat32) {
    uint64_t key = 0;
    for (auto& session : sessions) {
      const auto defined = session->DefineBucket(parameters, dtype);
      EXPECT_TRUE(defined.ok()) << ToString(defined.status());
      key = defined.value_or(0);
    }
    return key;
  }

  void Begin() {
    for (auto& session : sessions) {
      const Status status = session->BeginStep();
      EXPECT_TRUE(status.ok()) << ToString(status);
    }
  }

  /// data[rank] is the rank's buffer.
  template <typename T>
  void AllReduce(uint64_t key, std::vector<std::vector<T>>& data, double scale = 1) {
    for (size_t rank = 0; rank < sessions.size(); ++rank) {
      const Status status = sessions[rank]->AllReduce(key, data[rank].data(), scale, nullptr);
      EXPECT_TRUE(status.ok()) << ToString(status);
    }
  }

  /// Ends the step on all ranks. Returns whether it was skipped, which must be equal on all.
  bool End() {
    bool skipped = false;
    for (size_t rank = 0; rank < sessions.size(); ++rank) {
      const StatusOr<bool> ended = sessions[rank]->EndStep();
      EXPECT_TRUE(ended.ok()) << "rank " << rank << ": " << ToString(ended.status());
      if (rank == 0) skipped = ended.value_or(false);
      EXPECT_EQ(skipped, ended.value_or(false)) << "rank " << rank;
    }
    return skipped;
  }

  /// Offers, arms and switches to `plan`. The step that carries the announcement all-reduces `key`.
  void Switch(const Plan& plan, uint64_t key, size_t elements) {
    for (auto& session : sessions) session->OnCommand(PlanOffer{plan.version, "n", plan});
    for (auto& port : ports) {
      ASSERT_FALSE(port->All<PlanAck>().empty()) << port->All<PlanNack>().back().reason;
      ASSERT_EQ(port->All<PlanAck>().back().version, plan.version);
    }
    sessions[0]->OnCommand(PlanArm{plan.version});
    std::vector<std::vector<float>> zeros(sessions.size(), std::vector<float>(elements));
    Begin();
    AllReduce(key, zeros);
    End();
  }

  std::vector<std::byte> Export(int rank) {
    std::vector<std::byte> bytes(sessions[rank]->ExportBytes().value());
    const auto size = sessions[rank]->ExportState(bytes);
    EXPECT_TRUE(size.ok()) << ToString(size.status());
    return bytes;
  }

  /// Residuals and momenta only, because codecs' states may change in a step that is skipped.
  std::vector<std::byte> ExportResiduals(int rank) {
    ResidualStore store;
    EXPECT_TRUE(store.Import(Export(rank)).ok());
    std::vector<std::byte> bytes(store.ExportBytes());
    EXPECT_TRUE(store.Export(bytes).ok());
    return bytes;
  }

  ~SessionWorld() { Close(); }
  void Close() {
    RunRanks(static_cast<int>(sessions.size()), [&](int rank) {
      if (sessions[rank] != nullptr) sessions[rank]->Close();
    });
  }

  std::vector<std::unique_ptr<FakeAgentPort>> ports;
  std::vector<std::unique_ptr<Session>> sessions;

 private:
  static std::unique_ptr<Transport> MakeTransport(const WorldOptions& options,
                                                  const TransportFactory& inproc, int job,
                                                  int rank) {
    if (options.transport != "inproc" && options.factory == nullptr) return nullptr;
    TransportOptions transport;
    transport.job = 1000 + static_cast<uint64_t>(job);
    transport.rank = rank;
    transport.world = options.world;
    const TransportFactory* factory = options.factory != nullptr ? options.factory : &inproc;
    auto made = factory->Create(transport);
    EXPECT_TRUE(made.ok()) << ToString(made.status());
    return std::move(made).value();
  }
};

inline std::vector<std::vector<float>> RandomGradients(int world, size_t n, uint64_t seed) {
  std::vector<std::vector<float>> gradients(world, std::vector<float>(n));
  for (int rank = 0; rank < world; ++rank) {
    Random random(MixSeed(seed, static_cast<uint64_t>(rank)));
    for (float& value : gradients[rank]) value = static_cast<float>(random.Normal());
  }
  return gradients;
}

inline std::vector<double> SumOver(const std::vector<std::vector<float>>& data) {
  std::vector<double> sum(data.front().size());
  for (const auto& part : data) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

inline Plan UniformPlan(uint64_t version, const Choice& choice) {
  Plan plan;
  plan.version = version;
  plan.fallback = choice;
  return plan;
}

/// Every codec of this build over every collective that can carry it; with a sanitizer, a part.
inline std::vector<Choice> CompatibleChoices(int world) {
  std::vector<Choice> choices;
  int compatible = 0;
  for (const Codec* codec : Codecs().All()) {
    for (const Collective* collective : Collectives().All()) {
      Choice choice;
      choice.codec = codec->Traits().name;
      choice.collective = collective->Traits().name;
      choice.ratio = codec->Traits().uses_ratio ? 0.1 : 1;
      PlanLimits limits;
      limits.world = world;
      if (!ValidatePlan(UniformPlan(1, choice), limits).ok()) continue;
      if (compatible++ % test::kFewer == 0) choices.push_back(choice);
    }
  }
  return choices;
}

}  // namespace weir::testing
