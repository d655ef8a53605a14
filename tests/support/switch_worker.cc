// SPDX-License-Identifier: Apache-2.0
// One worker of a job on a switch: runs operations whose results are known exactly and compares
// every element.
//
//   switch_worker GRANT.json RANK ELEMENTS OPERATIONS
//
// GRANT.json is the answer of POST /v1/leases. Prints one line: {"ok", "error", "wrong", "seconds",
// "sent", "resent"}; `wrong` counts elements that differ from the sum. Status 0 if all is right.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "datapath/aggregation/io/address.h"
#include "datapath/aggregation/table_worker.h"
#include "tests/datapath/aggregation/io/job.h"

namespace weir::aggregation {
namespace {

using nlohmann::json;

constexpr Duration kDeadline = std::chrono::seconds(120);
// Those of sessions.
constexpr TimeoutLimits kLimits = {.first = std::chrono::milliseconds(50),
                                   .min = std::chrono::milliseconds(1),
                                   .max = std::chrono::milliseconds(60)};

Lease LeaseOf(const json& grant) {
  Lease lease;
  lease.id = grant.at("lease").get<uint16_t>();
  lease.epoch = grant.at("epoch").get<uint32_t>();
  lease.cookie = std::strtoull(grant.at("cookie").get<std::string>().c_str(), nullptr, 16);
  const auto mode = ParseMode(grant.at("mode").get<std::string>());
  if (!mode.ok()) std::abort();
  lease.mode = *mode;
  lease.workers = static_cast<int>(grant.at("workers").size());
  lease.slots = grant.at("slots").get<uint16_t>();
  lease.lanes = grant.at("lanes").get<uint16_t>();
  lease.columns = grant.value("columns", uint8_t{0});
  lease.sum_bits = grant.value("sum_bits", uint8_t{0});
  for (const json& level : grant.value("levels", json::array())) {
    lease.levels.push_back(level.get<uint8_t>());
  }
  lease.checked = false;
  return lease;
}

struct Job {
  Lease lease;
  SourceAddress aggregator = 0;
  int rank = 0;
  size_t elements = 0;
  uint32_t operations = 0;
  WorkerPort* port = nullptr;
  uint64_t wrong = 0;
  WorkerCounters counters;

  Status Run(Worker* worker, Status begun) {
    WEIR_RETURN_IF_ERROR(begun);
    const Status ran = port->Run(aggregator, worker);
    counters = worker->counters();
    return ran;
  }

