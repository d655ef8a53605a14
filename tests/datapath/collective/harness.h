// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs one operation on every rank of a world and keeps each rank's result.

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

/// One rank's contribution. The collective's form determines which members are used.
struct Contribution {
  std::vector<std::byte> lanes;
  size_t lane_bytes = 4;
  // Adds lanes; AddLanes if empty.
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
  Status open_status;  // what opening the indices, or adding a region, returns on this rank
  std::vector<int> nodes = {};        // of all ranks; empty: unknown
  std::vector<int> ring = {};         // order of the ranks; empty: ascending
  std::vector<uint32_t> shards = {};  // of kShardShareTotal; empty: even
  uint16_t sum_flags = 0;             // announced with encoded sums
  size_t kept_target = 0;             // own values: 0 stands for all elements
  SparseBalance* balance = nullptr;   // of this rank
  LaneOffload* offload = nullptr;
  bool takes_shares = true;
};

/// One rank's result.
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

/// Returns region `region` of `values`, which are cut into `world` regions of almost equal size.
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

/// Whether payloads of the form are positions, whose values are sent separately.
inline bool MovesIndices(std::string_view form) {
  return form == "shared_index" || form == "union_index" || form == "own_selections";
}

/// Whether the form sums within nodes before it encodes.
inline bool EncodesNodeSums(std::string_view form) {
  return form == "node_sums" || form == "node_shards";
}

/// Passes one rank's contribution to a collective as the operand of its form, with "codecs" that
/// copy floats.
class RankRun {
 public:
  RankRun(Group& group, const Contribution& contribution, Outcome& outcome)
      : group_(group), in_(contribution), out_(outcome) {}

  StatusOr<CollectiveReport> Run(const Collective& collective) {
    const std::string& form = collective.Traits().form;
    if (form == "opaque") return RunGather(collective);
    if (form == "shared_index") return RunSharedIndex(collective);
    if (form == "union_index") return RunUnionIndex(collective);
    if (form == "own_selections") return RunOwnSelections(collective);
    if (form == "regions") return RunRegions(collective);
    if (EncodesNodeSums(form)) return RunNodeSums(collective);
    Lanes lanes = LanesOf();
    if (in_.takes_shares) lanes.shares = &out_.shares;
    return RunCollective(collective, group_, lanes);
  }

 private:
  Lanes LanesOf() {
    Lanes lanes;
    lanes.bytes = out_.lanes;
    lanes.lane_bytes = in_.lane_bytes;
    lanes.accumulate = [this](std::span<std::byte> sum, std::span<const std::byte> addend) {
      EXPECT_EQ(sum.size(), addend.size());
      EXPECT_EQ(sum.size() % in_.lane_bytes, 0u);
      out_.summed_bytes += addend.size();
      if (in_.accumulate) {
        in_.accumulate(sum, addend);
      } else {
        AddLanes(in_.lane_bytes, sum, addend);
      }
    };
    return lanes;
  }

  StatusOr<CollectiveReport> RunGather(const Collective& collective) {
    GatherOperand operand;
    operand.payload = in_.payload;
    operand.payload_bytes_max = in_.payload_bytes_max;
    operand.gathered = &out_.gathered;
    return RunCollective(collective, group_, operand);
  }

  StatusOr<CollectiveReport> RunSharedIndex(const Collective& collective) {
    SharedIndexOperand operand;
    operand.selection = std::as_bytes(std::span(in_.selection));
    operand.selection_bytes_max = in_.payload_bytes_max;
    operand.norm_squared = in_.norm_squared;
    operand.step = in_.step;
    operand.open = [this](std::span<const std::byte> bytes) -> Status {
      const std::vector<std::byte> one(bytes.begin(), bytes.end());
      return Open(std::span(&one, 1));
    };
    operand.values = &out_.values;
    return RunCollective(collective, group_, operand);
  }

  StatusOr<CollectiveReport> RunUnionIndex(const Collective& collective) {
    UnionIndexOperand operand;
    operand.selection = std::as_bytes(std::span(in_.selection));
    operand.selection_bytes_max = in_.payload_bytes_max;
    operand.open = [this](std::span<const std::vector<std::byte>> all) { return Open(all); };
    operand.values = &out_.values;
    return RunCollective(collective, group_, operand);
  }

  StatusOr<CollectiveReport> RunOwnSelections(const Collective& collective) {
    SparseSumOperand operand;
    operand.selected.indices = in_.selection;
    for (const uint32_t i : in_.selection) {
      if (i < in_.dense.size()) operand.selected.values.push_back(in_.dense[i]);
    }
    operand.elements = operand.kept_target = in_.dense.size();
    if (in_.kept_target > 0) operand.kept_target = in_.kept_target;
    operand.balance = in_.balance;
    StatusOr<CollectiveReport> report = RunCollective(collective, group_, operand);
    out_.indices = std::move(operand.sums.indices);
    out_.values = std::move(operand.sums.values);
    return report;
  }

  StatusOr<CollectiveReport> RunRegions(const Collective& collective) {
    std::vector<std::span<const std::byte>> payloads;
    for (int region = 0; region < group_.size(); ++region) {
      payloads.push_back(std::as_bytes(RegionOf(in_.dense, region, group_.size())));
    }
    sum_.resize(payloads[group_.rank()].size() / sizeof(float));
    RegionOperand operand;
    operand.payloads = payloads;
    operand.payload_bytes_max = in_.payload_bytes_max;
    operand.add = [this](int from, std::span<const std::byte> bytes) {
      return Add(std::as_writable_bytes(std::span(sum_)), from, bytes);
    };
    operand.gathered = &out_.gathered;
    WEIR_RETURN_IF_ERROR(RunCollective(collective, group_, operand).status());
    operand.sum = std::as_bytes(std::span(sum_));
    return Distribute(collective, operand);
  }

