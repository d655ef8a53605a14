// SPDX-License-Identifier: Apache-2.0
// Sessions whose plan sends their gradients through a real aggregator on loopback.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "datapath/aggregation/io/address.h"
#include "datapath/aggregation/io/server.h"
#include "tests/datapath/session/session_world.h"

namespace weir {
namespace {

using aggregation::AggregatorServer;
using ::testing::HasSubstr;
using testing::RandomGradients;
using testing::SessionWorld;
using testing::SumOver;
using testing::UniformPlan;

constexpr size_t kFloats = 5003;

std::unique_ptr<AggregatorServer> StartServer(double drop = 0) {
  auto server = AggregatorServer::Start({.buffer_bytes = 1 << 20, .drop = drop});
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? std::move(*server) : nullptr;
}

/// The addresses at which the ranks tell their agents that they await aggregators.
std::vector<std::string> PortsOf(SessionWorld& job) {
  std::vector<std::string> ports;
  for (const auto& session : job.sessions) {
    const auto greeting = session->Greeting();
    ports.push_back(std::get<RankHello>(greeting.front()).aggregation_address);
  }
  return ports;
}

/// Requests a lease for the ranks' addresses, as a controller would.
AggregatorLease Granted(AggregatorServer& server, const std::vector<std::string>& ports,
                        const std::string& collective = "switchml", int bits = 8) {
  aggregation::LeaseRequest request;
  request.owner = "owner-of-the-test";  // this owner may request the next epoch
  request.job = "job";
  request.terms.mode = aggregation::PacketMode::kSum;
  if (collective == "omnireduce") {
    request.terms.mode = aggregation::PacketMode::kSparse;
    request.terms.lanes = 64;
    request.terms.columns = 4;
  }
  if (collective == "thc_table") {
    const CodecTraits& thc = (*Codecs().Find("thc"))->Traits();
    const CodecSetting* setting = FindSetting(thc, {.bits = bits}, static_cast<int>(ports.size()));
    request.terms.mode = aggregation::PacketMode::kTable;
    request.terms.sum_bits = bits;
    request.terms.lanes = static_cast<uint16_t>(8192 / bits);
    request.terms.levels = setting->lane_levels;
    request.terms.levels.resize(aggregation::kTableLevels, setting->lane_levels.back());
  }
  request.terms.workers = static_cast<int>(ports.size());
  request.terms.slots = 8;
  for (const std::string& port : ports) {
    const auto address = aggregation::ParseSourceAddress(port);
    EXPECT_TRUE(address.ok()) << address.status();
    request.workers.push_back(address.value_or(0));
  }
  const auto grant = server.Grant(request);
  EXPECT_TRUE(grant.ok()) << grant.status();
  if (!grant.ok()) return {};
  return {.collective = collective,
          .aggregator = "tor-1",
          .address = aggregation::AddressText(grant->address),
          .mode = std::string(ModeName(grant->lease.mode)),
          .id = grant->lease.id,
          .epoch = grant->lease.epoch,
          .cookie = grant->lease.cookie,
          .slots = grant->lease.slots,
          .lanes = grant->lease.lanes,
          .columns = grant->lease.columns,
          .sum_bits = static_cast<uint32_t>(grant->lease.sum_bits),
          .levels = grant->lease.levels};
}

Plan SwitchPlan(uint64_t version, const AggregatorLease& lease) {
  Plan plan = UniformPlan(version, DenseChoice());
  plan.fallback.collective = lease.collective;
  plan.leases[lease.collective] = lease;
  return plan;
}

/// The number of packets that the aggregator accepted.
uint64_t PacketsOf(AggregatorServer& server) {
  const auto shards = server.Shards();
  EXPECT_TRUE(shards.ok()) << shards.status();
  uint64_t received = 0;
  for (const auto& shard : *shards) received += shard.counters.port.received;
  return received;
}

class OffloadTest : public ::testing::Test {
 protected:
  /// Runs one step of small integers, which every collective sums exactly, and returns its
  /// duration. On each rank one of `every` runs of 64 elements is not zero.
  static double ExactStep(SessionWorld& job, uint64_t key, int step, int every = 1) {
    const int world = static_cast<int>(job.sessions.size());
    std::vector<std::vector<float>> data(world, std::vector<float>(kFloats));
    for (int r = 0; r < world; ++r) {
      for (size_t i = 0; i < kFloats; ++i) {
        if ((static_cast<int>(i / 64) + r + step) % every != 0) continue;
        data[r][i] = static_cast<float>(static_cast<int>((i * 7 + r * 13 + step) % 201) - 100);
      }
    }
    const auto sum = SumOver(data);
    const TimePoint before = RealClock().Now();
    job.Begin();
    job.AllReduce(key, data, 0.5);
    EXPECT_FALSE(job.End());
    const double took_s = ToSeconds(RealClock().Now() - before);
    for (int r = 0; r < world; ++r) {
      for (size_t i = 0; i < kFloats; ++i) {
        if (data[r][i] == static_cast<float>(sum[i] * 0.5)) continue;
        ADD_FAILURE() << "step " << step << " rank " << r << " element " << i;
        return took_s;
      }
    }
    return took_s;
  }

