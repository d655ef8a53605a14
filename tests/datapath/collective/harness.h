#pragma once
// Runs one operation on every rank of a world and keeps what each rank ended with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "datapath/collective/collective.h"
#include "datapath/collective/primitives.h"
#include "tests/support/inproc_transport.h"
#include "tests/support/world.h"

namespace weir::testing {

/// One rank's contribution. Which members count follows from the collective's form.
struct Contribution {
  std::vector<std::byte> lanes;
  size_t lane_bytes = 4;
  std::vector<std::byte> payload;   // opaque
  std::vector<float> dense;         // shared index: the rank's own gradient
  std::vector<uint32_t> selection;  // and the indices it would choose
  double norm_squared = 0;
  uint64_t step = 0;
  OperationId id{.plan_version = 2, .op_sequence = 17, .bucket = 0xC0FFEE};
  ControlWord control;
  uint16_t flags = 0;
  size_t payload_bytes_max = 1 << 24;
  Status open_status;  // what opening the indices answers on this rank
};

/// What one rank ended with.
struct Outcome {
  Status status;
  std::vector<std::byte> lanes;
  std::vector<std::vector<std::byte>> gathered;
  std::vector<uint32_t> indices;
  std::vector<float> values;
  ControlWord control;
  uint16_t flags = 0;
  CollectiveReport report;
  size_t summed_bytes = 0;  // given to accumulate
};

/// Adds lanes of one float each, or bytewise (modulo 256) when lanes are not four bytes.
inline void AddLanes(size_t lane_bytes, std::span<std::byte> sum,
                     std::span<const std::byte> addend) {
  if (lane_bytes == sizeof(float)) {
    auto* a = reinterpret_cast<float*>(sum.data());
    const auto* b = reinterpret_cast<const float*>(addend.data());
    for (size_t i = 0; i < sum.size() / sizeof(float); ++i) a[i] += b[i];
    return;
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] =
        static_cast<std::byte>(static_cast<unsigned>(sum[i]) + static_cast<unsigned>(addend[i]));
  }
}

/// Runs `collective` as one rank.
inline Outcome RunRank(Transport& transport, const Collective& collective,
                       const Contribution& contribution, size_t segment_bytes, TimePoint deadline) {
  Outcome outcome;
  outcome.lanes = contribution.lanes;
  Group group(transport, segment_bytes);
  group.Begin(contribution.id, contribution.control, contribution.flags, deadline);
  Exchange exchange;
  exchange.lanes = outcome.lanes;
  exchange.lane_bytes = contribution.lane_bytes;
  exchange.accumulate = [&](std::span<std::byte> sum, std::span<const std::byte> addend) {
    EXPECT_EQ(sum.size(), addend.size());
    EXPECT_EQ(sum.size() % contribution.lane_bytes, 0u);
    outcome.summed_bytes += addend.size();
    AddLanes(contribution.lane_bytes, sum, addend);
  };
  exchange.payload = contribution.payload;
  exchange.payload_bytes_max = contribution.payload_bytes_max;
  exchange.gathered = &outcome.gathered;
  exchange.norm_squared = contribution.norm_squared;
  exchange.step = contribution.step;
  exchange.select = [&]() -> StatusOr<std::span<const std::byte>> {
    return std::as_bytes(std::span(contribution.selection));
  };
  exchange.values = &outcome.values;
  exchange.open = [&](std::span<const std::byte> bytes) -> Status {
    WEIR_RETURN_IF_ERROR(contribution.open_status);
    if (bytes.size() % sizeof(uint32_t) != 0) return DataLoss("indices are not whole");
    outcome.indices.resize(bytes.size() / sizeof(uint32_t));
    if (!bytes.empty()) std::memcpy(outcome.indices.data(), bytes.data(), bytes.size());
    outcome.values.clear();
    for (const uint32_t i : outcome.indices) {
      if (i >= contribution.dense.size()) return DataLoss("index past the end");
      outcome.values.push_back(contribution.dense[i]);
    }
    return OkStatus();
  };
  StatusOr<CollectiveReport> report = collective.Run(group, exchange);
  outcome.status = report.status();
  if (report.ok()) outcome.report = *report;
  outcome.control = group.control();
  outcome.flags = group.flags();
  return outcome;
}

using World = std::vector<std::unique_ptr<Transport>>;

inline std::vector<Outcome> RunAll(World& world, const Collective& collective,
                                   const std::vector<Contribution>& contributions,
                                   size_t segment_bytes = 1 << 20, double timeout_s = 20) {
  std::vector<Outcome> outcomes(world.size());
  const TimePoint deadline = Within(timeout_s);
  RunRanks(static_cast<int>(world.size()), [&](int rank) {
    outcomes[rank] =
        RunRank(*world[rank], collective, contributions[rank], segment_bytes, deadline);
  });
  return outcomes;
}

/// The transports under test by name; factories live as long as the program.
inline const TransportFactory& FactoryNamed(const std::string& name) {
  static const std::unique_ptr<TransportFactory> inproc = MakeInprocFactory();
  return name == "inproc" ? *inproc : **Transports().Find(name);
}

inline World MakeWorld(const std::string& transport, int size) {
  StatusOr<World> world = ConnectWorld(FactoryNamed(transport), size);
  EXPECT_TRUE(world.ok()) << world.status();
  return world.ok() ? std::move(*world) : World();
}

inline std::vector<std::byte> Bytes(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

inline std::vector<float> Floats(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// One parameterised test per registered collective and transport.
struct Subject {
  std::string collective, transport;
};

inline void PrintTo(const Subject& subject, std::ostream* out) {
  *out << subject.collective << " over " << subject.transport;
}

/// The collectives of these forms.
inline std::vector<Subject> Subjects(std::initializer_list<PayloadForm> forms) {
  std::vector<Subject> subjects;
  for (const Collective* collective : Collectives().All()) {
    const CollectiveTraits& traits = collective->Traits();
    if (std::find(forms.begin(), forms.end(), traits.form) == forms.end()) continue;
    for (const char* transport : {"inproc", "tcp"}) subjects.push_back({traits.name, transport});
  }
  return subjects;
}

inline std::vector<Subject> AllSubjects() {
  return Subjects({PayloadForm::kLanes, PayloadForm::kOpaque, PayloadForm::kSharedIndex});
}

inline std::string SubjectName(const ::testing::TestParamInfo<Subject>& info) {
  return info.param.collective + "_" + info.param.transport;
}

}  // namespace weir::testing
