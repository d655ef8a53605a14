// SPDX-License-Identifier: Apache-2.0
// Sums of nodes on devices: encoded there, and moved within a node by NCCL, where the option says
// so, or through the host's memory. All give the bits of a job without devices. NCCL is that of
// tests/support/fake_nccl.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "tests/datapath/session/devices/device_bucket.h"
#include "tests/datapath/session/session_world.h"
#include "tests/support/fake_nccl.h"

namespace weir::node_devices {
namespace {

using ::testing::AnyOf;
using testing::BytesOf;
using testing::DeviceGradient;
using testing::FakeNccl;
using ::testing::HasSubstr;
using testing::RandomGradients;
using testing::SessionWorld;
using testing::UniformPlan;

constexpr size_t kElements = 3000;
const std::vector<int> kEven = {0, 0, 2, 2}, kUneven = {0, 0, 0, 3};

struct JobOptions {
  std::vector<int> nodes = kEven;
  std::set<int> devices = {0, 1, 2, 3};  // the ranks whose gradients are on one
  std::set<int> linked = {0, 1, 2, 3};   // those with nccl=on
  Dtype dtype = Dtype::kFloat32;
  double timeout_s = 20;
};

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options),
        factory_(testing::MakeInprocFactory({.nodes = options.nodes})),
        world_({.world = Size(),
                .transport = "inproc",
                .operation_timeout_s = options.timeout_s,
                .factory = factory_.get(),
                .operation_timeout_floor_s = options.timeout_s,
                .compare_every_steps = 2,
                .job = "node devices",
                .adjust = [this](int rank, SessionOptions* session) {
                  session->device = *cuda::FindDevice(0);
                  session->link_devices = options_.linked.contains(rank);
                  session->connect_timeout = FromSeconds(options_.timeout_s);
                }}) {}

  int Size() const { return static_cast<int>(options_.nodes.size()); }

  Job& Up() {
    world_.Up();
    key_ = world_.Define({{"matrix", 2560, 64}, {"vector", kElements - 2560}}, options_.dtype);
    return *this;
  }

  void Switch(const Choice& choice) {
    const Plan plan = UniformPlan(++version_, choice);
    for (auto& session : world_.sessions) session->OnCommand(PlanOffer{plan.version, "n", plan});
    for (auto& port : world_.ports) {
      ASSERT_FALSE(port->All<PlanAck>().empty()) << port->All<PlanNack>().back().reason;
      ASSERT_EQ(port->All<PlanAck>().back().version, plan.version);
    }
    world_.sessions[0]->OnCommand(PlanArm{plan.version});
  }

  /// Begins a step on all ranks but `absent`.
  std::vector<DeviceGradient> Begin(const std::vector<std::vector<float>>& gradients,
                                    int absent = -1) {
    std::vector<DeviceGradient> buckets;
    for (int rank = 0; rank < Size(); ++rank) {
      buckets.emplace_back(BytesOf(gradients[rank], options_.dtype),
                           options_.devices.contains(rank));
    }
    for (int rank = 0; rank < Size(); ++rank) {
      EXPECT_TRUE(world_.sessions[rank]->BeginStep().ok());
      if (rank == absent) continue;
      const Status queued = world_.sessions[rank]->AllReduce(key_, buckets[rank].data(), 0.3,
                                                             nullptr, buckets[rank].place());
      EXPECT_TRUE(queued.ok()) << ToString(queued);
    }
    return buckets;
  }

  /// Runs a step and returns what the ranks got, which is the same on all.
  std::vector<std::byte> Step(const std::vector<std::vector<float>>& gradients,
                              bool* skipped = nullptr) {
    std::vector<DeviceGradient> buckets = Begin(gradients);
    const bool was_skipped = world_.End();
    if (skipped != nullptr) *skipped = was_skipped;
    const std::vector<std::byte> first = buckets[0].Take();
    for (int rank = 1; rank < Size(); ++rank) {
      EXPECT_TRUE(buckets[rank].Take() == first) << "rank " << rank;
    }
    return first;
  }