  static std::vector<RankEvent> FailuresTold(SessionWorld& job) {
    std::vector<RankEvent> told;
    for (const auto& port : job.ports) {
      for (const RankEvent& event : port->All<RankEvent>()) {
        if (event.kind == "offload_failed") told.push_back(event);
      }
    }
    return told;
  }
};

TEST_F(OffloadTest, GradientsAreSummedByTheAggregator) {
  for (const int world : {2, 3, 4}) {
    for (const double drop : {0.0, 0.05}) {
      SCOPED_TRACE(StrCat("world ", world, " drop ", drop));
      const auto server = StartServer(drop);
      SessionWorld job({.world = world});
      job.Up();
      const uint64_t key = job.Define({{"p", kFloats}});
      job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job))), key, kFloats);
      for (int step = 0; step < 4; ++step) {
        const uint64_t before = PacketsOf(*server);
        ExactStep(job, key, step);
        // 20 chunks and a window of 8 lead packets from each rank.
        EXPECT_GE(PacketsOf(*server) - before, static_cast<uint64_t>(28 * world)) << step;
      }
      EXPECT_TRUE(FailuresTold(job).empty()) << FailuresTold(job).front().detail;
    }
  }
}

TEST_F(OffloadTest, SumsAreEqualOnAllRanksAndWithinTheBoundOfTheGrid) {
  constexpr int kWorld = 3;
  constexpr size_t kLanes = 256;
  const auto server = StartServer();
  SessionWorld job({.world = kWorld});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job))), key, kFloats);
  auto data = RandomGradients(kWorld, kFloats, 4);
  for (size_t i = 0; i < kFloats; ++i) {  // chunks of unlike sizes
    for (auto& part : data) part[i] *= std::ldexp(1.0f, static_cast<int>(i / kLanes) - 10);
  }
  const auto sum = SumOver(data);
  std::vector<double> bound(kFloats);
  for (size_t at = 0; at < kFloats; at += kLanes) {
    const size_t end = std::min(kFloats, at + kLanes);
    double greatest = 0;
    for (const auto& part : data) {
      for (size_t i = at; i < end; ++i) greatest = std::max<double>(greatest, std::fabs(part[i]));
    }
    int e = 0;
    std::frexp(greatest, &e);  // greatest < 2^e
    const int k = 29;          // 3 * 2^29 < 2^31
    for (size_t i = at; i < end; ++i) {
      bound[i] = kWorld * std::ldexp(1.0, e - k - 1) + std::fabs(sum[i]) * 0x1p-24;
    }
  }
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_EQ(0, std::memcmp(data[0].data(), data[rank].data(), kFloats * 4)) << "rank " << rank;
  }
  for (size_t i = 0; i < kFloats; ++i) ASSERT_LE(std::fabs(data[0][i] - sum[i]), bound[i]) << i;
}

