// SPDX-License-Identifier: Apache-2.0
// The real program with workers on loopback, and its control interface.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "datapath/aggregation/io/address.h"
#include "tests/datapath/aggregation/io/job.h"
#include "tests/support/program.h"

namespace weir::aggregation {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr char kOwner[] = "owner-of-the-test";
const httplib::Headers kOwnerHeader = {{"Weir-Lease-Owner", kOwner}};

class AggregatorProgram {
 public:
  explicit AggregatorProgram(const std::vector<std::string>& flags) : program_(Arguments(flags)) {
    program_.ReadUntil([&] { return program_.output.find('\n') != std::string::npos; });
    char host[64] = {}, udp[64] = {};
    if (std::sscanf(program_.output.c_str(), "http %63[0-9.]:%d udp %63[0-9.:]", host, &port_,
                    udp) == 3) {
      udp_ = udp;
      client_ = std::make_unique<httplib::Client>(host, port_);
      client_->set_read_timeout(10, 0);
    }
  }

  bool started() const { return client_ != nullptr; }
  int port() const { return port_; }
  const std::string& udp() const { return udp_; }
  Program& program() { return program_; }
  httplib::Client& client() { return *client_; }

  json Lease(json body) {
    body["owner"] = kOwner;
    const auto result = client_->Post("/v1/leases", body.dump(), "application/json");
    EXPECT_TRUE(result && result->status == 201) << (result ? result->body : "no answer");
    return result ? json::parse(result->body) : json();
  }

  std::string Get(const std::string& path) {
    const auto result = client_->Get(path);
    EXPECT_TRUE(result && result->status == 200) << path;
    return result ? result->body : "";
  }

  /// The sample of /metrics whose line begins with `name`; -1: there is none.
  double Metric(const std::string& name) {
    std::istringstream lines(Get("/metrics"));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name)) return std::stod(line.substr(line.rfind(' ')));
    }
    return -1;
  }

 private:
  static std::vector<std::string> Arguments(const std::vector<std::string>& flags) {
    std::vector<std::string> all = {WEIR_AGGREGATOR_PROGRAM};
    all.insert(all.end(), flags.begin(), flags.end());
    const auto add_default = [&](const char* flag, const char* value) {
      if (std::find(flags.begin(), flags.end(), flag) != flags.end()) return;
      all.insert(all.end(), {flag, value});
    };
    add_default("--port", "0");
    add_default("--http", "127.0.0.1:0");
    return all;
  }

  Program program_;
  int port_ = 0;
  std::string udp_;  // of the first shard
  std::unique_ptr<httplib::Client> client_;
};

json Body(const std::string& job, const std::string& mode, const JobPorts& ports, int slots) {
  json workers = json::array();
  for (const SourceAddress address : ports.addresses) workers.push_back(AddressText(address));
  json body = {{"job", job}, {"mode", mode}, {"slots", slots}, {"workers", workers}};
  if (mode == "sparse") {
    body["lanes"] = 64;
    body["columns"] = 4;
  }
  return body;
}

/// A worker's view of a lease, made from the answer only.
JobRun RunOf(const json& body, const json& answer) {
  JobRun run;
  Lease& lease = run.lease;
  lease.id = answer["lease"];
  lease.epoch = answer["epoch"];
  lease.cookie = std::stoull(answer["cookie"].get<std::string>(), nullptr, 16);
  lease.mode = body["mode"] == "sum"   ? PacketMode::kSum
               : body["mode"] == "max" ? PacketMode::kMax
                                       : PacketMode::kSparse;
  lease.workers = static_cast<int>(body["workers"].size());
  lease.slots = answer["slots"];
  lease.lanes = answer["lanes"];
  if (body.contains("columns")) lease.columns = body["columns"];
  run.aggregator = *ParseSourceAddress(answer["address"].get<std::string>());
  return run;
}

JobRun MustLease(AggregatorProgram* aggregator, const json& body) {
  return RunOf(body, aggregator->Lease(body));
}

void ExpectAll(const std::vector<Status>& results, const JobTensors& tensors,
               const std::vector<float>& expected) {
  for (size_t w = 0; w < results.size(); ++w) {
    ASSERT_TRUE(results[w].ok()) << "worker " << w << ": " << results[w];
    ASSERT_EQ(tensors[w], expected) << "worker " << w;
  }
}

class AggregatorLossTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Drop, AggregatorLossTest, testing::Values("0", "0.01", "0.05"));