  // The operation that follows once sums are encoded.
  template <typename Operand>
  StatusOr<CollectiveReport> Distribute(const Collective& collective, Operand& operand) {
    OperationId id = in_.id;
    ++id.op_sequence;
    const auto flags = static_cast<uint16_t>(group_.flags() | in_.sum_flags);
    group_.Begin(id, group_.control(), flags, group_.deadline());
    operand.round = SumRound::kDistribute;
    return RunCollective(collective, group_, operand);
  }

  StatusOr<CollectiveReport> RunNodeSums(const Collective& collective) {
    const NodeEncoders encoders =
        collective.Traits().form == "node_shards" ? NodeEncoders::kAll : NodeEncoders::kFirst;
    const int rank = group_.rank(), world = group_.size();
    const int count = NodePartsOf(encoders, in_.nodes, rank, world);
    const size_t elements = out_.lanes.size() / sizeof(float);
    std::vector<std::span<std::byte>> parts;
    for (int part = 0, at = 0; part < count; ++part) {
      const size_t size = elements / count + (part < static_cast<int>(elements % count) ? 1 : 0);
      parts.push_back(std::span(out_.lanes).subspan(at * sizeof(float), size * sizeof(float)));
      at += static_cast<int>(size);
    }
    const int own = OwnNodePart(encoders, in_.nodes, rank, world);
    const std::span<std::byte> own_part = own >= 0 ? parts[own] : std::span<std::byte>();
    NodeSumOperand operand;
    operand.lanes = LanesOf();
    operand.parts = parts;
    operand.payload_bytes_max = in_.payload_bytes_max;
    operand.add = [this, own_part](int from, std::span<const std::byte> bytes) {
      return Add(own_part, from, bytes);
    };
    WEIR_RETURN_IF_ERROR(RunCollective(collective, group_, operand).status());
    sum_ = Floats(own_part);
    std::fill(own_part.begin(), own_part.end(), std::byte{0});
    operand.sum = std::as_bytes(std::span(sum_));
    return Distribute(collective, operand);
  }

  // The union of the selections.
  Status Open(std::span<const std::vector<std::byte>> all) {
    WEIR_RETURN_IF_ERROR(in_.open_status);
    std::vector<uint32_t> chosen;
    for (const std::vector<std::byte>& bytes : all) {
      if (bytes.size() % sizeof(uint32_t) != 0) return DataLoss("indices are not whole");
      const size_t before = chosen.size();
      chosen.resize(before + bytes.size() / sizeof(uint32_t));
      if (!bytes.empty()) std::memcpy(chosen.data() + before, bytes.data(), bytes.size());
      std::inplace_merge(chosen.begin(), chosen.begin() + before, chosen.end());
    }
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    out_.indices = chosen;
    out_.values.clear();
    for (const uint32_t i : out_.indices) {
      if (i >= in_.dense.size()) return DataLoss("index past the end");
      out_.values.push_back(in_.dense[i]);
    }
    return OkStatus();
  }

  Status Add(std::span<std::byte> into, int from, std::span<const std::byte> bytes) {
    WEIR_RETURN_IF_ERROR(in_.open_status);
    if (bytes.size() != into.size()) return DataLoss("region of another size");
    AddLanes(sizeof(float), into, bytes);
    out_.added_bytes += bytes.size();
    out_.added.push_back(from);
    return OkStatus();
  }

  Group& group_;
  const Contribution& in_;
  Outcome& out_;
  std::vector<float> sum_;  // what is distributed
};

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
  RankRun run(group, contribution, outcome);
  StatusOr<CollectiveReport> report = run.Run(collective);
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

/// Finds a transport under test by name. Factories live as long as the program.
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

/// Concatenates the pieces of `gathered`.
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

/// The transports under test, where `auto` is shm. Those that need a device are included only if
/// there is one.
inline std::vector<std::string> TransportNames() {
  std::vector<std::string> names = {"inproc", "shm", "tcp"};
  for (const TransportFactory* factory : Transports().All()) {
    if (factory->Traits().needs_device && MissingDevice(*factory).empty()) {
      names.push_back(factory->Traits().name);
    }
  }
  return names;
}

/// The collectives of these forms, or all if no form is named.
inline std::vector<Subject> Subjects(std::initializer_list<std::string_view> forms) {
  std::vector<Subject> subjects;
  for (const Collective* collective : Collectives().All()) {
    const CollectiveTraits& traits = collective->Traits();
    if (traits.by_caller) continue;  // moves nothing of a contribution
    if (forms.size() > 0 && std::find(forms.begin(), forms.end(), traits.form) == forms.end()) {
      continue;
    }
    for (const std::string& transport : TransportNames()) {
      subjects.push_back({traits.name, transport});
    }
  }
  return subjects;
}

inline std::vector<Subject> AllSubjects() { return Subjects({}); }

/// Those over one transport.
inline std::vector<Subject> Over(const std::string& transport, std::vector<Subject> subjects) {
  std::erase_if(subjects, [&](const Subject& s) { return s.transport != transport; });
  return subjects;
}

inline std::string SubjectName(const ::testing::TestParamInfo<Subject>& info) {
  return info.param.collective + "_" + info.param.transport;
}

}  // namespace weir::testing
