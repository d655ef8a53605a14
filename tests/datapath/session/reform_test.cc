// SPDX-License-Identifier: Apache-2.0
// Jobs whose mesh fails and that continue in another one, with fewer ranks or a replacement.

#include <gmock/gmock.h>

#include "tests/datapath/session/session_world.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kReformElements = 600;

Plan SparsePlan(uint64_t version) {
  Choice choice;
  choice.codec = "top_k";
  choice.collective = "sparse_all_gather";
  choice.ratio = 0.1;
  return UniformPlan(version, choice);
}

/// A place in the next mesh: the former session that continues there, or a newcomer.
struct Seat {
  Session* former = nullptr;
};

class ReformTest : public ::testing::Test {
 protected:
  using Mesh = std::vector<std::unique_ptr<Session>>;

  ReformTest() : world_(WorldOptions{.world = 3}) { world_.Up(); }

  Session& old(int rank) { return *world_.sessions[rank]; }

  StatusOr<std::unique_ptr<Session>> Sit(Seat seat, int rank, int world, uint64_t epoch) {
    SessionOptions options = old(0).options();
    options.epoch = epoch;
    options.rank = rank;
    options.world = world;
    options.connect_timeout = connect_timeout_;
    SessionParts parts;
    parts.former = seat.former;
    if (seat.former != nullptr) seat.former->Close();
    return Session::Create(options, std::move(parts));
  }

  /// Ranks of the next mesh in order of `seats`, not yet connected.
  Mesh SitAll(const std::vector<Seat>& seats, uint64_t epoch) {
    Mesh mesh;
    for (size_t rank = 0; rank < seats.size(); ++rank) {
      auto made = Sit(seats[rank], static_cast<int>(rank), static_cast<int>(seats.size()), epoch);
      EXPECT_TRUE(made.ok()) << ToString(made.status());
      mesh.push_back(std::move(made).value());
    }
    return mesh;
  }

  static std::vector<Status> ConnectAll(Mesh& mesh) {
    std::vector<TransportAddress> addresses;
    for (const auto& session : mesh) addresses.push_back(session->address());
    std::vector<Status> statuses(mesh.size());
    RunRanks(static_cast<int>(mesh.size()),
             [&](int rank) { statuses[rank] = mesh[rank]->Connect(addresses); });
    return statuses;
  }

  Mesh Reform(const std::vector<Seat>& seats, uint64_t epoch = 1) {
    Mesh mesh = SitAll(seats, epoch);
    for (const Status& status : ConnectAll(mesh)) EXPECT_TRUE(status.ok()) << ToString(status);
    return mesh;
  }

  /// Runs one step of `mesh` and returns the sums that were delivered to rank 0.
  static std::vector<float> Step(Mesh& mesh, uint64_t key, std::vector<std::vector<float>> data) {
    for (auto& session : mesh) EXPECT_TRUE(session->BeginStep().ok());
    for (size_t r = 0; r < mesh.size(); ++r) {
      EXPECT_TRUE(mesh[r]->AllReduce(key, data[r].data(), 1, nullptr).ok());
    }
    for (auto& session : mesh) {
      const auto ended = session->EndStep();
      EXPECT_TRUE(ended.ok()) << ToString(ended.status());
    }
    for (const auto& each : data) EXPECT_EQ(each, data[0]);
    return data[0];
  }

  static std::vector<std::byte> Residuals(Session& session) {
    std::vector<std::byte> bytes(session.ExportBytes().value());
    EXPECT_TRUE(session.ExportState(bytes).ok());
    ResidualStore store;  // without the states of codecs
    EXPECT_TRUE(store.Import(bytes).ok());
    bytes.resize(store.ExportBytes());
    EXPECT_TRUE(store.Export(bytes).ok());
    return bytes;
  }

  /// The residual of a session, flushed from a store that imports its state.
  static std::vector<float> ResidualOf(Session& session) {
    const std::vector<std::byte> bytes = Residuals(session);
    ResidualStore store;
    EXPECT_TRUE(store.Import(bytes).ok());
    EXPECT_TRUE(store.Define(1, {{"w", kReformElements}}).ok());
    std::vector<float> residual(kReformElements);
    EXPECT_TRUE(store.Flush(1, residual).ok());
    return residual;
  }

  static void Close(Mesh& mesh) {
    RunRanks(static_cast<int>(mesh.size()), [&](int rank) { mesh[rank]->Close(); });
  }

  /// Runs some steps under a sparse plan, so that there are residuals.
  uint64_t Train() {
    const uint64_t key = world_.Define({{"w", kReformElements}});
    world_.Switch(SparsePlan(1), key, kReformElements);
    for (uint64_t step = 0; step < 3; ++step) {
      auto data = RandomGradients(3, kReformElements, 10 + step);
      world_.Begin();
      world_.AllReduce(key, data);
      world_.End();
    }
    return key;
  }

