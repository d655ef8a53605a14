// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layer between the device codecs and the machine. An algorithm is a program that a team of
// threads runs on one tile of a tensor after the other. The same source is compiled twice: by nvcc,
// where a team is a block of threads and the tiles are spread over the GPU, and by the host's
// compiler, where a team is a loop. README.md in this directory describes the model.
//
// Every operation of a team ends with a barrier, and all threads call the same operations in the
// same order. What one thread writes to shared or global memory is visible to the others after it.
// Inside of an operation, the calls of the given function may run in any order and at the same
// time, so none may read what another one writes.

#include <cstddef>
#include <cstdint>

#include "datapath/base/status.h"
#include "datapath/cuda/stream.h"

#if defined(__CUDACC__)
#define WEIR_DEVICE __device__
/// Before a loop over an array that must stay in registers.
#define WEIR_UNROLL _Pragma("unroll")
#else
#include <algorithm>
#include <cstring>
#include <memory>
#define WEIR_DEVICE
#define WEIR_UNROLL
#endif

namespace weir::cuda {

/// The number of threads of a team.
inline constexpr unsigned kTeamThreads = 256;
/// The most teams of one launch, and so the most partial results of it.
inline constexpr unsigned kTeamsMax = 4096;
/// The most values of Team::Scan.
inline constexpr unsigned kScanMax = 2048;

#if defined(__CUDACC__)

class Team {
 public:
  /// The number of this team in its launch, below kTeamsMax.
  WEIR_DEVICE unsigned index() const { return blockIdx.x; }

  /// Calls f(i) for 0 <= i < count.
  template <class F>
  WEIR_DEVICE void ForEach(unsigned count, F&& f) {
    for (unsigned i = threadIdx.x; i < count; i += kTeamThreads) f(i);
    __syncthreads();
  }
  template <class F>
  WEIR_DEVICE void Once(F&& f) {
    if (threadIdx.x == 0) f();
    __syncthreads();
  }
  /// Sets bit i % 32 of words[i / 32] to test(i) for i < count, and the bits after the last to 0.
  template <class F>
  WEIR_DEVICE void Ballot(unsigned count, F&& test, uint32_t* words) {
    const unsigned padded = (count + 31) / 32 * 32;
    for (unsigned i = threadIdx.x; i < padded; i += kTeamThreads) {
      const uint32_t word = __ballot_sync(0xFFFFFFFFu, i < count && test(i));
      if (i % 32 == 0) words[i / 32] = word;
    }
    __syncthreads();
  }
  /// Calls f(i, &sum) for i < count, where the sums begin as T::Zero(), and returns all of them
  /// added by T::Add. T is trivial and a multiple of four octets. The order of additions is always
  /// the same, but differs from the host's.
  template <class T, class F>
  WEIR_DEVICE T Reduce(unsigned count, F&& f) {
    __shared__ T parts[kTeamThreads / 32];
    T sum = T::Zero();
    for (unsigned i = threadIdx.x; i < count; i += kTeamThreads) f(i, &sum);
    sum = AddInWarp(sum, 32);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
      sum = threadIdx.x < kTeamThreads / 32 ? parts[threadIdx.x] : T::Zero();
      sum = AddInWarp(sum, kTeamThreads / 32);
      if (threadIdx.x == 0) parts[0] = sum;
    }
    __syncthreads();
    sum = parts[0];
    __syncthreads();
    return sum;
  }
  /// Replaces each of count <= kScanMax integers in shared memory by the sum of those before it,
  /// and returns the sum of all.
  template <class T>
  WEIR_DEVICE T Scan(T* values, unsigned count) {
    constexpr unsigned kEach = kScanMax / kTeamThreads;
    __shared__ T warps[kTeamThreads / 32];
    const unsigned first = threadIdx.x * kEach;
    T own = 0;
    for (unsigned i = first; i < first + kEach && i < count; ++i) own += values[i];
    T upto = own;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const T before = __shfl_up_sync(0xFFFFFFFFu, upto, distance);
      if (threadIdx.x % 32 >= distance) upto += before;
    }
    if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = upto;
    __syncthreads();
    T offset = upto - own, total = 0;
    for (unsigned warp = 0; warp < kTeamThreads / 32; ++warp) {
      if (warp < threadIdx.x / 32) offset += warps[warp];
      total += warps[warp];
    }
    for (unsigned i = first; i < first + kEach && i < count; ++i) {
      const T value = values[i];
      values[i] = offset;
      offset += value;
    }
    __syncthreads();
    return total;
  }
  /// Atomic operations, also between teams. Add returns the value before.
  WEIR_DEVICE static uint32_t Add(uint32_t* to, uint32_t value) { return atomicAdd(to, value); }
  WEIR_DEVICE static void Add(uint64_t* to, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }
  WEIR_DEVICE static void Or(uint32_t* to, uint32_t bits) { atomicOr(to, bits); }
  WEIR_DEVICE static void Lower(uint64_t* to, uint64_t value) {
    atomicMin(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  }

 private:
  template <class T>
  static WEIR_DEVICE T AddInWarp(T sum, unsigned lanes) {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0);
    for (unsigned distance = lanes / 2; distance > 0; distance /= 2) {
      T other;
      const auto* from = reinterpret_cast<const uint32_t*>(&sum);
      auto* to = reinterpret_cast<uint32_t*>(&other);
      WEIR_UNROLL for (unsigned w = 0; w < sizeof(T) / sizeof(uint32_t); ++w) {
        to[w] = __shfl_down_sync(0xFFFFFFFFu, from[w], distance);
      }
      sum.Add(other);
    }
    return sum;
  }
};

