// SPDX-License-Identifier: Apache-2.0
// Jobs of worker threads and an aggregator, over loopback.
#include "datapath/aggregation/io/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "datapath/aggregation/io/address.h"
#include "datapath/aggregation/table_worker.h"
#include "datapath/base/log.h"
#include "tests/datapath/aggregation/io/job.h"

namespace weir::aggregation {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Lease Terms(PacketMode mode, int workers, uint16_t slots) {
  Lease lease{.mode = mode, .workers = workers, .slots = slots};
  if (mode == PacketMode::kSparse) {
    lease.lanes = 64;
    lease.columns = 4;
  }
  return lease;
}

constexpr char kOwner[] = "owner-of-all-leases";

JobRun MustGrant(AggregatorServer* server, const std::string& job, const Lease& terms,
                 const JobPorts& ports) {
  const auto grant =
      server->Grant({.job = job, .terms = terms, .workers = ports.addresses, .owner = kOwner});
  EXPECT_TRUE(grant.ok()) << grant.status();
  return {.lease = grant->lease, .aggregator = grant->address};
}

std::unique_ptr<AggregatorServer> MustStart(const ServerOptions& options) {
  auto server = AggregatorServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return std::move(*server);
}

AggregatorCounters PacketsOf(AggregatorServer* server) {
  const auto shards = server->Shards();
  EXPECT_TRUE(shards.ok()) << shards.status();
  return (*shards)[0].counters.packets;
}

void ExpectSums(const std::vector<Status>& results, const JobTensors& tensors,
                const std::vector<float>& expected) {
  for (size_t w = 0; w < results.size(); ++w) {
    ASSERT_TRUE(results[w].ok()) << "worker " << w << ": " << results[w];
    ASSERT_EQ(tensors[w], expected) << "worker " << w;
  }
}

TEST(AggregatorServerTest, SumsExactlyWhateverIsLost) {
  for (const double drop : {0.0, 0.01, 0.05}) {
    SCOPED_TRACE(drop);
    JobTensors tensors = IntegerTensors(4, 50'001, 7);
    const std::vector<float> expected = SumOf(tensors);
    const auto server = MustStart({.drop = drop});
    JobPorts job(4);
    const JobRun run = MustGrant(server.get(), "dense", Terms(PacketMode::kSum, 4, 32), job);
    const auto results = job.OnAll([&](size_t w) {
      return RunSum(run, job.ports[w].get(), static_cast<int>(w), &tensors[w]);
    });
    ExpectSums(results, tensors, expected);
    const auto shards = server->Shards();
    ASSERT_TRUE(shards.ok());
    EXPECT_EQ((*shards)[0].counters.dropped > 0, drop > 0);
    EXPECT_GE((*shards)[0].counters.packets.completed, 50'001u / 256);
    EXPECT_GT((*shards)[0].counters.cpu_time, Duration::zero());
  }
}

TEST(AggregatorServerTest, SparseBlocksOverTwoShards) {
  JobTensors tensors = IntegerTensors(3, 100'000, 3, 0.05);
  const std::vector<float> expected = SumOf(tensors);
  const auto server = MustStart({.shards = 2, .drop = 0.01});
  JobPorts job(3);
  const JobRun max = MustGrant(server.get(), "job.max", Terms(PacketMode::kMax, 3, 1), job);
  const JobRun sparse =
      MustGrant(server.get(), "job.sparse", Terms(PacketMode::kSparse, 3, 16), job);
  EXPECT_NE(max.aggregator, sparse.aggregator);  // the emptier shard
  const auto results = job.OnAll([&](size_t w) {
    return RunSparse(max, sparse, job.ports[w].get(), static_cast<int>(w), &tensors[w]);
  });
  ExpectSums(results, tensors, expected);
}

TEST(AggregatorServerTest, CutOffGoesOnWithoutASilentWorker) {
  std::vector<uint8_t> indices(512, 3);
  JobTensors means(3, std::vector<float>(512, -1));
  const auto server = MustStart({});
  JobPorts job(3);
  Lease terms = Terms(PacketMode::kTable, 3, 4);
  terms.sum_bits = 8;
  for (int i = 0; i < 16; ++i) terms.levels.push_back(static_cast<uint8_t>(2 * i));
  terms.quorum = 2;
  terms.cutoff = milliseconds(30);
  const JobRun run = MustGrant(server.get(), "thc", terms, job);
  const auto results = job.OnAll([&](size_t w) -> Status {
    if (w == 2) return OkStatus();
    TableWorker worker(run.lease, kLoopbackTimeouts, static_cast<int>(w));
    WEIR_RETURN_IF_ERROR(worker.Begin(indices, means[w], 0, RealClock().Now() + run.deadline));
    WEIR_RETURN_IF_ERROR(job.ports[w]->Run(run.aggregator, &worker));
    return worker.contributors(0) == 3 ? OkStatus() : Internal("contributors");
  });
  for (size_t w = 0; w < 2; ++w) {
    ASSERT_TRUE(results[w].ok()) << results[w];
    EXPECT_EQ(means[w], std::vector<float>(512, 6 - 15));
  }
  EXPECT_EQ(PacketsOf(server.get()).cut_off, 2u);
}

TEST(AggregatorServerTest, SilentWorkerIsNamed) {
  JobTensors tensors = IntegerTensors(3, 2000, 1);
  const auto server = MustStart({});
  JobPorts job(3);
  JobRun run = MustGrant(server.get(), "stuck", Terms(PacketMode::kSum, 3, 4), job);
  run.deadline = milliseconds(300);
  const auto results = job.OnAll([&](size_t w) {
    if (w == 1) return OkStatus();
    return RunSum(run, job.ports[w].get(), static_cast<int>(w), &tensors[w]);
  });
  EXPECT_EQ(results[0].code(), StatusCode::kDeadlineExceeded) << results[0];
  EXPECT_THAT(Message(results[0]), HasSubstr(AddressText(run.aggregator)));
  EXPECT_THAT(Message(results[0]), HasSubstr("rank 0"));
  const auto leases = server->Leases();
  ASSERT_TRUE(leases.ok());
  ASSERT_EQ(leases->size(), 1u);
  const LeaseStatus& status = leases->front();
  ASSERT_TRUE(status.oldest.has_value());
  EXPECT_THAT(status.oldest->missing, ElementsAre(1));
  EXPECT_GE(status.oldest->age, milliseconds(250));
  EXPECT_THAT(Describe(status.grant, *status.oldest),
              HasSubstr("worker 1 at " + AddressText(job.addresses[1])));
}

TEST(AggregatorServerTest, StaleEpochsAndStrangersAreCountedAndChangeNothing) {
  JobTensors tensors = IntegerTensors(2, 1000, 1);
  const auto server = MustStart({});
  JobPorts job(2), strangers(1);
  const JobRun earlier = MustGrant(server.get(), "job", Terms(PacketMode::kSum, 2, 8), job);
  const JobRun run = MustGrant(server.get(), "job", Terms(PacketMode::kSum, 2, 8), job);
  EXPECT_GT(run.lease.epoch, earlier.lease.epoch);
  EXPECT_NE(run.lease.cookie, earlier.lease.cookie);
  for (JobRun forged : {earlier, run}) {
    forged.deadline = milliseconds(60);
    const uint64_t before = PacketsOf(server.get()).foreign;
    WorkerPort* port =
        forged.lease.epoch == run.lease.epoch ? strangers.ports[0].get() : job.ports[0].get();
    std::vector<float> poison(1000, 1e9f);
    EXPECT_EQ(RunSum(forged, port, 0, &poison).code(), StatusCode::kDeadlineExceeded);
    EXPECT_GT(PacketsOf(server.get()).foreign, before);
  }
  const std::vector<float> expected = SumOf(tensors);
  const auto results = job.OnAll(
      [&](size_t w) { return RunSum(run, job.ports[w].get(), static_cast<int>(w), &tensors[w]); });
  ExpectSums(results, tensors, expected);
}

TEST(AggregatorServerTest, AggregatorThatIsGoneIsNamed) {
  auto server = MustStart({});
  JobPorts job(1);
  JobRun run = MustGrant(server.get(), "gone", Terms(PacketMode::kSum, 1, 4), job);
  server.reset();
  run.deadline = milliseconds(150);
  std::vector<float> tensor(100, 1);
  const Status result = RunSum(run, job.ports[0].get(), 0, &tensor);
  EXPECT_EQ(result.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(result), HasSubstr(AddressText(run.aggregator)));
  EXPECT_THAT(Message(result), HasSubstr("nobody listens"));
}

TEST(AggregatorServerTest, ALeaseIsRenewedAndEndedByItsOwnerOnly) {
  const auto server = MustStart({});
  JobPorts job(2), rogues(2);
  const auto ask = [&](const JobPorts& workers, const std::string& owner) {
    return server->Grant({.job = "job",
                          .terms = Terms(PacketMode::kSum, 2, 8),
                          .workers = workers.addresses,
                          .owner = owner});
  };
  for (const std::string& bad : {std::string("short"), std::string(129, 'x'),
                                 std::string("sixteen characters"), std::string(20, '\n')}) {
    EXPECT_EQ(ask(job, bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  const JobRun run = MustGrant(server.get(), "job", Terms(PacketMode::kSum, 2, 8), job);
  for (const std::string& owner : {std::string(), std::string("owner-of-all-leaseS"),
                                   std::string("owner-of-all-leases2"), std::string(32, '0')}) {
    EXPECT_EQ(ask(rogues, owner).status().code(), StatusCode::kPermissionDenied) << owner;
    EXPECT_EQ(server->Revoke("job", 0, owner).code(), StatusCode::kPermissionDenied) << owner;
  }
  JobTensors tensors = IntegerTensors(2, 3000, 1);  // the job notices nothing
  const std::vector<float> expected = SumOf(tensors);
  const auto results = job.OnAll(
      [&](size_t w) { return RunSum(run, job.ports[w].get(), static_cast<int>(w), &tensors[w]); });
  ExpectSums(results, tensors, expected);
  const auto renewed = ask(job, kOwner);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_GT(renewed->lease.epoch, run.lease.epoch);
  EXPECT_TRUE(server->Revoke("job", renewed->lease.epoch, kOwner).ok());
  // A request without an owner gets one that the server makes.
  const auto made_up = ask(rogues, "");
  ASSERT_TRUE(made_up.ok()) << made_up.status();
  EXPECT_EQ(made_up->owner.size(), 32u);
  EXPECT_EQ(ask(rogues, "").status().code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(ask(rogues, made_up->owner).ok());
  EXPECT_TRUE(server->Expire("job", 0).ok());
}

TEST(AggregatorServerTest, LimitsAreNamedAndFreedByRevoke) {
  const auto server = MustStart({.limits = {.slots = 16, .slots_per_job = 12, .leases = 2}});
  JobPorts job(1);
  const auto ask = [&](const std::string& name, uint16_t slots) {
    return server->Grant(
        {.job = name, .terms = Terms(PacketMode::kSum, 1, slots), .workers = job.addresses});
  };
  EXPECT_THAT(Message(ask("a", 13).status()), HasSubstr("at most 12 slots a job"));
  const auto first = ask("a", 12);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(ask("b", 5).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(ask("b", 4).ok());
  EXPECT_THAT(Message(ask("c", 1).status()), HasSubstr("leases"));
  EXPECT_EQ(ask("bad name", 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ask("", 1).status().code(), StatusCode::kInvalidArgument);
  const std::string& owner = first->owner;
  EXPECT_EQ(server->Revoke("a", first->lease.epoch + 7, owner).code(), StatusCode::kNotFound);
  ASSERT_TRUE(server->Revoke("a", first->lease.epoch, owner).ok());
  EXPECT_EQ(server->Revoke("a", 0, owner).code(), StatusCode::kNotFound);
  const auto next = ask("c", 12);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->lease.id, first->lease.id);  // the number is free, its epochs go on
  EXPECT_GT(next->lease.epoch, first->lease.epoch);
}

TEST(AggregatorServerTest, WindowsBeyondTheKernelsBufferAreSaid) {
  std::vector<std::string> said;
  SetLogSink([&](LogLevel, std::string_view, std::string_view line) { said.emplace_back(line); });
  const JobPorts ports(2);
  for (const int buffer_bytes : {64 << 10, 8 << 20}) {
    const auto server = MustStart({.buffer_bytes = buffer_bytes});
    MustGrant(server.get(), "small", Terms(PacketMode::kSum, 2, 8), ports);
    MustGrant(server.get(), "large", Terms(PacketMode::kSum, 2, 80), ports);
    MustGrant(server.get(), "large", Terms(PacketMode::kSum, 2, 80), ports);  // said already
  }
  SetLogSink({});
  ASSERT_EQ(said.size(), 1);
  EXPECT_THAT(said[0], HasSubstr("job large: 2 workers with 80 slots may send 160 packets at once, "
                                 "and shard 0 holds about 56: "));
}

TEST(AggregatorServerTest, BadOptionsAreNamed) {
  const auto code = [](const ServerOptions& options) {
    return AggregatorServer::Start(options).status().code();
  };
  EXPECT_EQ(code({.shards = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.shards = 65}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.first_port = 65535, .shards = 2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.drop = 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.listen = "no address"}), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir::aggregation