  /// Where the last step's bucket was encoded on this rank.
  EncodedOn Place(int rank) {
    world_.Begin();
    const auto sample = world_.ports[rank]->All<StepReport>().back().buckets.at(0);
    world_.End();
    return sample.encoded_on;
  }

  void SetDevices(std::set<int> devices) { options_.devices = std::move(devices); }
  SessionWorld& world() { return world_; }
  uint64_t key() const { return key_; }

 private:
  JobOptions options_;
  const std::unique_ptr<TransportFactory> factory_;
  SessionWorld world_;
  uint64_t key_ = 0;
  uint64_t version_ = 0;
};

class NodeDevicesTest : public ::testing::Test {
 protected:
  NodeDevicesTest() {
    nccl_.await = [](void* stream, std::function<bool()> is_done) {
      cuda::AwaitOnHost({stream}, std::move(is_done));
    };
    EXPECT_TRUE(testing::UseFakeNccl(WEIR_FAKE_NCCL, &nccl_));
  }
  ~NodeDevicesTest() override { testing::UseFakeNccl(WEIR_FAKE_NCCL, nullptr); }
  void SetUp() override {
    if (!testing::OnHost()) GTEST_SKIP() << "the library stands in for the host's devices only";
  }

  FakeNccl nccl_;
};

std::vector<std::vector<float>> GradientsOf(int step, int world) {
  auto gradients = RandomGradients(world, kElements, 100 + static_cast<uint64_t>(step));
  for (auto& gradient : gradients) {
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= i % 7 == 0 ? 10.0f : 0.1f;
  }
  return gradients;
}

/// Choices between which residuals and aggregate residuals of every kind are passed on.
std::vector<Choice> Choices() {
  return {{.codec = "top_k", .collective = "node_shards", .ratio = 0.05},
          {.codec = "minmax", .collective = "node_shards"},
          {.codec = "top_k", .collective = "sparse_all_gather", .ratio = 0.05},
          {.codec = "top_k", .collective = "node_sums", .ratio = 0.1},
          {.codec = "top_k", .collective = "reencode", .ratio = 0.1},
          {.codec = "ef_signsgd", .collective = "node_shards"},
          {.codec = "dgc", .collective = "sparse_all_gather", .ratio = 0.1},
          {.codec = "natural", .collective = "node_sums"},
          {.codec = "qsgd", .collective = "ring"},
          {.codec = "top_k", .collective = "node_shards", .ratio = 0.1, .bits = 4},
          {.codec = "identity", .collective = "ring"}};
}

void ExpectSameBits(const std::vector<JobOptions>& others, const JobOptions& reference) {
  Job expected(reference);
  expected.Up();
  std::vector<std::unique_ptr<Job>> jobs;
  for (const JobOptions& options : others) jobs.push_back(std::make_unique<Job>(options));
  for (auto& job : jobs) job->Up();
  int step = 0;
  for (const Choice& choice : Choices()) {
    SCOPED_TRACE(StrCat(choice.codec, " over ", choice.collective));
    expected.Switch(choice);
    for (auto& job : jobs) job->Switch(choice);
    for (int i = 0; i < 3; ++i, ++step) {
      const auto gradients = GradientsOf(step, expected.Size());
      const auto sum = expected.Step(gradients);
      for (auto& job : jobs) {
        ASSERT_TRUE(job->Step(gradients) == sum) << "step " << step << ", job " << &job - &jobs[0];
      }
    }
    for (int rank = 0; rank < expected.Size(); ++rank) {
      for (auto& job : jobs) {
        ASSERT_TRUE(job->world().ExportResiduals(rank) == expected.world().ExportResiduals(rank))
            << "rank " << rank << ", job " << &job - &jobs[0];
      }
    }
  }
}