template <class Program>
__global__ void __launch_bounds__(kTeamThreads) RunProgram(const Program program, size_t tiles) {
  __shared__ typename Program::Shared shared;
  Team team;
  program.Begin(team, shared);
  for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    program.Tile(team, shared, tile);
  }
  program.End(team, shared);
}

/// The status of a CUDA call: kUnavailable with the name of the call.
Status CudaStatus(int error, const char* call);
/// The number of teams that the current device runs at the same time, at most kTeamsMax.
StatusOr<unsigned> ResidentTeams(const void* kernel);

/// Queues `program` for `tiles` tiles (none: nothing is queued) and returns the number of teams
/// that run it. Program is trivially copyable. It has a trivial type Shared, which begins with any
/// content, and const members Begin(team, shared), Tile(team, shared, tile) and End(team, shared).
template <class Program>
StatusOr<unsigned> Launch(Stream stream, size_t tiles, const Program& program) {
  if (tiles == 0) return 0u;
  const auto* kernel = reinterpret_cast<const void*>(&RunProgram<Program>);
  static const StatusOr<unsigned> resident = ResidentTeams(kernel);
  if (!resident.ok()) return resident.status();
  const unsigned teams = tiles < *resident ? static_cast<unsigned>(tiles) : *resident;
  RunProgram<Program>
      <<<teams, kTeamThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(program, tiles);
  WEIR_RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), "a kernel's launch"));
  return teams;
}

#else  // The host's team: one thread, which runs the calls of an operation in one of two orders.

class Team {
 public:
  Team(unsigned index, bool backwards) : index_(index), backwards_(backwards) {}

  unsigned index() const { return index_; }

  template <class F>
  void ForEach(unsigned count, F&& f) {
    for (unsigned i = 0; i < count; ++i) f(backwards_ ? count - 1 - i : i);
  }
  template <class F>
  void Once(F&& f) {
    f();
  }
  template <class F>
  void Ballot(unsigned count, F&& test, uint32_t* words) {
    for (unsigned i = 0; i < (count + 31) / 32; ++i) words[i] = 0;
    ForEach(count, [&](unsigned i) { words[i / 32] |= uint32_t{test(i)} << (i % 32); });
  }
  template <class T, class F>
  T Reduce(unsigned count, F&& f) {
    T sum = T::Zero();
    ForEach(count, [&](unsigned i) { f(i, &sum); });
    return sum;
  }
  template <class T>
  T Scan(T* values, unsigned count) {
    T total = 0;
    for (unsigned i = 0; i < count; ++i) {
      const T value = values[i];
      values[i] = total;
      total += value;
    }
    return total;
  }
  static uint32_t Add(uint32_t* to, uint32_t value) {
    const uint32_t before = *to;
    *to += value;
    return before;
  }
  static void Add(uint64_t* to, uint64_t value) { *to += value; }
  static void Or(uint32_t* to, uint32_t bits) { *to |= bits; }
  static void Lower(uint64_t* to, uint64_t value) { *to = std::min(*to, value); }

 private:
  const unsigned index_;
  const bool backwards_;
};

/// As above. There are up to three teams, so that partial results are combined here, too.
template <class Program>
StatusOr<unsigned> Launch(Stream stream, size_t tiles, const Program& program) {
  const auto teams = static_cast<unsigned>(std::min<size_t>(tiles, 3));
  const bool backwards = stream.handle == kBackwards;
  RunOnHost(stream, [=] {
    for (unsigned i = 0; i < teams; ++i) {
      Team team(backwards ? teams - 1 - i : i, backwards);
      const auto shared = std::make_unique_for_overwrite<typename Program::Shared>();
      std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(*shared));
      program.Begin(team, *shared);
      const size_t own = (tiles - team.index() + teams - 1) / teams;
      for (size_t j = 0; j < own; ++j) {
        const size_t turn = backwards ? own - 1 - j : j;
        program.Tile(team, *shared, team.index() + turn * teams);
      }
      program.End(team, *shared);
    }
  });
  return teams;
}

#endif

/// A base for programs that keep nothing between tiles.
struct TileProgram {
  struct Shared {};
  template <class S>
  WEIR_DEVICE void Begin(Team&, S&) const {}
  template <class S>
  WEIR_DEVICE void End(Team&, S&) const {}
};

}  // namespace weir::cuda
