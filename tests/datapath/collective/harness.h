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
#include "datapath/collective/node_parts.h"
#include "datapath/collective/offload.h"
#include "datapath/collective/primitives.h"
#include "tests/support/inproc_transport.h"
#include "tests/support/world.h"

namespace weir::testing {

/// One rank's contribution. Which members count follows from the collective's form.
struct Contribution {
  std::vector<std::byte> lanes;
  size_t lane_bytes = 4;
  // What adds lanes; AddLanes when empty.
  std::function<void(std::span<std::byte> sum, std::span<const std::byte> addend)> accumulate = {};
  std::vector<std::byte> payload;   // opaque
  std::vector<float> dense;         // shared index: the rank's own gradient
  std::vector<uint32_t> selection;  // and the indices it would choose
  double norm_squared = 0;
  uint64_t step = 0;
  OperationId id{.plan_version = 2, .op_sequence = 17, .bucket = 0xC0FFEE};
  ControlWord control;
  uint16_t flags = 0;
  size_t payload_bytes_max = 1 << 24;
  Status open_status;  // what opening the indices, or adding a region, answers on this rank
  std::vector<int> nodes = {};        // of all ranks; empty: nobody knows
  std::vector<int> ring = {};         // who follows whom; empty: ascending
  std::vector<uint32_t> shards = {};  // of kShardShareTotal; empty: even
  uint16_t sum_flags = 0;             // regions: announced while the sum is encoded
  size_t kept_target = 0;             // own values: 0 stands for all elements
  SparseBalance* balance = nullptr;   // of this rank
  LaneOffload* offload = nullptr;
  bool takes_shares = true;
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
  LaneShares shares;
  size_t summed_bytes = 0;  // given to accumulate
  size_t added_bytes = 0;   // given to add_region
  std::vector<int> added;   // from which ranks, in order
};

/// Region `region` of `world` almost equal ones of `values`.
inline std::span<const float> RegionOf(std::span<const float> values, int region, int world) {
  const size_t begin = values.size() * region / world;
  return values.subspan(begin, values.size() * (region + 1) / world - begin);
}

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

inline std::vector<float> Floats(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Runs `collective` as one rank.
inline Outcome RunRank(Transport& transport, const Collective& collective,
                       const Contribution& contribution, size_t segment_bytes, TimePoint deadline) {
  Outcome outcome;
  outcome.lanes = contribution.lanes;
  Group group(transport, segment_bytes);
  group.SetNodes(contribution.nodes);
  group.SetRing(contribution.ring);
  group.SetShards(contribution.shards);
  group.SetOffload(contribution.offload);
  group.Begin(contribution.id, contribution.control, contribution.flags, deadline);
  Exchange exchange;
  exchange.lanes = outcome.lanes;
  exchange.lane_bytes = contribution.lane_bytes;
  if (contribution.takes_shares) exchange.shares = &outcome.shares;
  exchange.accumulate = [&](std::span<std::byte> sum, std::span<const std::byte> addend) {
    EXPECT_EQ(sum.size(), addend.size());
    EXPECT_EQ(sum.size() % contribution.lane_bytes, 0u);
    outcome.summed_bytes += addend.size();
    if (contribution.accumulate) {
      contribution.accumulate(sum, addend);
    } else {
      AddLanes(contribution.lane_bytes, sum, addend);
    }
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
  exchange.indices = &outcome.indices;
  exchange.elements = exchange.kept_target = contribution.dense.size();
  if (contribution.kept_target > 0) exchange.kept_target = contribution.kept_target;
  exchange.balance = contribution.balance;
  const auto fill = [&]() -> Status {
    outcome.values.clear();
    for (const uint32_t i : outcome.indices) {
      if (i >= contribution.dense.size()) return DataLoss("index past the end");
      outcome.values.push_back(contribution.dense[i]);
    }
    return OkStatus();
  };
  exchange.open = [&](std::span<const std::byte> bytes) -> Status {
    WEIR_RETURN_IF_ERROR(contribution.open_status);
    if (bytes.size() % sizeof(uint32_t) != 0) return DataLoss("indices are not whole");
    outcome.indices.resize(bytes.size() / sizeof(uint32_t));
    if (!bytes.empty()) std::memcpy(outcome.indices.data(), bytes.data(), bytes.size());
    return fill();
  };
  exchange.open_all = [&](std::span<const std::vector<std::byte>> all) -> Status {
    WEIR_RETURN_IF_ERROR(contribution.open_status);
    std::vector<uint32_t> chosen;
    for (const std::vector<std::byte>& bytes : all) {
      if (bytes.size() % sizeof(uint32_t) != 0) return DataLoss("indices are not whole");
      const size_t before = chosen.size();
      chosen.resize(before + bytes.size() / sizeof(uint32_t));
      if (!bytes.empty()) std::memcpy(chosen.data() + before, bytes.data(), bytes.size());
      std::inplace_merge(chosen.begin(), chosen.begin() + before, chosen.end());
    }
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    outcome.indices = chosen;
    return fill();
  };
  std::vector<std::span<const std::byte>> regions;
  for (int region = 0; region < group.size(); ++region) {
    regions.push_back(std::as_bytes(RegionOf(contribution.dense, region, group.size())));
  }
  exchange.regions = regions;
  std::vector<float> sum(regions[group.rank()].size() / sizeof(float));
  // Parts of a node's sum, which replace the regions where the collective has them.
  const PayloadForm form = collective.Traits().form;
  std::vector<std::span<std::byte>> parts;
  std::span<std::byte> own_part;
  if (EncodesNodeSums(form)) {
    const NodeEncoders encoders =
        form == PayloadForm::kNodeShards ? NodeEncoders::kAll : NodeEncoders::kFirst;
    const int count =
        NodePartsOf(encoders, contribution.nodes, transport.rank(), transport.world());
    const size_t elements = outcome.lanes.size() / sizeof(float);
    for (int part = 0, at = 0; part < count; ++part) {
      const size_t size = elements / count + (part < static_cast<int>(elements % count) ? 1 : 0);
      parts.push_back(std::span(outcome.lanes).subspan(at * sizeof(float), size * sizeof(float)));
      at += static_cast<int>(size);
    }
    const int own = OwnNodePart(encoders, contribution.nodes, transport.rank(), transport.world());
    if (own >= 0) own_part = parts[own];
  }
  exchange.node_parts = parts;
  exchange.add_region = [&](int from, std::span<const std::byte> bytes) -> Status {
    WEIR_RETURN_IF_ERROR(contribution.open_status);
    const std::span<std::byte> into =
        EncodesNodeSums(form) ? own_part : std::as_writable_bytes(std::span(sum));
    if (bytes.size() != into.size()) return DataLoss("region of another size");
    AddLanes(sizeof(float), into, bytes);
    outcome.added_bytes += bytes.size();
    outcome.added.push_back(from);
    return OkStatus();
  };
  exchange.encode_sum = [&]() -> StatusOr<std::span<const std::byte>> {
    group.Announce(contribution.sum_flags);
    if (EncodesNodeSums(form)) {
      sum = Floats(own_part);
      std::fill(own_part.begin(), own_part.end(), std::byte{0});
    }
    return std::as_bytes(std::span(sum));
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

/// The pieces of `gathered`, one after another.
inline std::vector<std::byte> Joined(const std::vector<std::vector<std::byte>>& gathered) {
  std::vector<std::byte> whole;
  for (const auto& part : gathered) whole.insert(whole.end(), part.begin(), part.end());
  return whole;
}

/// One parameterised test per registered collective and transport.
struct Subject {
  std::string collective, transport;
};

inline void PrintTo(const Subject& subject, std::ostream* out) {
  *out << subject.collective << " over " << subject.transport;
}

/// The transports under test; `auto` is shm here. Those that need a device only where there is one.
inline std::vector<std::string> TransportNames() {
  std::vector<std::string> names = {"inproc", "shm", "tcp"};
  for (const TransportFactory* factory : Transports().All()) {
    if (factory->Traits().needs_device && MissingDevice(*factory).empty()) {
      names.push_back(factory->Traits().name);
    }
  }
  return names;
}

/// The collectives of these forms.
inline std::vector<Subject> Subjects(std::initializer_list<PayloadForm> forms) {
  std::vector<Subject> subjects;
  for (const Collective* collective : Collectives().All()) {
    const CollectiveTraits& traits = collective->Traits();
    if (std::find(forms.begin(), forms.end(), traits.form) == forms.end()) continue;
    for (const std::string& transport : TransportNames()) {
      subjects.push_back({traits.name, transport});
    }
  }
  return subjects;
}

inline std::vector<Subject> AllSubjects() {
  return Subjects({PayloadForm::kLanes, PayloadForm::kFloatLanes, PayloadForm::kTableLanes,
                   PayloadForm::kOpaque, PayloadForm::kSharedIndex, PayloadForm::kUnionIndex,
                   PayloadForm::kRegions, PayloadForm::kNodeSums, PayloadForm::kNodeShards});
}

inline std::string SubjectName(const ::testing::TestParamInfo<Subject>& info) {
  return info.param.collective + "_" + info.param.transport;
}

}  // namespace weir::testing