TEST_F(NodeDevicesTest, EveryWayGivesTheBitsOfTheHostWhileThePlanChanges) {
  for (const std::vector<int>& nodes : {kEven, kUneven}) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBrain16}) {
      if (nodes == kUneven && dtype == Dtype::kBrain16) continue;
      SCOPED_TRACE(StrCat("nodes ", nodes[2], ", ", DtypeBytes(dtype), " bytes"));
      const JobOptions linked{.nodes = nodes, .dtype = dtype};
      // Where some are linked, the other node's elements go through the host's memory.
      JobOptions mixed = linked, some_linked = linked, host = linked;
      mixed.devices = {0, 1, 3};
      some_linked.linked = {0, 1, 2};
      host.devices = host.linked = {};
      nccl_.exchanges = 0;
      ExpectSameBits({linked, mixed, some_linked}, host);
      EXPECT_GT(nccl_.exchanges, 0);
    }
  }
}

TEST_F(NodeDevicesTest, PayloadsAreEncodedOnTheDeviceWithAndWithoutAGroup) {
  for (const bool linked : {true, false}) {
    JobOptions options;
    if (!linked) options.linked = {};
    Job job(options);
    job.Up();
    for (const Choice& choice : Choices()) {
      if (!choice.collective.starts_with("node_")) continue;
      SCOPED_TRACE(StrCat(choice.codec, " over ", choice.collective));
      job.Switch(choice);
      nccl_.exchanges = 0;
      for (int step = 0; step < 3; ++step) job.Step(GradientsOf(step, 4));
      EXPECT_EQ(nccl_.exchanges > 0, linked);
      EXPECT_EQ(job.Place(1), EncodedOn::kDevice);
    }
  }
}

TEST_F(NodeDevicesTest, AGradientOnTheHostSendsItsNodeThroughTheHost) {
  Job job({}), host({.devices = {}, .linked = {}});
  for (Job* const each : {&job, &host}) {
    each->Up().Switch({.codec = "top_k", .collective = "node_shards", .ratio = 0.05});
  }
  int step = 0;
  const std::vector<std::set<int>> turns = {{0, 1, 2, 3}, {0, 2, 3}, {0, 1, 2, 3}, {1}, {}};
  for (const std::set<int>& devices : turns) {
    job.SetDevices(devices);
    nccl_.exchanges = 0;
    for (int i = 0; i < 2; ++i, ++step) {
      const auto gradients = GradientsOf(step, 4);
      ASSERT_TRUE(job.Step(gradients) == host.Step(gradients)) << step;
    }
    // Both rounds of both nodes, or of one.
    EXPECT_EQ(nccl_.exchanges > 0, devices.contains(2)) << step;
  }
}

TEST_F(NodeDevicesTest, NanSkipsTheStepAndKeepsTheResiduals) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16}) {
    Job job({.dtype = dtype});
    job.Up().Switch({.codec = "top_k", .collective = "node_shards", .ratio = 0.05});
    for (int step = 0; step < 3; ++step) job.Step(GradientsOf(step, 4));
    std::vector<std::vector<std::byte>> before;
    for (int rank = 0; rank < 4; ++rank) before.push_back(job.world().ExportResiduals(rank));
    auto gradients = GradientsOf(3, 4);
    gradients[1][17] = std::numeric_limits<float>::quiet_NaN();
    bool skipped = false;
    const auto got = job.Step(gradients, &skipped);
    EXPECT_TRUE(skipped);
    const std::vector<float> nan(kElements, std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(got == BytesOf(nan, dtype));
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(before[rank] == job.world().ExportResiduals(rank)) << rank;
    }
  }
}

/// Ends the step on all ranks, which fail within `seconds`, and returns their errors.
std::vector<std::string> Failures(Job& job, double seconds) {
  const TimePoint begin = RealClock().Now();
  std::vector<std::string> errors(job.world().sessions.size());
  testing::RunRanks(job.Size(), [&](int rank) {
    const StatusOr<bool> ended = job.world().sessions[rank]->EndStep();
    if (!ended.ok()) errors[rank] = ToString(ended.status());
  });
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), seconds);
  return errors;
}