  SessionWorld world_;
  Duration connect_timeout_ = std::chrono::seconds(20);
};

TEST_F(ReformTest, SurvivorsGoOnWithoutLosingOrRepeatingAnything) {
  const uint64_t key = Train();
  // Rank 1 dies in the middle of step 4, which ranks 0 and 2 have encoded.
  auto data = RandomGradients(3, kReformElements, 20);
  for (int rank : {0, 2}) {
    ASSERT_TRUE(old(rank).BeginStep().ok());
    ASSERT_TRUE(old(rank).AllReduce(key, data[rank].data(), 1, nullptr).ok());
  }
  ASSERT_TRUE(old(1).BeginStep().ok());
  old(1).Close();
  for (int rank : {0, 2}) EXPECT_FALSE(old(rank).EndStep().ok());

  Mesh mesh = Reform({{&old(0)}, {&old(2)}});
  for (size_t rank = 0; rank < mesh.size(); ++rank) {
    const SessionStats stats = mesh[rank]->Stats();
    EXPECT_EQ(stats.next_step, 4u);
    EXPECT_EQ(stats.epoch, 1u);
    EXPECT_EQ(stats.model_source, 0);
    EXPECT_EQ(stats.plan_version, 1u);
    EXPECT_EQ(mesh[rank]->options().rank, static_cast<int>(rank));
    EXPECT_GT(Residuals(*mesh[rank]).size(), kReformElements * sizeof(float));
  }
  // The step is repeated; the sum, the residuals after it and those before it must balance.
  const std::vector<float> first = ResidualOf(*mesh[0]), second = ResidualOf(*mesh[1]);
  const auto again = RandomGradients(2, kReformElements, 30);
  const std::vector<float> sum = Step(mesh, key, again);
  const std::vector<float> left = ResidualOf(*mesh[0]), left2 = ResidualOf(*mesh[1]);
  for (size_t i = 0; i < kReformElements; ++i) {
    ASSERT_NEAR(sum[i] + left[i] + left2[i], again[0][i] + again[1][i] + first[i] + second[i],
                1e-4);
  }
  EXPECT_EQ(mesh[0]->Stats().step, 4u);
  Close(mesh);
}

TEST_F(ReformTest, ResidualsOfTheVoidStepAreThoseBeforeIt) {
  const uint64_t key = Train();
  const auto before0 = world_.ExportResiduals(0), before2 = world_.ExportResiduals(2);
  auto data = RandomGradients(3, kReformElements, 20);
  for (int rank : {0, 2}) {
    ASSERT_TRUE(old(rank).BeginStep().ok());
    ASSERT_TRUE(old(rank).AllReduce(key, data[rank].data(), 1, nullptr).ok());
  }
  old(1).Close();
  Mesh mesh = Reform({{&old(2)}, {&old(0)}});  // within the step, and in another order
  EXPECT_EQ(Residuals(*mesh[0]), before2);
  EXPECT_EQ(Residuals(*mesh[1]), before0);
  Close(mesh);
}

// Rank 0 has completed step 4 and encoded in step 5 already; rank 2 has not completed step 4.
TEST_F(ReformTest, ARankThatCompletedTheVoidStepGoesBack) {
  const uint64_t key = Train();
  const auto before0 = world_.ExportResiduals(0), before2 = world_.ExportResiduals(2);
  auto data = RandomGradients(3, kReformElements, 20);
  world_.Begin();
  world_.AllReduce(key, data);
  ASSERT_TRUE(old(0).EndStep().ok());
  EXPECT_NE(world_.ExportResiduals(0), before0);
  auto next = RandomGradients(1, kReformElements, 21);
  ASSERT_TRUE(old(0).BeginStep().ok());
  ASSERT_TRUE(old(0).AllReduce(key, next[0].data(), 1, nullptr).ok());
  old(1).Close();

  Mesh mesh = Reform({{&old(0)}, {&old(2)}});
  EXPECT_EQ(mesh[0]->Stats().next_step, 4u);
  EXPECT_EQ(mesh[1]->Stats().next_step, 4u);
  EXPECT_EQ(mesh[0]->Stats().model_source, 1);
  EXPECT_EQ(mesh[1]->Stats().model_source, 1);
  EXPECT_EQ(Residuals(*mesh[0]), before0);
  EXPECT_EQ(Residuals(*mesh[1]), before2);
  Step(mesh, key, RandomGradients(2, kReformElements, 22));
  Close(mesh);
}

