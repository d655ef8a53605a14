// SPDX-License-Identifier: Apache-2.0
// One rank of the benchmark collective_bench: MPI_Allreduce of Open MPI.
//
//   mpirun ... collective_open_mpi SOCKET TRANSPORT
//
// TRANSPORT is the name to report; mpirun's options determine the transport itself.

#include <mpi.h>

#include "tests/bench/collective/contestant.h"

int main(int argc, char** argv) {
  using namespace weir::bench;
  if (argc != 3) Die("expected SOCKET TRANSPORT; tests/bench/collective_bench starts this");
  MPI_Init(&argc, &argv);
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  {
    Channel channel(argv[1]);
    channel.Send("hello " + std::to_string(rank));
    const auto run = [](std::vector<float>& values) {
      MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT,
                    MPI_SUM, MPI_COMM_WORLD);
    };
    Serve(channel, rank, world, {{argv[2], "open_mpi", run, [] { MPI_Barrier(MPI_COMM_WORLD); }}});
  }
  MPI_Finalize();
  return 0;
}