TEST_F(OffloadTest, NotANumberOnOneRankSkipsTheStepAndNothingElse) {
  const auto server = StartServer();
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job))), key, kFloats);
  auto data = RandomGradients(2, kFloats, 1);
  data[1][77] = std::numeric_limits<float>::quiet_NaN();
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_TRUE(job.End());
  EXPECT_TRUE(std::isnan(data[0][0]));
  const uint64_t before = PacketsOf(*server);
  ExactStep(job, key, 1);
  EXPECT_GT(PacketsOf(*server), before);
  EXPECT_TRUE(FailuresTold(job).empty());
}

TEST_F(OffloadTest, AnAggregatorThatStopsCostsOneWaitAndNoStep) {
  auto server = StartServer();
  SessionWorld job({.world = 3});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job))), key, kFloats);
  for (int step = 0; step < 3; ++step) ExactStep(job, key, step);
  server = nullptr;
  EXPECT_LT(ExactStep(job, key, 3), 5);  // it takes 0.5 s; the operation's time is 20 s
  double slowest_s = 0;
  for (int step = 4; step < 10; ++step) {
    slowest_s = std::max(slowest_s, ExactStep(job, key, step));
  }
  EXPECT_LT(slowest_s, 0.2);
  const auto reports = job.ports[0]->All<StepReport>();
  ASSERT_GE(reports.size(), 9u);
  EXPECT_EQ(reports[2].buckets[0].collective, "switchml");
  EXPECT_EQ(reports.back().buckets[0].collective, "ring");
  const auto told = FailuresTold(job);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0].detail, HasSubstr("'tor-1'"));
  EXPECT_THAT(told[0].detail, HasSubstr("nobody listens"));
  // Another plan with the same lease does not try again; another epoch does.
  server = StartServer();
  AggregatorLease lease = Granted(*server, PortsOf(job));
  job.Switch(SwitchPlan(2, job.sessions[0]->ActivePlan()->leases.at("switchml")), key, kFloats);
  EXPECT_LT(ExactStep(job, key, 10), 0.2);
  EXPECT_EQ(PacketsOf(*server), 0u);
  ++lease.cookie;  // wrong, so the aggregator stays silent
  job.Switch(SwitchPlan(3, lease), key, kFloats);
  ExactStep(job, key, 11);
  EXPECT_EQ(FailuresTold(job).size(), 2u);
  job.Switch(SwitchPlan(4, Granted(*server, PortsOf(job))), key, kFloats);
  const uint64_t before = PacketsOf(*server);
  ExactStep(job, key, 12);
  EXPECT_GT(PacketsOf(*server), before);
  EXPECT_EQ(FailuresTold(job).size(), 2u);
}

TEST_F(OffloadTest, BlocksOfAnyRankAreSummedByTheAggregator) {
  for (const int world : {2, 3, 4}) {
    for (const double drop : {0.0, 0.05}) {
      SCOPED_TRACE(StrCat("world ", world, " drop ", drop));
      const auto server = StartServer(drop);
      SessionWorld job({.world = world});
      job.Up();
      const uint64_t key = job.Define({{"p", kFloats}});
      job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job), "omnireduce")), key, kFloats);
      for (int step = 0; step < 6; ++step) {
        const uint64_t before = PacketsOf(*server);
        ExactStep(job, key, step, step % 2 == 0 ? 1 : 20);
        // 79 blocks, 4 to a packet; or at least one packet of every slot.
        EXPECT_GE(PacketsOf(*server) - before,
                  static_cast<uint64_t>((step % 2 == 0 ? 20 : 8) * world));
      }
      EXPECT_TRUE(FailuresTold(job).empty()) << FailuresTold(job).front().detail;
    }
  }
}