TEST_F(NodeDevicesTest, ALostRankEndsWhatItsNodeWaitsFor) {
  Job job({});
  job.Up().Switch({.codec = "top_k", .collective = "node_shards", .ratio = 0.05});
  job.Step(GradientsOf(0, 4));
  job.Step(GradientsOf(1, 4));
  nccl_.stuck = true;  // so that all wait for devices
  auto buckets = job.Begin(GradientsOf(2, 4));
  job.world().sessions[1]->Close();
  const auto errors = Failures(job, 10);
  for (const int rank : {0, 2, 3}) EXPECT_THAT(errors[rank], HasSubstr("rank 1")) << rank;
  job.world().Close();
  EXPECT_EQ(nccl_.aborts, 4) << "nobody uses the memory any more";
}

/// Ranks 0 and 1 go on without the others, in a mesh of their own.
class Survivors {
 public:
  explicit Survivors(Job& job) : factory_(testing::MakeInprocFactory({.nodes = {0, 0}})) {
    for (int rank = 0; rank < 2; ++rank) {
      Session& former = *job.world().sessions[rank];
      former.Close();
      SessionOptions options = former.options();
      options.world = 2;
      options.epoch = 1;
      TransportOptions transport;
      transport.rank = rank;
      transport.world = 2;
      SessionParts parts;
      parts.transport = *factory_->Create(transport);
      parts.former = &former;
      auto made = Session::Create(options, std::move(parts));
      EXPECT_TRUE(made.ok()) << ToString(made.status());
      sessions_.push_back(*std::move(made));
    }
    std::vector<TransportAddress> addresses;
    for (const auto& session : sessions_) addresses.push_back(session->address());
    testing::RunRanks(2, [&](int rank) {
      const Status status = sessions_[rank]->Connect(addresses);
      EXPECT_TRUE(status.ok()) << ToString(status);
    });
  }
  ~Survivors() {
    testing::RunRanks(2, [&](int rank) { sessions_[rank]->Close(); });
  }

  Session& session(int rank) { return *sessions_[rank]; }

  std::vector<std::byte> Step(uint64_t key, const std::vector<std::vector<float>>& gradients,
                              bool on_device) {
    std::vector<DeviceGradient> buckets;
    for (int rank = 0; rank < 2; ++rank) {
      buckets.emplace_back(BytesOf(gradients[rank], Dtype::kFloat32), on_device);
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(sessions_[rank]->BeginStep().ok());
      EXPECT_TRUE(sessions_[rank]
                      ->AllReduce(key, buckets[rank].data(), 0.5, nullptr, buckets[rank].place())
                      .ok());
    }
    for (const auto& session : sessions_) EXPECT_TRUE(session->EndStep().ok());
    const std::vector<std::byte> first = buckets[0].Take();
    EXPECT_TRUE(buckets[1].Take() == first);
    return first;
  }