TEST_P(AggregatorLossTest, FourWorkersSumExactly) {
  JobTensors dense = IntegerTensors(4, 60'000, 1);
  JobTensors sparse = IntegerTensors(4, 200'000, 2, 0.02);
  const std::vector<float> dense_sum = SumOf(dense), sparse_sum = SumOf(sparse);
  AggregatorProgram aggregator({"--drop", GetParam(), "--seed", "3", "--shards", "2"});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(4);
  const JobRun sum = MustLease(&aggregator, Body("train.sum", "sum", ports, 32));
  const JobRun max = MustLease(&aggregator, Body("train.max", "max", ports, 1));
  const JobRun blocks = MustLease(&aggregator, Body("train.sparse", "sparse", ports, 16));
  ExpectAll(ports.OnAll([&](size_t w) {
    return RunSum(sum, ports.ports[w].get(), static_cast<int>(w), &dense[w]);
  }),
            dense, dense_sum);
  ExpectAll(ports.OnAll([&](size_t w) {
    return RunSparse(max, blocks, ports.ports[w].get(), static_cast<int>(w), &sparse[w]);
  }),
            sparse, sparse_sum);
  EXPECT_GE(aggregator.Metric("weir_aggregator_packets_total{shard=\"0\",outcome=\"completed\"}"),
            60'000 / 256);
  EXPECT_EQ(aggregator.Metric("weir_aggregator_injected_losses_total{shard=\"0\"}") > 0,
            std::string(GetParam()) != "0");
  EXPECT_EQ(aggregator.Metric("weir_aggregator_leases{shard=\"0\"}") +
                aggregator.Metric("weir_aggregator_leases{shard=\"1\"}"),
            3);
}

/// A root and leaves with two workers each, all of them programs on loopback.
struct Tree {
  explicit Tree(int leaf_count, const std::vector<std::string>& flags)
      : ports(2 * leaf_count), root(flags) {
    for (int l = 0; l < leaf_count; ++l) {
      leaves.push_back(std::make_unique<AggregatorProgram>(flags));
    }
  }

  bool started() const {
    return root.started() && std::all_of(leaves.begin(), leaves.end(),
                                         [](const auto& leaf) { return leaf->started(); });
  }

  /// Takes leases as the launcher of a job would: the root's lease for the leaves' addresses, and
  /// then one on each leaf that names it. runs[w] belongs to worker w.
  void Lease() {
    json above = {{"job", "tree"}, {"mode", "sum"}, {"slots", 16}, {"workers", json::array()}};
    for (const auto& leaf : leaves) above["workers"].push_back(leaf->udp());
    const json grant = root.Lease(above);
    for (size_t l = 0; l < leaves.size(); ++l) {
      json below = {{"job", "tree"},
                    {"mode", "sum"},
                    {"slots", 16},
                    {"world", ports.ports.size()},
                    {"parent",
                     {{"address", grant["address"]},
                      {"lease", grant["lease"]},
                      {"epoch", grant["epoch"]},
                      {"cookie", grant["cookie"]},
                      {"workers", leaves.size()}}}};
      for (size_t w = 2 * l; w < 2 * l + 2; ++w) {
        below["workers"].push_back(AddressText(ports.addresses[w]));
      }
      JobRun run = MustLease(leaves[l].get(), below);
      run.lease.world = static_cast<int>(ports.ports.size());
      runs.insert(runs.end(), 2, run);
    }
  }

  JobPorts ports;
  AggregatorProgram root;
  std::vector<std::unique_ptr<AggregatorProgram>> leaves;
  std::vector<JobRun> runs;
};

TEST(AggregatorTreeTest, TwoLeavesAndARootSumExactlyThoughPacketsAreLost) {
  Tree tree(2, {"--drop", "0.03", "--seed", "7"});
  ASSERT_TRUE(tree.started());
  tree.Lease();
  JobTensors tensors = IntegerTensors(4, 40'000, 3);
  const std::vector<float> expected = SumOf(tensors);
  ExpectAll(tree.ports.OnAll([&](size_t w) {
    return RunSum(tree.runs[w], tree.ports.ports[w].get(), static_cast<int>(w), &tensors[w]);
  }),
            tensors, expected);
  constexpr double kRounds = 40'000 / 256;
  for (const auto& leaf : tree.leaves) {
    EXPECT_GE(leaf->Metric("weir_aggregator_forwarded_packets_total{shard=\"0\",again=\"no\"}"),
              kRounds);
    EXPECT_GT(leaf->Metric("weir_aggregator_forwarded_packets_total{shard=\"0\",again=\"yes\"}"),
              0);
    EXPECT_GE(leaf->Metric("weir_aggregator_delivered_packets_total{shard=\"0\"}"), kRounds);
    const json lease = json::parse(leaf->Get("/v1/leases"))["leases"][0];
    EXPECT_EQ(lease["parent"], tree.root.udp());
  }
  EXPECT_GE(tree.root.Metric("weir_aggregator_packets_total{shard=\"0\",outcome=\"completed\"}"),
            kRounds);
}

TEST(AggregatorTreeTest, ADeadRootEndsInTheWorkersDeadlineAndAnotherOneServesTheNextEpoch) {
  Tree tree(2, {});
  ASSERT_TRUE(tree.started());
  tree.Lease();
  JobTensors tensors = IntegerTensors(4, 3000, 4);
  // The root loses the lease, as after a restart.
  const auto ended = tree.root.client().Delete("/v1/leases/tree", kOwnerHeader);
  ASSERT_TRUE(ended);
  ASSERT_EQ(ended->status, 200) << ended->body;
  const auto failed = tree.ports.OnAll([&](size_t w) {
    JobRun run = tree.runs[w];
    run.deadline = milliseconds(300);
    std::vector<float> lost = tensors[w];
    return RunSum(run, tree.ports.ports[w].get(), static_cast<int>(w), &lost);
  });
  for (const Status& status : failed) EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  tree.runs.clear();
  tree.Lease();
  const std::vector<float> expected = SumOf(tensors);
  ExpectAll(tree.ports.OnAll([&](size_t w) {
    return RunSum(tree.runs[w], tree.ports.ports[w].get(), static_cast<int>(w), &tensors[w]);
  }),
            tensors, expected);
}

TEST(AggregatorProgramTest, DeadWorkerIsNamedEverywhere) {
  JobTensors tensors = IntegerTensors(3, 50'000, 1);
  AggregatorProgram aggregator({"--stall-s", "0.3"});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(3);
  JobRun run = MustLease(&aggregator, Body("stuck", "sum", ports, 8));
  run.deadline = milliseconds(2500);
  const std::string dead = AddressText(ports.addresses[2]);
  const auto results = ports.OnAll([&](size_t w) {
    JobRun mine = run;
    if (w == 2) mine.deadline = milliseconds(1);  // dies in the middle of the operation
    return RunSum(mine, ports.ports[w].get(), static_cast<int>(w), &tensors[w]);
  });
  EXPECT_EQ(results[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(results[0]), HasSubstr(AddressText(run.aggregator)));
  const json lease = json::parse(aggregator.Get("/v1/leases"))["leases"][0];
  ASSERT_TRUE(lease.contains("waiting")) << lease.dump();
  ASSERT_EQ(lease["waiting"]["missing"].size(), 1u) << lease.dump();
  EXPECT_EQ(lease["waiting"]["missing"][0]["worker"], 2);
  EXPECT_EQ(lease["waiting"]["missing"][0]["address"], dead);
  EXPECT_GT(lease["waiting"]["age_s"], 0.5);
  EXPECT_GT(aggregator.Metric("weir_aggregator_oldest_round_age_seconds{training_job=\"stuck\""),
            0.5);
  EXPECT_EQ(
      aggregator.Metric("weir_aggregator_oldest_round_missing_workers{training_job=\"stuck\""), 1);
  aggregator.program().ReadUntil(
      [&] { return aggregator.program().error.find("worker 2 at " + dead) != std::string::npos; });
  EXPECT_THAT(aggregator.program().error, HasSubstr("worker 2 at " + dead));
}

TEST(AggregatorProgramTest, StaleEpochsAndStrangersAreCountedAndDropped) {
  JobTensors tensors = IntegerTensors(2, 5000, 1);
  const std::vector<float> expected = SumOf(tensors);
  AggregatorProgram aggregator({});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(2), strangers(1);
  JobRun stale = MustLease(&aggregator, Body("job", "sum", ports, 8));
  const JobRun run = MustLease(&aggregator, Body("job", "sum", ports, 8));
  EXPECT_GT(run.lease.epoch, stale.lease.epoch);
  const char* foreign = "weir_aggregator_packets_total{shard=\"0\",outcome=\"foreign\"}";
  std::vector<float> poison(5000, 1e9f);
  stale.deadline = milliseconds(60);
  EXPECT_FALSE(RunSum(stale, ports.ports[0].get(), 0, &poison).ok());
  const double from_stale = aggregator.Metric(foreign);
  EXPECT_GT(from_stale, 0);
  JobRun spoofed = run;
  spoofed.deadline = milliseconds(60);
  EXPECT_FALSE(RunSum(spoofed, strangers.ports[0].get(), 0, &poison).ok());
  EXPECT_GT(aggregator.Metric(foreign), from_stale);
  ExpectAll(ports.OnAll([&](size_t w) {
    return RunSum(run, ports.ports[w].get(), static_cast<int>(w), &tensors[w]);
  }),
            tensors, expected);
}

TEST(AggregatorProgramTest, KilledAggregatorFailsItsWorkersByDeadline) {
  std::vector<float> tensor(2'000'000, 1);
  AggregatorProgram aggregator({});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(2);  // one of them never sends, so that the operation cannot end
  JobRun run = MustLease(&aggregator, Body("job", "sum", ports, 8));
  run.deadline = milliseconds(800);
  auto result =
      std::async(std::launch::async, [&] { return RunSum(run, ports.ports[0].get(), 0, &tensor); });
  aggregator.program().Signal(SIGKILL);
  aggregator.program().Wait();
  const Status status = result.get();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(status), HasSubstr(AddressText(run.aggregator)));
  EXPECT_THAT(Message(status), HasSubstr("nobody listens"));
}

TEST(AggregatorProgramTest, LeasesEndAndLimitsAreReported) {
  AggregatorProgram aggregator({"--slots", "16", "--slots-per-job", "8"});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(1);
  auto& client = aggregator.client();
  const auto refused =
      client.Post("/v1/leases", Body("a", "sum", ports, 9).dump(), "application/json");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_THAT(refused->body, HasSubstr("at most 8 slots a job"));
  const json lease = aggregator.Lease(Body("a", "sum", ports, 8));
  EXPECT_EQ(lease["first_slot"], 0);
  const std::string epoch = std::to_string(lease["epoch"].get<int>());
  EXPECT_EQ(lease["owner"], kOwner);
  EXPECT_THAT(aggregator.Get("/v1/leases"), Not(HasSubstr(kOwner)));
  EXPECT_EQ(client.Delete("/v1/leases/a?epoch=77")->status, 404);
  EXPECT_EQ(client.Delete("/v1/leases/a?epoch=x")->status, 400);
  EXPECT_EQ(client.Delete("/v1/leases/a?force=1")->status, 400);
  EXPECT_EQ(client.Delete("/v1/leases/a?epoch=" + epoch)->status, 403);
  EXPECT_EQ(
      client.Post("/v1/leases", Body("a", "sum", ports, 8).dump(), "application/json")->status,
      403);
  EXPECT_EQ(client.Delete("/v1/leases/a?epoch=" + epoch, kOwnerHeader)->status, 200);
  EXPECT_EQ(client.Delete("/v1/leases/a", kOwnerHeader)->status, 404);
  EXPECT_EQ(client.Post("/v1/leases", "{", "application/json")->status, 400);
  EXPECT_EQ(client.Post("/v1/leases", std::string(20'000, ' '), "application/json")->status, 413);
  EXPECT_EQ(client.Get("/v2")->status, 404);
}

TEST(AggregatorProgramTest, LeaseThatNobodyUsesEnds) {
  AggregatorProgram aggregator({"--idle-s", "0.2"});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(1);
  aggregator.Lease(Body("forgotten", "sum", ports, 4));
  aggregator.program().ReadUntil([&] {
    return aggregator.program().error.find("job forgotten: no packet for") != std::string::npos;
  });
  EXPECT_EQ(json::parse(aggregator.Get("/v1/leases"))["leases"].size(), 0u);
}

TEST(AggregatorProgramTest, TokenGuardsAllButHealth) {
  const std::string path = testing::TempDir() + StrCat("weir-aggregator-token-", getpid());
  std::ofstream(path) << "0123456789abcdef\n";
  AggregatorProgram aggregator({"--token-file", path});
  unlink(path.c_str());
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  auto& client = aggregator.client();
  EXPECT_EQ(client.Get("/healthz")->status, 200);
  for (const char* page : {"/metrics", "/v1/leases"}) {
    EXPECT_EQ(client.Get(page)->status, 401) << page;
    for (const char* wrong : {"0123456789abcde", "0123456789abcdeg", "0123456789abcdef0"}) {
      EXPECT_EQ(client.Get(page, {{"Authorization", StrCat("Bearer ", wrong)}})->status, 401);
    }
    EXPECT_EQ(client.Get(page, {{"Authorization", "Bearer 0123456789abcdef"}})->status, 200);
  }
}

// Three connections without a whole request used to stop every answer.
TEST(AggregatorProgramTest, SlowClientsDoNotStopItsAnswers) {
  AggregatorProgram aggregator({"--access-log"});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  std::vector<int> slow;
  for (int i = 0; i < 50; ++i) {
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(aggregator.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(send(made, "GET / HT", 8, MSG_NOSIGNAL), 8);
    slow.push_back(made);
  }
  for (const char* page : {"/healthz", "/v1/leases", "/metrics"}) {
    EXPECT_EQ(aggregator.client().Get(page)->status, 200) << page;
  }
  for (const int each : slow) close(each);
  aggregator.program().ReadUntil([&] {
    return aggregator.program().error.find("http GET /metrics: 200 peer=127.0.0.1") !=
           std::string::npos;
  });
}

TEST(AggregatorProgramTest, InvalidFlagsAreNamed) {
  const std::string tokens = testing::TempDir() + StrCat("weir-aggregator-tokens-", getpid());
  std::ofstream(tokens) << "controller 0123456789abcdef\n";
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--http", "0.0.0.0:0"}, "off loopback"},
      {{"--http", "somewhere"}, "--http"},
      {{"--listen-health", "0.0.0.0:0"}, "--listen-health"},
      {{"--token-file", "/nonexistent"}, "/nonexistent"},
      {{"--http", "0.0.0.0:0", "--insecure", "--token-file", tokens}, "in plain text"},
      {{"--tls-cert", "x"}, "--tls-key"},
      {{"--listen", "host"}, "host"},
      {{"--shards", "0"}, "shards"},
      {{"--drop", "1.5"}, "drop"},
      {{"--port", "65535", "--shards", "2"}, "65534"},
      {{"--log-level", "loud"}, "loud"},
  };
  for (const auto& [flags, named] : cases) {
    AggregatorProgram aggregator(flags);
    EXPECT_FALSE(aggregator.started()) << named;
    EXPECT_NE(aggregator.program().Wait(), 0);
    EXPECT_THAT(aggregator.program().error, HasSubstr(named));
  }
}

TEST(AggregatorProgramTest, EndsWithinASecondOfItsSignal) {
  AggregatorProgram aggregator({"--shards", "2"});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(1);
  aggregator.Lease(Body("job", "sum", ports, 4));
  const auto address = ParseSourceAddress(StrCat("127.0.0.1:", aggregator.port()));
  const sockaddr_in silent_to = ToSocketAddress(*address);
  const int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(silent, reinterpret_cast<const sockaddr*>(&silent_to), sizeof silent_to), 0);
  const TimePoint before = RealClock().Now();
  aggregator.program().Signal(SIGTERM);
  EXPECT_EQ(aggregator.program().Wait(), 0);
  EXPECT_LT(RealClock().Now() - before, std::chrono::seconds(1));
  close(silent);
}

TEST(AggregatorProgramTest, PromtoolFindsNoErrors) {
  if (std::system("command -v promtool > /dev/null") != 0) {
    GTEST_SKIP() << "promtool (package prometheus) is not installed";
  }
  AggregatorProgram aggregator({});
  ASSERT_TRUE(aggregator.started()) << aggregator.program().error;
  JobPorts ports(1);
  aggregator.Lease(Body("job", "sum", ports, 4));
  const std::string path = testing::TempDir() + StrCat("weir-aggregator-metrics-", getpid());
  std::ofstream(path) << aggregator.Get("/metrics");
  const int status =
      std::system(StrCat("promtool check metrics < ", path, " > ", path, ".out 2>&1").c_str());
  std::ifstream said(path + ".out");
  const std::string text((std::istreambuf_iterator<char>(said)), {});
  EXPECT_EQ(status, 0) << text;
  EXPECT_EQ(text, "");
  unlink(path.c_str());
  unlink((path + ".out").c_str());
}

}  // namespace
}  // namespace weir::aggregation