// Lanes that fixed-point numbers cannot hold are summed by the ranks themselves, once.
TEST_F(OffloadTest, SparseLanesThatAreNotFiniteDoNotEndTheLease) {
  const auto server = StartServer();
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job), "omnireduce")), key, kFloats);
  auto data = RandomGradients(2, kFloats, 1);
  data[1][77] = std::numeric_limits<float>::infinity();
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_TRUE(job.End());
  EXPECT_EQ(PacketsOf(*server), 0u);
  ExactStep(job, key, 1);
  EXPECT_GT(PacketsOf(*server), 0u);
  EXPECT_TRUE(FailuresTold(job).empty());
}

TEST_F(OffloadTest, SparseSumsAreWithinTheBoundOfTheGridAndEqual) {
  constexpr int kWorld = 3;
  const auto server = StartServer(0.02);
  SessionWorld job({.world = kWorld});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job), "omnireduce")), key, kFloats);
  auto data = RandomGradients(kWorld, kFloats, 4);
  double greatest = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    for (size_t i = 0; i < kFloats; ++i) {
      float& x = data[rank][i];
      // Blocks of one rank, of several and of none, some of negative zeros.
      if (i / 64 % 5 != static_cast<size_t>(rank) && i / 64 % 5 != 3) x = i % 2 == 0 ? 0.0f : -0.0f;
      if (i / 64 % 5 == 4) x = 0.0f;
      greatest = std::max<double>(greatest, std::fabs(x));
    }
  }
  const auto sum = SumOver(data);
  int e = 0;
  std::frexp(greatest, &e);
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  for (int rank = 0; rank < kWorld; ++rank) {
    ASSERT_EQ(0, std::memcmp(data[0].data(), data[rank].data(), kFloats * 4)) << "rank " << rank;
  }
  for (size_t i = 0; i < kFloats; ++i) {
    // 3 * 2^29 < 2^31
    const double bound = kWorld * std::ldexp(1.0, e - 30) + std::fabs(sum[i]) * 0x1p-24;
    ASSERT_LE(std::fabs(data[0][i] - sum[i]), bound) << i;
  }
}

TEST_F(OffloadTest, SparseLanesGoOnAmongTheRanksWhenTheAggregatorStops) {
  auto server = StartServer();
  SessionWorld job({.world = 3});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job), "omnireduce")), key, kFloats);
  for (int step = 0; step < 3; ++step) ExactStep(job, key, step, 3);
  server = nullptr;
  for (int step = 3; step < 6; ++step) ExactStep(job, key, step, 3);
  const auto reports = job.ports[0]->All<StepReport>();
  ASSERT_GE(reports.size(), 5u);
  EXPECT_EQ(reports[2].buckets[0].collective, "omnireduce");
  EXPECT_EQ(reports.back().buckets[0].collective, "block_mesh");
  const auto told = FailuresTold(job);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0].detail, HasSubstr("omnireduce"));
  server = StartServer();
  job.Switch(SwitchPlan(2, Granted(*server, PortsOf(job), "omnireduce")), key, kFloats);
  ExactStep(job, key, 6, 3);
  EXPECT_GT(PacketsOf(*server), 0u);
}

// The sums of indices by the aggregator's table equal the ring's sums of lanes bit for bit.
TEST_F(OffloadTest, SumsOfLevelsAreThoseOfTheRing) {
  struct Case {
    int world;
    uint32_t bits;
    double drop;
  };
  for (const Case& c : {Case{2, 8, 0}, Case{3, 8, 0.05}, Case{4, 16, 0}, Case{5, 8, 0}}) {
    SCOPED_TRACE(StrCat("world ", c.world, " bits ", c.bits, " drop ", c.drop));
    const auto server = StartServer(c.drop);
    std::vector<std::vector<float>> results[2];
    for (const bool through : {false, true}) {
      SessionWorld job({.world = c.world, .job = "levels"});  // equal seeds
      job.Up();
      const uint64_t key = job.Define({{"p", kFloats}});
      Plan plan = UniformPlan(1, Choice{"thc", through ? "thc_table" : "ring", 1, c.bits});
      if (through) {
        plan.leases["thc_table"] =
            Granted(*server, PortsOf(job), "thc_table", static_cast<int>(c.bits));
      }
      job.Switch(plan, key, kFloats);
      for (uint64_t step = 0; step < 3; ++step) {
        auto data = RandomGradients(c.world, kFloats, step);
        const uint64_t before = PacketsOf(*server);
        job.Begin();
        job.AllReduce(key, data);
        EXPECT_FALSE(job.End());
        EXPECT_EQ(PacketsOf(*server) > before, through);
        results[through].insert(results[through].end(), data.begin(), data.end());
      }
      EXPECT_TRUE(FailuresTold(job).empty()) << FailuresTold(job).front().detail;
      EXPECT_EQ(job.ports[0]->All<StepReport>().back().buckets[0].collective,
                through ? "thc_table" : "ring");
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      ASSERT_EQ(0, std::memcmp(results[0][i].data(), results[1][i].data(), kFloats * sizeof(float)))
          << "step " << i / static_cast<size_t>(c.world);
    }
  }
}