  template <typename T>
  void Compare(const std::vector<T>& found, const std::vector<T>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) wrong += found[i] != expected[i] ? 1 : 0;
  }
};

Status RunSums(Job* job) {
  const JobTensors tensors = IntegerTensors(job->lease.workers, job->elements, 1);
  SumWorker worker(job->lease, kLimits, job->rank);
  for (uint32_t operation = 0; operation < job->operations; ++operation) {
    std::vector<float> tensor = tensors[static_cast<size_t>(job->rank)];
    WEIR_RETURN_IF_ERROR(
        job->Run(&worker, worker.Begin(tensor, operation, RealClock().Now() + kDeadline)));
    job->Compare(tensor, SumOf(tensors));
  }
  return OkStatus();
}

Status RunMaxima(Job* job) {
  MaxWorker worker(job->lease, kLimits, job->rank);
  const auto of_rank = [&](int rank) {
    std::vector<uint32_t> values(job->elements);
    Random random(static_cast<uint64_t>(rank) + 1);
    for (uint32_t& value : values) value = static_cast<uint32_t>(random.Below(1u << 31));
    return values;
  };
  std::vector<uint32_t> expected(job->elements);
  for (int rank = 0; rank < job->lease.workers; ++rank) {
    const auto values = of_rank(rank);
    for (size_t i = 0; i < values.size(); ++i) expected[i] = std::max(expected[i], values[i]);
  }
  for (uint32_t operation = 0; operation < job->operations; ++operation) {
    std::vector<uint32_t> values = of_rank(job->rank);
    WEIR_RETURN_IF_ERROR(
        job->Run(&worker, worker.Begin(values, operation, RealClock().Now() + kDeadline)));
    job->Compare(values, expected);
  }
  return OkStatus();
}

Status RunTables(Job* job) {
  TableWorker worker(job->lease, kLimits, job->rank);
  std::vector<std::vector<uint8_t>> indices(static_cast<size_t>(job->lease.workers));
  std::vector<float> expected(job->elements);
  for (size_t rank = 0; rank < indices.size(); ++rank) {
    Random random(rank + 1);
    for (size_t i = 0; i < job->elements; ++i) {
      indices[rank].push_back(static_cast<uint8_t>(random.Below(16)));
      expected[i] += job->lease.levels[indices[rank].back()];
    }
  }
  const uint8_t last = job->lease.levels.back();
  const auto workers = static_cast<float>(job->lease.workers);
  for (float& sum : expected) sum = sum / workers - static_cast<float>(last) / 2;
  for (uint32_t operation = 0; operation < job->operations; ++operation) {
    std::vector<float> means(job->elements, -1);
    WEIR_RETURN_IF_ERROR(
        job->Run(&worker, worker.Begin(indices[static_cast<size_t>(job->rank)], means, operation,
                                       RealClock().Now() + kDeadline)));
    for (size_t i = 0; i < means.size(); ++i) {
      job->wrong += std::abs(means[i] - expected[i]) > 1e-4f ? 1 : 0;
    }
  }
  return OkStatus();
}

// The exponent is that of the largest integer, which needs no lease of its own.
Status RunBlocks(Job* job) {
  const JobTensors tensors =
      IntegerTensors(job->lease.workers, job->elements, 1, 0.3, job->lease.lanes);
  std::vector<float> greatest(1, 1000.0f);
  SparseWorker worker(job->lease, kLimits, job->rank);
  for (uint32_t operation = 0; operation < job->operations; ++operation) {
    std::vector<float> tensor = tensors[static_cast<size_t>(job->rank)];
    WEIR_RETURN_IF_ERROR(
        job->Run(&worker, worker.Begin(tensor, static_cast<uint16_t>(ExponentCode(greatest)),
                                       operation, RealClock().Now() + kDeadline)));
    job->Compare(tensor, SumOf(tensors));
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("expected GRANT.json RANK ELEMENTS OPERATIONS\n", stderr);
    return 2;
  }
  std::ifstream file(argv[1]);
  const json grant = json::parse(file);
  Job job;
  job.lease = LeaseOf(grant);
  job.rank = std::atoi(argv[2]);
  job.elements = std::strtoull(argv[3], nullptr, 10);
  job.operations = static_cast<uint32_t>(std::atoi(argv[4]));
  job.aggregator = *ParseSourceAddress(grant.at("address").get<std::string>());
  const auto port = WorkerPort::Bind(
      {.listen = grant.at("workers").at(static_cast<size_t>(job.rank)).get<std::string>()});
  Status status = port.status();
  const TimePoint start = RealClock().Now();
  if (status.ok()) {
    job.port = port->get();
    switch (job.lease.mode) {
      case PacketMode::kSum:
        status = RunSums(&job);
        break;
      case PacketMode::kMax:
        status = RunMaxima(&job);
        break;
      case PacketMode::kTable:
        status = RunTables(&job);
        break;
      case PacketMode::kSparse:
        status = RunBlocks(&job);
        break;
      default:
        status = InvalidArgument("no such operation here");
    }
  }
  const bool ok = status.ok() && job.wrong == 0;
  std::puts(json({{"ok", ok},
                  {"error", status.ok() ? "" : ToString(status)},
                  {"wrong", job.wrong},
                  {"seconds", ToSeconds(RealClock().Now() - start)},
                  {"sent", job.counters.sent},
                  {"resent", job.counters.resent}})
                .dump()
                .c_str());
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace weir::aggregation

int main(int argc, char** argv) { return weir::aggregation::Main(argc, argv); }