 private:
  const std::unique_ptr<TransportFactory> factory_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

TEST_F(NodeDevicesTest, AMeshThatFormsAgainFormsItsGroupsAgain) {
  Job job({}), host({.devices = {}, .linked = {}});
  for (Job* const each : {&job, &host}) {
    each->Up().Switch({.codec = "top_k", .collective = "node_shards", .ratio = 0.05});
    for (int step = 0; step < 3; ++step) each->Step(GradientsOf(step, 4));
    auto buckets = each->Begin(GradientsOf(3, 4), 3);
    each->world().sessions[3]->Close();
    for (const std::string& error : Failures(*each, 10)) {
      EXPECT_THAT(error, AnyOf("", HasSubstr("rank 3"), HasSubstr("ended"))) << error;
    }
  }
  Survivors survivors(job), expected(host);
  nccl_.exchanges = 0;
  for (int step = 4; step < 7; ++step) {
    const auto gradients = GradientsOf(step, 2);
    ASSERT_TRUE(survivors.Step(job.key(), gradients, true) ==
                expected.Step(host.key(), gradients, false))
        << step;
  }
  EXPECT_GT(nccl_.exchanges, 0);
}

TEST_F(NodeDevicesTest, AMeshThatFormedAgainDoesNotWaitForAGradientWhenItCloses) {
  if (!testing::OnHost()) GTEST_SKIP() << "the stream would end";
  Job job({});
  job.Up();
  job.Step(GradientsOf(0, 4));
  auto buckets = job.Begin(GradientsOf(1, 4), 3);
  job.world().sessions[3]->Close();
  Failures(job, 10);
  Survivors survivors(job);
  DeviceGradient late(BytesOf(GradientsOf(2, 1)[0], Dtype::kFloat32), true);
  for (int i = 0; i < 200000; ++i) {  // each question does one of them
    ASSERT_TRUE(cuda::FillDevice(late.data(), 0, 1, late.stream()).ok());
  }
  Session& session = survivors.session(0);
  ASSERT_TRUE(session.BeginStep().ok());
  ASSERT_TRUE(session.AllReduce(job.key(), late.data(), 0.5, nullptr, late.place()).ok());
  const TimePoint begin = RealClock().Now();
  session.Close();
  EXPECT_LT(ToSeconds(RealClock().Now() - begin), 5);
}

TEST_F(NodeDevicesTest, DevicesThatDoNotMoveMeetTheDeadline) {
  Job job({.timeout_s = 1});
  job.Up().Switch({.codec = "top_k", .collective = "node_shards", .ratio = 0.05});
  job.Step(GradientsOf(0, 4));
  job.Step(GradientsOf(1, 4));
  nccl_.stuck = true;
  auto buckets = job.Begin(GradientsOf(2, 4));
  for (const std::string& error : Failures(job, 15)) {
    EXPECT_THAT(error, HasSubstr("have not moved its elements in time"));
  }
}

TEST_F(NodeDevicesTest, AnErrorOfNcclEndsTheJobAndIsTold) {
  Job job({});
  job.Up().Switch({.codec = "top_k", .collective = "node_shards", .ratio = 0.05});
  job.Step(GradientsOf(0, 4));
  job.Step(GradientsOf(1, 4));
  nccl_.stuck = true;
  auto buckets = job.Begin(GradientsOf(2, 4));
  nccl_.fails = true;
  for (const std::string& error : Failures(job, 15)) {
    EXPECT_THAT(error, HasSubstr("network error; fake detail"));
  }
}

TEST_F(NodeDevicesTest, ADeviceThatCannotJoinFailsAllRanks) {
  nccl_.refuses_place = 1;
  Job job({});
  for (const Status& status : job.world().Connect()) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(ToString(status),
                HasSubstr("nccl=on: NCCL: ncclCommInitRankConfig: invalid usage"));
  }
}

TEST_F(NodeDevicesTest, AnEndlessJoinMeetsTheDeadline) {
  nccl_.refuses_place = 1;
  Job job({.nodes = {0, 0}, .timeout_s = 1});
  // Its peer gives up by itself.
  const auto statuses = job.world().Connect();
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_FALSE(statuses[1].ok());
}

TEST_F(NodeDevicesTest, TheOptionNeedsADevice) {
  SessionOptions options;
  options.job = "j";
  options.transport = "auto:nccl=on";
  const auto made = Session::Create(options);
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ToString(made.status()), HasSubstr("gradient_device"));
  options.device = *cuda::FindDevice(0);
  EXPECT_TRUE(Session::Create(options).ok());
}

TEST_F(NodeDevicesTest, ARankAloneOnItsNodeNeedsNoGroup) {
  nccl_.fails = true;
  Job job({.nodes = {0, 1}});
  job.Up().Switch({.codec = "top_k", .collective = "node_shards", .ratio = 0.05});
  for (int step = 0; step < 3; ++step) job.Step(GradientsOf(step, 2));
  EXPECT_EQ(nccl_.exchanges, 0);
}

}  // namespace
}  // namespace weir::node_devices
