// SPDX-License-Identifier: Apache-2.0
#pragma once
// Accounts for a job of sessions: the gradients that went in, the sums that came out, and the
// residuals.

#include <cmath>
#include <cstring>

#include "tests/datapath/session/session_world.h"

namespace weir::testing {

/// The sum of the residuals of all ranks, element by element. `parameters` as in Define.
inline std::vector<double> Owed(SessionWorld& job,
                                const std::vector<ResidualParameter>& parameters) {
  size_t elements = 0;
  for (const ResidualParameter& parameter : parameters) elements += parameter.elements;
  std::vector<double> owed(elements);
  for (size_t rank = 0; rank < job.sessions.size(); ++rank) {
    ResidualStore store;
    EXPECT_TRUE(store.Define(1, parameters).ok());
    EXPECT_TRUE(store.Import(job.Export(static_cast<int>(rank))).ok());
    std::vector<float> both(elements);
    EXPECT_TRUE(store.Flush(1, both).ok());
    for (size_t i = 0; i < elements; ++i) owed[i] += both[i];
  }
  return owed;
}

/// How many elements of the aggregate residual a rank's state names.
inline size_t ServerElements(SessionWorld& job, int rank,
                             const std::vector<ResidualParameter>& parameters) {
  ResidualStore store;
  EXPECT_TRUE(store.Define(1, parameters).ok());
  EXPECT_TRUE(store.Import(job.Export(rank)).ok());
  size_t elements = 0, held = 0;
  for (const ResidualParameter& parameter : parameters) elements += parameter.elements;
  std::vector<float> gradient(elements);
  EXPECT_TRUE(store.BeginEncode(1).ok());
  const ResidualBuffers aggregate = store.BeginAggregate(1, {0, elements}, gradient).value();
  for (const float value : aggregate.current) held += value != 0;
  return held;
}

/// A job under one choice that accounts for what went in and what came out.
class Account {
 public:
  using Data = std::vector<std::vector<float>>;
  /// `factory` creates the ranks' transports; null: the in-memory one, which reports no nodes.
  Account(int world, size_t elements, const TransportFactory* factory = nullptr)
      : job({.world = world, .transport = "inproc", .factory = factory}) {
    parameters = {{"first", elements / 3}, {"second", elements - elements / 3}};
    in.resize(elements);
    out.resize(elements);
    job.Up();
    key = job.Define(parameters);
  }

  void Switch(const Choice& choice) { Announce(choice), Step(1000 + version_, 0); }
  /// The step after the next one runs under `choice`.
  void Announce(const Choice& choice) {
    const Plan plan = UniformPlan(++version_, choice);
    for (auto& session : job.sessions) session->OnCommand(PlanOffer{version_, "n", plan});
    for (auto& port : job.ports) {
      const auto refused = port->All<PlanNack>();
      EXPECT_TRUE(refused.empty()) << refused.back().reason;
    }
    job.sessions[0]->OnCommand(PlanArm{version_});
  }

  /// Runs one step on random gradients and returns what was delivered, the same bits on all ranks.
  std::vector<float> Step(uint64_t seed, float amplitude = 1) {
    Data data = RandomGradients(static_cast<int>(job.sessions.size()), in.size(), seed);
    for (auto& gradient : data) {
      for (float& v : gradient) v *= amplitude;
    }
    return Run(std::move(data));
  }
  std::vector<float> Run(Data data) {
    const std::vector<double> sum = SumOver(data);
    job.Begin();
    job.AllReduce(key, data);
    EXPECT_FALSE(job.End());
    for (size_t rank = 1; rank < data.size(); ++rank) {
      EXPECT_EQ(std::memcmp(data[rank].data(), data[0].data(), 4 * in.size()), 0) << rank;
    }
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] += sum[i];
      out[i] += data[0][i];
    }
    return data[0];
  }

  void ExpectBalance(double tolerance) {
    const std::vector<double> owed = Owed(job, parameters);
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      worst = std::max(worst, std::fabs(in[i] - out[i] - owed[i]));
    }
    EXPECT_LT(worst, tolerance);
  }

  SessionWorld job;
  std::vector<ResidualParameter> parameters;
  uint64_t key = 0;
  std::vector<double> in, out;

 private:
  uint64_t version_ = 0;
};

}  // namespace weir::testing