// The mesh fails again before any rank began a step, and the only rank that had not completed the
// former step is gone. Then that step is complete on all remaining ranks.
TEST_F(ReformTest, NobodyGoesBackBeforeTheCallerGoesOn) {
  const uint64_t key = Train();
  auto data = RandomGradients(3, kReformElements, 20);
  world_.Begin();
  world_.AllReduce(key, data);
  for (int rank : {0, 1}) ASSERT_TRUE(old(rank).EndStep().ok());
  const auto after0 = world_.ExportResiduals(0);
  Mesh mesh = Reform({{&old(0)}, {&old(1)}, {&old(2)}});
  EXPECT_EQ(mesh[0]->Stats().next_step, 4u);
  EXPECT_EQ(mesh[0]->Stats().model_source, 2);
  mesh[2]->Close();
  Mesh second = Reform({{mesh[0].get()}, {mesh[1].get()}}, 2);
  EXPECT_EQ(second[0]->Stats().next_step, 5u);
  EXPECT_EQ(second[0]->Stats().model_source, 0);
  EXPECT_EQ(Residuals(*second[0]), after0);
  Close(second);
}

TEST_F(ReformTest, AReplacementTakesTheNumberOfTheDeadAndThePlanOfTheOthers) {
  const uint64_t key = Train();
  const auto before0 = world_.ExportResiduals(0);
  old(1).Close();
  Mesh mesh = Reform({{&old(0)}, {nullptr}, {&old(2)}});
  ASSERT_EQ(mesh[1]->DefineBucket({{"w", kReformElements}}, Dtype::kFloat32).value_or(0), key);
  for (auto& session : mesh) {
    EXPECT_EQ(session->Stats().next_step, 4u);
    EXPECT_EQ(session->Stats().model_source, 0);
    EXPECT_EQ(session->Stats().plan_version, 1u);
  }
  EXPECT_EQ(Residuals(*mesh[0]), before0);
  for (uint64_t step = 0; step < 3; ++step) {
    Step(mesh, key, RandomGradients(3, kReformElements, 40 + step));
  }
  // It is a survivor like the others from then on.
  mesh[0]->Close();
  Mesh second = Reform({{mesh[1].get()}, {mesh[2].get()}}, 2);
  EXPECT_EQ(second[0]->Stats().next_step, 7u);
  EXPECT_EQ(second[0]->Stats().plan_version, 1u);
  Step(second, key, RandomGradients(2, kReformElements, 50));
  Close(second);
}

TEST_F(ReformTest, AFailedAttemptLosesNothing) {
  const uint64_t key = Train();
  const auto before0 = world_.ExportResiduals(0);
  old(1).Close();
  {
    Mesh mesh = SitAll({{&old(0)}, {&old(2)}}, 1);
    const std::vector<TransportAddress> none = {mesh[0]->address()};
    EXPECT_EQ(mesh[0]->Connect(none).code(), StatusCode::kInvalidArgument);
    world_.sessions[0] = std::move(mesh[0]);
    world_.sessions[2] = std::move(mesh[1]);
  }
  Mesh mesh = Reform({{&old(0)}, {&old(2)}}, 2);
  EXPECT_EQ(Residuals(*mesh[0]), before0);
  EXPECT_EQ(mesh[0]->Stats().next_step, 4u);
  Step(mesh, key, RandomGradients(2, kReformElements, 22));
  Close(mesh);
}

TEST_F(ReformTest, AnAddressInUseIsNamedAndTheSessionKeepsWhatItHolds) {
  Train();
  const auto before0 = world_.ExportResiduals(0);
  old(0).Close();
  TransportOptions holder;
  auto port = Transports().Find("tcp").value()->Create(holder).value();
  SessionOptions options = old(0).options();
  options.epoch = 1;
  options.listen = port->address();
  SessionParts parts;
  parts.former = &old(0);
  const auto made = Session::Create(options, std::move(parts));
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(ToString(made.status()), HasSubstr(port->address()));
  EXPECT_EQ(world_.ExportResiduals(0), before0);
}

TEST_F(ReformTest, RanksOfAnotherEpochAreRefused) {
  connect_timeout_ = std::chrono::milliseconds(500);
  Train();
  Mesh mesh;
  for (int rank = 0; rank < 2; ++rank) {
    mesh.push_back(Sit({&old(rank)}, rank, 2, 1 + static_cast<uint64_t>(rank)).value());
  }
  const std::vector<Status> statuses = ConnectAll(mesh);
  EXPECT_EQ(statuses[1].code(), StatusCode::kFailedPrecondition) << ToString(statuses[1]);
  EXPECT_THAT(ToString(statuses[1]), HasSubstr("refused rank 1"));
  EXPECT_THAT(ToString(statuses[1]), HasSubstr("epoch 2"));
  EXPECT_EQ(statuses[0].code(), StatusCode::kDeadlineExceeded) << ToString(statuses[0]);
}

