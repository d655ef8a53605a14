// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL's plug-in interfaces as this library implements them: the tuner (versions 4 to 6), the
// profiler (4 to 6) and the environment (1 and 2). They are plain C structures that NCCL looks up
// by name, and NVIDIA asks plug-ins to bring their own declarations, because NCCL does not install
// its plug-in headers. tests/datapath/nccl/plugin/interface_test.cc compares them with NCCL's where
// a source tree is found. Declared for NCCL 2.24 to 2.30.

#include <cstddef>
#include <cstdint>

namespace weir::nccl::plugin {

inline constexpr int kSuccess = 0;  // ncclSuccess
inline constexpr int kSystemError = 2;

/// ncclFunc_t, of which the tuner is asked about the first five.
enum NcclFunction : int {
  kNcclBroadcast = 0,
  kNcclReduce = 1,
  kNcclAllGather = 2,
  kNcclReduceScatter = 3,
  kNcclAllReduce = 4,
};

inline constexpr int kAlgorithms = 7;  // tree, ring, collnet_direct, collnet_chain, nvls, ...
inline constexpr int kProtocols = 3;   // ll, ll128, simple

using NcclLogger = void (*)(int level, unsigned long subsystems, const char* file, int line,
                            const char* format, ...);

// The tuner.

/// `cost_table` is a contiguous float[algorithms][protocols] in spite of its type: microseconds, or
/// -1 where the combination is unavailable. NCCL takes the cell with the least cost. `*channels` of
/// 0 leaves the number of channels to NCCL.
using GetCollInfo = int (*)(void* context, int function, size_t bytes, int pipelined_operations,
                            float** cost_table, int algorithms, int protocols,
                            int registered_buffers, int* channels);

struct TunerV4 {
  const char* name;
  int (*init)(size_t ranks, size_t nodes, NcclLogger logger, void** context);
  GetCollInfo get_coll_info;
  int (*destroy)(void* context);
};

struct NvlinkDomains {
  int domains, ranks_min, ranks_max;
};

struct TunerConstants;  // NCCL's model, which this library leaves as it is

struct TunerV5 {
  const char* name;
  int (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes, NcclLogger logger,
              NvlinkDomains* domains, TunerConstants* constants);
  GetCollInfo get_coll_info;
  int (*finalize)(void* context);
};

struct TunerV6 {
  const char* name;
  int (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes, NcclLogger logger,
              NvlinkDomains* domains, TunerConstants* constants);
  GetCollInfo get_coll_info;
  int (*finalize)(void* context);
  int (*get_chunk_size)(void* context, int function, size_t bytes, int algorithm, int protocol,
                        int channels, size_t* chunk_bytes);
};

// The profiler.

enum EventType : uint64_t {
  kEventCollective = 1 << 1,
  kEventPointToPoint = 1 << 2,
  kEventProxyOperation = 1 << 3,
  kEventProxyStep = 1 << 4,
};

/// ncclProfilerEventState_t: in which part of its life a proxy step is.
enum EventState : int {
  kStepSendGpuWait = 8,    // waits for the GPU to fill the buffer
  kStepSendWait = 9,       // handed to the network, waits until it has left
  kStepReceiveWait = 10,   // waits for data
  kStepReceiveFlush = 11,  // arrived, is being made visible to the GPU
  kStepReceiveGpuWait = 12,
  kStepSendPeerWait = 20,  // filled, waits for the peer to have room
};

struct CollectiveDescriptor {
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* type;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
  // Version 5 and later have another member here, which is not used.
};

struct PointToPointDescriptor {
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int peer;
  uint8_t channels;
};

struct ProxyOperationDescriptor {
  int process;  // pid_t of the process in whose memory the parent lies
  uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int is_send;
};

/// The type is a byte in version 4 and eight bytes from version 5 on. All other members that are
/// used lie at the same offsets in all versions.
template <typename Type>
struct EventDescriptor {
  Type type;
  void* parent;
  int rank;
  union {
    CollectiveDescriptor collective;
    PointToPointDescriptor point_to_point;
    ProxyOperationDescriptor proxy_operation;
    struct {
      int step;
    } proxy_step;
  };
};
using EventDescriptorV4 = EventDescriptor<uint8_t>;
using EventDescriptorV5 = EventDescriptor<uint64_t>;
using EventDescriptorV6 = EventDescriptorV5;  // with more kinds of events, which are not asked for

union EventStateArguments {
  struct {
    size_t bytes;
  } proxy_step;
  void* pointer;
};

struct ProfilerV4 {
  const char* name;
  int (*init)(void** context, int* event_mask, const char* communicator_name, uint64_t communicator,
              int nodes, int ranks, int rank, NcclLogger logger);
  int (*start_event)(void* context, void** event, EventDescriptorV4* descriptor);
  int (*stop_event)(void* event);
  int (*record_event_state)(void* event, EventState state, EventStateArguments* arguments);
  int (*finalize)(void* context);
};

struct ProfilerV5 {
  const char* name;
  int (*init)(void** context, uint64_t communicator, int* event_mask, const char* communicator_name,
              int nodes, int ranks, int rank, NcclLogger logger);
  int (*start_event)(void* context, void** event, EventDescriptorV5* descriptor);
  int (*stop_event)(void* event);
  int (*record_event_state)(void* event, EventState state, EventStateArguments* arguments);
  int (*finalize)(void* context);
};
using ProfilerV6 = ProfilerV5;

// The environment.

struct EnvironmentV1 {
  const char* name;
  int (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix);
  int (*finalize)();
  const char* (*get)(const char* name);
};

struct EnvironmentV2 {
  const char* name;
  int (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix, NcclLogger logger);
  int (*finalize)();
  const char* (*get)(const char* name);
};

}  // namespace weir::nccl::plugin
