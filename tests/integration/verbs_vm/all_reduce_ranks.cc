// SPDX-License-Identifier: Apache-2.0
// Whole sessions with a job key in separate processes: every rank averages a gradient with the
// others through libweir's C interface over the named transport, checks every element, and prints
// the time.
// Usage: verbs_vm_ranks TRANSPORT ELEMENTS STEPS LISTEN... (one rank per LISTEN)

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "datapath/api/weir.h"

namespace {

constexpr size_t kAddressBytes = 64;
constexpr size_t kRanksMax = 16;
constexpr char kKey[] = "the key of a test has 32 octets.";

// Memory by which the processes exchange addresses before they are connected.
struct Shared {
  std::atomic<int> listening{0};
  char addresses[kRanksMax][kAddressBytes] = {};
};

struct Job {
  std::string transport;
  size_t elements = 0;
  int steps = 0;
  std::vector<std::string> listen;
};

[[noreturn]] void Die(int rank, const std::string& what) {
  std::fprintf(stderr, "rank %d: %s\n", rank, what.c_str());
  std::fflush(stderr);
  _exit(1);
}

float Value(int rank, int step, size_t i) {
  return static_cast<float>((i * 7 + static_cast<size_t>(step)) % 1000) +
         static_cast<float>(rank * 4);
}

void Step(weir_session* session, uint64_t bucket, const Job& job, int rank, int step) {
  const auto world = static_cast<int>(job.listen.size());
  std::vector<float> gradient(job.elements);
  for (size_t i = 0; i < job.elements; ++i) gradient[i] = Value(rank, step, i);
  const auto start = std::chrono::steady_clock::now();
  int32_t skipped = 0;
  if (weir_step_begin(session) != WEIR_OK ||
      weir_all_reduce(session, bucket, gradient.data(), 1.0 / world, nullptr, nullptr, nullptr) !=
          WEIR_OK ||
      weir_step_end(session, &skipped) != WEIR_OK || skipped != 0) {
    Die(rank, std::string("step failed: ") + weir_last_error(session));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (size_t i = 0; i < job.elements; ++i) {
    const float expected = Value(0, step, i) + 2.0f * static_cast<float>(world - 1);
    if (std::fabs(gradient[i] - expected) > 1e-3f) {
      Die(rank, "element " + std::to_string(i) + ": expected " + std::to_string(expected) +
                    ", found " + std::to_string(gradient[i]));
    }
  }
  if (rank == 0) {
    std::printf("%s: step %d, %zu bytes over %d ranks in %.4f s\n", job.transport.c_str(), step,
                job.elements * sizeof(float), world, seconds.count());
    std::fflush(stdout);
  }
}

void RunRank(int rank, const Job& job, Shared& shared) {
  const size_t world = job.listen.size();
  weir_options options = {};
  options.struct_size = sizeof options;
  options.job = "verbs_vm";
  options.rank = rank;
  options.world = static_cast<int32_t>(world);
  options.transport = job.transport.c_str();
  options.job_key = kKey;
  options.job_key_size = sizeof kKey - 1;
  options.listen = job.listen[rank].c_str();
  weir_session* session = nullptr;
  char error[1024] = {};
  if (weir_session_create(&options, &session, error, sizeof error) != WEIR_OK) Die(rank, error);
  std::snprintf(shared.addresses[rank], kAddressBytes, "%s", weir_session_address(session));
  ++shared.listening;
  while (shared.listening < static_cast<int>(world)) std::this_thread::yield();
  std::vector<const char*> addresses;
  for (size_t r = 0; r < world; ++r) addresses.push_back(shared.addresses[r]);
  if (weir_session_connect(session, addresses.data(), static_cast<int32_t>(world)) != WEIR_OK) {
    Die(rank, weir_last_error(session));
  }
  const weir_parameter parameter = {"layer.weight", job.elements, 0};
  uint64_t bucket = 0;
  if (weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &bucket) != WEIR_OK) {
    Die(rank, weir_last_error(session));
  }
  for (int step = 0; step < job.steps; ++step) Step(session, bucket, job, rank, step);
  weir_session_close(session);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || argc - 4 > static_cast<int>(kRanksMax)) {
    std::fprintf(stderr, "usage: %s TRANSPORT ELEMENTS STEPS LISTEN...\n", argv[0]);
    return 2;
  }
  const Job job = {argv[1], static_cast<size_t>(std::atoll(argv[2])), std::atoi(argv[3]),
                   std::vector<std::string>(argv + 4, argv + argc)};
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* const shared = new (memory) Shared();
  std::vector<pid_t> children;
  for (size_t rank = 0; rank < job.listen.size(); ++rank) {
    const pid_t child = fork();  // before any session: neither threads nor devices survive it
    if (child < 0) return 1;
    if (child == 0) {
      alarm(120);
      RunRank(static_cast<int>(rank), job, *shared);
      _exit(0);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    failed += waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  return failed == 0 ? 0 : 1;
}