TEST_F(ReformTest, NewcomersAloneHaveNothingToGoOnFrom) {
  Mesh mesh = SitAll({{nullptr}, {nullptr}}, 3);
  for (const Status& status : ConnectAll(mesh)) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << ToString(status);
  }
}

TEST_F(ReformTest, AJobWhoseFirstMeshNeverCameToBeBeginsInTheNextEpoch) {
  // Each of two ranks waits for the other, which was told another address.
  connect_timeout_ = std::chrono::milliseconds(200);
  Mesh first = SitAll({{nullptr}, {nullptr}}, 0);
  RunRanks(2, [&](int rank) {
    const std::vector<TransportAddress> both(2, first[static_cast<size_t>(rank)]->address());
    EXPECT_FALSE(first[static_cast<size_t>(rank)]->Connect(both).ok());
  });
  connect_timeout_ = std::chrono::seconds(20);
  Mesh mesh = SitAll({{nullptr}, {first[0].get()}, {first[1].get()}}, 1);
  for (const Status& status : ConnectAll(mesh)) EXPECT_TRUE(status.ok()) << ToString(status);
  for (const auto& session : mesh) {
    EXPECT_EQ(session->Stats().next_step, 0u);
    EXPECT_EQ(session->Stats().model_source, 1) << "not the newcomer's";
  }
  Close(mesh);
}

TEST_F(ReformTest, WhoNeverBeganDoesNotHoldBackThoseWhoDid) {
  Train();
  connect_timeout_ = std::chrono::milliseconds(200);
  Mesh late = SitAll({{nullptr}, {nullptr}}, 0);
  EXPECT_FALSE(late[0]->Connect({late[0]->address(), late[0]->address()}).ok());
  connect_timeout_ = std::chrono::seconds(20);
  Mesh mesh = Reform({{late[0].get()}, {&old(1)}, {&old(2)}});
  EXPECT_EQ(mesh[0]->Stats().next_step, old(1).Stats().next_step);
  EXPECT_EQ(mesh[0]->Stats().model_source, 1);
  Close(mesh);
}

TEST_F(ReformTest, TheGreetingNamesEpochRankAndWorld) {
  Train();
  EXPECT_EQ(EncodeRankMessage(old(2).Greeting()[0]).find("epoch"), std::string::npos);
  old(0).Close();
  Mesh mesh = Reform({{&old(1)}, {&old(2)}}, 7);
  const auto hello = std::get<RankHello>(mesh[1]->Greeting()[0]);
  EXPECT_EQ(hello.epoch, 7u);
  EXPECT_EQ(hello.rank, 1);
  EXPECT_EQ(hello.world, 2);
  EXPECT_EQ(hello.active_plan_version, 1u);
  EXPECT_THAT(EncodeRankMessage(hello), HasSubstr("\"epoch\":7,"));
  EXPECT_EQ(mesh[1]->Greeting().size(), 2u) << "the buckets are told, too";
  Close(mesh);
}

TEST_F(ReformTest, APlanThatTheNewWorldCannotRunBecomesDense) {
  const uint64_t key = world_.Define({{"w", kReformElements}});
  Choice choice;
  choice.codec = "thc_uniform";
  choice.collective = "ring";
  choice.bits = 4;  // sums of up to 7 ranks
  world_.Switch(UniformPlan(1, choice), key, kReformElements);
  world_.Begin();
  auto zeros = RandomGradients(3, kReformElements, 1);
  world_.AllReduce(key, zeros);
  world_.End();
  ASSERT_EQ(old(2).Stats().plan_version, 1u);
  std::vector<Seat> seats(8);
  for (int rank = 0; rank < 3; ++rank) seats[static_cast<size_t>(rank)].former = &old(rank);
  Mesh mesh = Reform(seats);
  for (auto& session : mesh) {
    EXPECT_EQ(session->Stats().plan_version, 0u);
    EXPECT_EQ(session->DefineBucket({{"w", kReformElements}}, Dtype::kFloat32).value_or(0), key);
  }
  Step(mesh, key, RandomGradients(8, kReformElements, 2));
  Close(mesh);
}

TEST_F(ReformTest, OneRankAloneGoesOn) {
  const uint64_t key = Train();
  old(0).Close();
  old(1).Close();
  Mesh mesh = Reform({{&old(2)}});
  Step(mesh, key, RandomGradients(1, kReformElements, 22));
  Close(mesh);
}

}  // namespace
}  // namespace weir::testing