TEST_F(OffloadTest, LevelsGoOnAroundTheRingWhenTheAggregatorStops) {
  auto server = StartServer();
  SessionWorld job({.world = 3});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  Plan plan = UniformPlan(1, Choice{"thc", "thc_table", 1, 8});
  plan.leases["thc_table"] = Granted(*server, PortsOf(job), "thc_table");
  job.Switch(plan, key, kFloats);
  server = nullptr;
  for (uint64_t step = 0; step < 3; ++step) {
    auto data = RandomGradients(3, kFloats, step);
    const auto sum = SumOver(data);
    job.Begin();
    job.AllReduce(key, data);
    EXPECT_FALSE(job.End());
    double error = 0, energy = 0;
    for (size_t i = 0; i < kFloats; ++i) {
      error += (data[0][i] - sum[i]) * (data[0][i] - sum[i]);
      energy += sum[i] * sum[i];
    }
    EXPECT_LT(error, 0.2 * energy);
    EXPECT_EQ(data[0], data[2]);
  }
  EXPECT_EQ(job.ports[0]->All<StepReport>().back().buckets[0].collective, "ring");
  ASSERT_EQ(FailuresTold(job).size(), 1u);
}

// A step of zeros has no norm to share, so its lanes are not levels of the table.
TEST_F(OffloadTest, AStepOfZerosDoesNotEndTheLeaseOfATable) {
  const auto server = StartServer();
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  Plan plan = UniformPlan(1, Choice{"thc", "thc_table", 1, 8});
  plan.leases["thc_table"] = Granted(*server, PortsOf(job), "thc_table");
  job.Switch(plan, key, kFloats);
  std::vector<std::vector<float>> zeros(2, std::vector<float>(kFloats));
  job.Begin();
  job.AllReduce(key, zeros);
  EXPECT_FALSE(job.End());
  auto data = RandomGradients(2, kFloats, 1);
  const uint64_t before = PacketsOf(*server);
  job.Begin();
  job.AllReduce(key, data);
  EXPECT_FALSE(job.End());
  EXPECT_GT(PacketsOf(*server), before);
  EXPECT_TRUE(FailuresTold(job).empty());
}

// A late rank does not end the use of the aggregator.
TEST_F(OffloadTest, ALateRankIsWaitedForAndNotTheAggregatorsFault) {
  const auto server = StartServer();
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job))), key, kFloats);
  ExactStep(job, key, 0);
  std::vector<std::vector<float>> data(2, std::vector<float>(kFloats, 1));
  job.Begin();
  ASSERT_TRUE(job.sessions[0]->AllReduce(key, data[0].data(), 1, nullptr).ok());
  CondVar nobody;
  Mutex mutex;
  {
    MutexLock lock(mutex);
    const TimePoint late = RealClock().Now() + std::chrono::seconds(1);
    while (nobody.WaitUntil(mutex, late)) continue;
  }
  ASSERT_TRUE(job.sessions[1]->AllReduce(key, data[1].data(), 1, nullptr).ok());
  EXPECT_FALSE(job.End());
  EXPECT_EQ(data[0][kFloats - 1], 2);
  EXPECT_TRUE(FailuresTold(job).empty());
}

