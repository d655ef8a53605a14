// SPDX-License-Identifier: Apache-2.0
/* The smallest data-parallel job: two ranks, in two processes, average a vector with libweir.
 *
 * Usage: all_reduce_example [PLAN_FILE]
 * Each rank listens on a free port of the loopback interface and tells the other its address
 * through a pipe; a real job would use its launcher's store or a fixed list instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weir.h>

enum { kWorld = 2, kElements = 1000, kSteps = 5, kAddressBytes = 64 };

static int Fail(const weir_session* session, const char* what, weir_status status) {
  fprintf(stderr, "%s: %s: %s\n", what, weir_strerror(status), weir_last_error(session));
  return 1;
}

/* Exchanges addresses with the other rank. */
static int Rendezvous(int in, int out, const char* own, char* other) {
  char message[kAddressBytes] = {0};
  snprintf(message, sizeof message, "%s", own);
  if (write(out, message, sizeof message) != (ssize_t)sizeof message) return 1;
  size_t got = 0;
  while (got < kAddressBytes) {
    const ssize_t n = read(in, other + got, kAddressBytes - got);
    if (n <= 0) return 1;
    got += (size_t)n;
  }
  return 0;
}

static int Train(weir_session* session, int rank) {
  const weir_parameter parameter = {"layer.weight", kElements, 0};
  uint64_t bucket = 0;
  weir_status status = weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &bucket);
  if (status != WEIR_OK) return Fail(session, "define", status);
  float gradient[kElements];
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kElements; ++i) gradient[i] = (float)(i + step + 10 * rank);
    status = weir_step_begin(session);
    if (status != WEIR_OK) return Fail(session, "step begin", status);
    /* Returns at once; a training loop would go on with the backward pass of the next layer. */
    status = weir_all_reduce(session, bucket, gradient, 1.0 / kWorld, NULL, NULL, NULL);
    if (status != WEIR_OK) return Fail(session, "all-reduce", status);
    int32_t skipped = 0;
    status = weir_step_end(session, &skipped);
    if (status != WEIR_OK) return Fail(session, "step end", status);
    const float expected = (float)(7 + step) + 5.0f; /* the mean of both ranks at element 7 */
    if (skipped || gradient[7] < expected - 0.5f || gradient[7] > expected + 0.5f) {
      fprintf(stderr, "rank %d step %d: expected %g, found %g\n", rank, step, expected,
              gradient[7]);
      return 1;
    }
  }
  printf("rank %d: %d steps, element 7 is %g\n", rank, kSteps, gradient[7]);
  return 0;
}

static int RunRank(int rank, int in, int out, const char* plan_file) {
  weir_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.job = "all_reduce_example";
  options.rank = rank;
  options.world = kWorld;
  options.plan_file = plan_file;
  options.operation_timeout_s = 20;
  options.connect_timeout_s = 20;
  weir_session* session = NULL;
  char error[512];
  weir_status status = weir_session_create(&options, &session, error, sizeof error);
  if (status != WEIR_OK) {
    fprintf(stderr, "create: %s: %s\n", weir_strerror(status), error);
    return 1;
  }
  char other[kAddressBytes];
  int result = Rendezvous(in, out, weir_session_address(session), other);
  if (result == 0) {
    const char* addresses[kWorld];
    addresses[rank] = weir_session_address(session);
    addresses[1 - rank] = other;
    status = weir_session_connect(session, addresses, kWorld);
    result = status == WEIR_OK ? Train(session, rank) : Fail(session, "connect", status);
  }
  weir_session_close(session);
  return result;
}

int main(int argc, char** argv) {
  const char* plan_file = argc > 1 ? argv[1] : NULL;
  int to_child[2], to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) return 1;
  const pid_t child = fork(); /* before any session: threads do not survive a fork */
  if (child < 0) return 1;
  if (child == 0) {
    close(to_child[1]);
    close(to_parent[0]);
    exit(RunRank(1, to_child[0], to_parent[1], plan_file));
  }
  close(to_child[0]);
  close(to_parent[1]);
  const int result = RunRank(0, to_parent[0], to_child[1], plan_file);
  int status = 0;
  if (waitpid(child, &status, 0) != child) return 1;
  return result != 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
