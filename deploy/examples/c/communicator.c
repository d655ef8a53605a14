// SPDX-License-Identifier: Apache-2.0
/* Exact operations between ranks through weir.h: two ranks as processes of one host exchange
 * addresses, send each other a message and average a vector. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weir.h>

enum { kWorld = 2, kCount = 1000, kAddressBytes = 256 };

static void check(weir_communicator* communicator, weir_status status, const char* what) {
  if (status == WEIR_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, weir_strerror(status),
          weir_communicator_last_error(communicator));
  exit(1);
}

/* Waits for an operation and frees it. */
static void finish(weir_communicator* communicator, weir_request* operation, const char* what) {
  check(communicator, weir_request_wait(operation, 0, NULL), what);
  check(communicator, weir_request_release(operation), what);
}

/* Any rendezvous will do: a file system, a key-value store, MPI. Here a pipe to the other rank. */
static void exchange(int to_peer, int from_peer, int rank, char addresses[kWorld][kAddressBytes]) {
  if (write(to_peer, addresses[rank], kAddressBytes) != kAddressBytes ||
      read(from_peer, addresses[1 - rank], kAddressBytes) != kAddressBytes) {
    perror("exchange");
    exit(1);
  }
}

static int run(int rank, int to_peer, int from_peer) {
  weir_communicator_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.job = "example";
  options.rank = rank;
  options.world = kWorld;
  options.operation_timeout_s = 10;
  options.connect_timeout_s = 10;
  char error[256] = "";
  weir_communicator* communicator = NULL;
  if (weir_communicator_create(&options, &communicator, error, sizeof error) != WEIR_OK) {
    fprintf(stderr, "rank %d: %s\n", rank, error);
    return 1;
  }
  char addresses[kWorld][kAddressBytes];
  memset(addresses, 0, sizeof addresses);
  snprintf(addresses[rank], kAddressBytes, "%s", weir_communicator_address(communicator));
  exchange(to_peer, from_peer, rank, addresses);
  const char* all[kWorld] = {addresses[0], addresses[1]};
  check(communicator, weir_communicator_connect(communicator, all, kWorld), "connect");

  int mine = rank + 100, theirs = 0;
  weir_request *sent = NULL, *received = NULL, *reduced = NULL;
  check(communicator, weir_communicator_send(communicator, &mine, sizeof mine, 1 - rank, 0, &sent),
        "send");
  check(communicator,
        weir_communicator_receive(communicator, &theirs, sizeof theirs, 1 - rank, 0, &received),
        "receive");
  static float data[kCount];
  for (int i = 0; i < kCount; ++i) data[i] = (float)(i + rank);
  check(communicator,
        weir_communicator_all_reduce(communicator, data, kCount, WEIR_FLOAT32, WEIR_AVERAGE,
                                     &reduced),
        "all-reduce");
  finish(communicator, sent, "send");
  finish(communicator, received, "receive");
  finish(communicator, reduced, "all-reduce");
  const int right = theirs == 101 - rank && data[7] == 7.5f;
  printf("rank %d received %d, mean of element 7 is %g: %s\n", rank, theirs, data[7],
         right ? "right" : "WRONG");
  weir_communicator_close(communicator);
  return right ? 0 : 1;
}

int main(void) {
  int up[2], down[2], status = 1;
  if (pipe(up) != 0 || pipe(down) != 0) return 1;
  fflush(stdout);
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) exit(run(1, up[1], down[0]));
  const int own = run(0, down[1], up[0]);
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  return own != 0 ? own : WEXITSTATUS(status);
}