TEST_F(OffloadTest, ASessionThatCannotBeReachedRunsTheRingAndSaysWhy) {
  const auto server = StartServer();
  SessionWorld job({.world = 2, .transport = "inproc"});  // its addresses are not IPv4
  job.Up();
  EXPECT_EQ(PortsOf(job), std::vector<std::string>(2));
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, {"127.0.0.1:1", "127.0.0.1:2"})), key, kFloats);
  ExactStep(job, key, 0);
  ExactStep(job, key, 1);
  const auto told = FailuresTold(job);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0].detail, HasSubstr("no port"));
}

TEST_F(OffloadTest, TheControlWordTravelsBesideTheAggregator) {
  const auto server = StartServer();
  SessionWorld job({.world = 3});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job))), key, kFloats);
  job.Switch(UniformPlan(2, DenseChoice()), key, kFloats);  // announced in a step of plan 1
  job.Begin();
  job.End();
  for (const auto& session : job.sessions) EXPECT_EQ(session->ActivePlan()->version, 2u);
}

// The leases of the former mesh were granted to other addresses, so using them would cost a wait.
TEST_F(OffloadTest, AMeshThatIsFormedAnewDoesNotTryFormerLeases) {
  const auto server = StartServer();
  SessionWorld job({.world = 2});
  job.Up();
  const uint64_t key = job.Define({{"p", kFloats}});
  job.Switch(SwitchPlan(1, Granted(*server, PortsOf(job))), key, kFloats);
  ExactStep(job, key, 0);
  job.Close();
  for (size_t rank = 0; rank < 2; ++rank) {
    SessionOptions options = job.sessions[rank]->options();
    options.epoch = 1;
    SessionParts parts;
    parts.former = job.sessions[rank].get();
    parts.agent = job.ports[rank].get();
    auto made = Session::Create(options, std::move(parts));
    ASSERT_TRUE(made.ok()) << made.status();
    job.sessions[rank] = std::move(*made);
  }
  job.Up();
  EXPECT_EQ(job.sessions[0]->ActivePlan()->leases.size(), 1u);
  const uint64_t before = PacketsOf(*server);
  ExactStep(job, key, 1);
  EXPECT_EQ(PacketsOf(*server), before);
  EXPECT_TRUE(FailuresTold(job).empty());
}

// Without a controller, a user requests a lease for the address that the session was given.
TEST_F(OffloadTest, APlanFileWithALeaseNeedsNoController) {
  const auto server = StartServer();
  const AggregatorLease lease = Granted(*server, {"127.0.0.1:1", "127.0.0.1:2"});
  const std::string path = testing::TempFile("leased.json", PlanToJson(SwitchPlan(1, lease)));
  SessionOptions options;
  options.job = "by hand";
  options.world = 2;
  for (const bool leased : {false, true}) {
    options.plan_file = leased ? path : "";
    const auto session = Session::Create(options);
    ASSERT_TRUE(session.ok()) << session.status();
    const auto greeting = (*session)->Greeting();
    const std::string address = std::get<RankHello>(greeting.front()).aggregation_address;
    EXPECT_EQ(address.rfind("127.0.0.1:", 0) == 0, leased) << address;
  }
}

TEST_F(OffloadTest, AnOfferWithoutTheLeaseThatItsChoiceNeedsIsRefused) {
  SessionWorld job({.world = 2});
  job.Up();
  Plan plan = UniformPlan(5, DenseChoice());
  plan.fallback.collective = "switchml";
  job.sessions[1]->OnCommand(PlanOffer{plan.version, "n", plan});
  ASSERT_EQ(job.ports[1]->All<PlanNack>().size(), 1u);
  EXPECT_THAT(job.ports[1]->All<PlanNack>()[0].reason, HasSubstr("lease"));
}

}  // namespace
}  // namespace weir
