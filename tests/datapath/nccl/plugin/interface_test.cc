// SPDX-License-Identifier: Apache-2.0
// The declarations in interface.h against NCCL's own, where its source, 2.30 or later, is (cmake
// -DWEIR_NCCL_SOURCE=DIR), and against what is known of them everywhere.
#include "datapath/nccl/plugin/interface.h"

#include <gtest/gtest.h>

#if WEIR_HAVE_NCCL_SOURCE
#include "nccl.h"
#include "nccl_common.h"
#include "plugin/nccl_env.h"
#include "plugin/nccl_profiler.h"
#include "plugin/nccl_tuner.h"
#endif

namespace weir::nccl::plugin {
namespace {

static_assert(offsetof(EventDescriptorV4, parent) == 8);
static_assert(offsetof(EventDescriptorV4, collective) == 24);
static_assert(offsetof(EventDescriptorV5, collective) == 24);
static_assert(offsetof(EventDescriptorV5, rank) == 16);

#if WEIR_HAVE_NCCL_SOURCE
static_assert(kSuccess == ncclSuccess && kSystemError == ncclSystemError);
static_assert(kAlgorithms == NCCL_NUM_ALGORITHMS && kProtocols == NCCL_NUM_PROTOCOLS);
static_assert(kNcclBroadcast == ncclFuncBroadcast && kNcclReduce == ncclFuncReduce &&
              kNcclAllGather == ncclFuncAllGather && kNcclAllReduce == ncclFuncAllReduce &&
              kNcclReduceScatter == ncclFuncReduceScatter);
static_assert(kEventCollective == ncclProfileColl && kEventPointToPoint == ncclProfileP2p &&
              kEventProxyOperation == ncclProfileProxyOp &&
              kEventProxyStep == ncclProfileProxyStep);
static_assert(kStepSendGpuWait == static_cast<int>(ncclProfilerProxyStepSendGPUWait) &&
              kStepSendPeerWait == static_cast<int>(ncclProfilerProxyStepSendPeerWait_v4) &&
              kStepSendWait == static_cast<int>(ncclProfilerProxyStepSendWait) &&
              kStepReceiveWait == static_cast<int>(ncclProfilerProxyStepRecvWait) &&
              kStepReceiveFlush == static_cast<int>(ncclProfilerProxyStepRecvFlushWait) &&
              kStepReceiveGpuWait == static_cast<int>(ncclProfilerProxyStepRecvGPUWait));

#define WEIR_SAME_MEMBER(ours, our_member, theirs, their_member)                \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                sizeof(ours::our_member) == sizeof(theirs::their_member))

static_assert(sizeof(TunerV4) == sizeof(ncclTuner_v4_t));
WEIR_SAME_MEMBER(TunerV4, init, ncclTuner_v4_t, init);
WEIR_SAME_MEMBER(TunerV4, get_coll_info, ncclTuner_v4_t, getCollInfo);
WEIR_SAME_MEMBER(TunerV4, destroy, ncclTuner_v4_t, destroy);
static_assert(sizeof(TunerV5) == sizeof(ncclTuner_v5_t));
WEIR_SAME_MEMBER(TunerV5, get_coll_info, ncclTuner_v5_t, getCollInfo);
WEIR_SAME_MEMBER(TunerV5, finalize, ncclTuner_v5_t, finalize);
static_assert(sizeof(NvlinkDomains) == sizeof(ncclNvlDomainInfo_v5_t));
static_assert(sizeof(TunerV6) == sizeof(ncclTuner_v6_t));
WEIR_SAME_MEMBER(TunerV6, get_coll_info, ncclTuner_v6_t, getCollInfo);
WEIR_SAME_MEMBER(TunerV6, finalize, ncclTuner_v6_t, finalize);
WEIR_SAME_MEMBER(TunerV6, get_chunk_size, ncclTuner_v6_t, getChunkSize);

static_assert(sizeof(ProfilerV4) == sizeof(ncclProfiler_v4_t));
WEIR_SAME_MEMBER(ProfilerV4, start_event, ncclProfiler_v4_t, startEvent);
WEIR_SAME_MEMBER(ProfilerV4, stop_event, ncclProfiler_v4_t, stopEvent);
WEIR_SAME_MEMBER(ProfilerV4, record_event_state, ncclProfiler_v4_t, recordEventState);
WEIR_SAME_MEMBER(ProfilerV4, finalize, ncclProfiler_v4_t, finalize);
static_assert(sizeof(ProfilerV6) == sizeof(ncclProfiler_v6_t));
WEIR_SAME_MEMBER(ProfilerV6, start_event, ncclProfiler_v6_t, startEvent);
WEIR_SAME_MEMBER(ProfilerV6, finalize, ncclProfiler_v6_t, finalize);

#define WEIR_SAME_DESCRIPTOR(ours, theirs)                                 \
  WEIR_SAME_MEMBER(ours, type, theirs, type);                              \
  WEIR_SAME_MEMBER(ours, parent, theirs, parentObj);                       \
  WEIR_SAME_MEMBER(ours, collective.function, theirs, coll.func);          \
  WEIR_SAME_MEMBER(ours, collective.count, theirs, coll.count);            \
  WEIR_SAME_MEMBER(ours, collective.type, theirs, coll.datatype);          \
  WEIR_SAME_MEMBER(ours, collective.protocol, theirs, coll.proto);         \
  WEIR_SAME_MEMBER(ours, point_to_point.count, theirs, p2p.count);         \
  WEIR_SAME_MEMBER(ours, point_to_point.type, theirs, p2p.datatype);       \
  WEIR_SAME_MEMBER(ours, proxy_operation.process, theirs, proxyOp.pid);    \
  WEIR_SAME_MEMBER(ours, proxy_operation.is_send, theirs, proxyOp.isSend); \
  WEIR_SAME_MEMBER(ours, proxy_step.step, theirs, proxyStep.step)
WEIR_SAME_DESCRIPTOR(EventDescriptorV4, ncclProfilerEventDescr_v4_t);
WEIR_SAME_DESCRIPTOR(EventDescriptorV5, ncclProfilerEventDescr_v5_t);
WEIR_SAME_DESCRIPTOR(EventDescriptorV6, ncclProfilerEventDescr_v6_t);
WEIR_SAME_MEMBER(EventStateArguments, proxy_step.bytes, ncclProfilerEventStateArgs_v5_t,
                 proxyStep.transSize);

static_assert(sizeof(EnvironmentV1) == sizeof(ncclEnv_v1_t));
WEIR_SAME_MEMBER(EnvironmentV2, finalize, ncclEnv_v2_t, finalize);
WEIR_SAME_MEMBER(EnvironmentV2, get, ncclEnv_v2_t, getEnv);
#endif

TEST(InterfaceTest, IsComparedWithNcclsHeaders) {
#if !WEIR_HAVE_NCCL_SOURCE
  GTEST_SKIP() << "no source tree of NCCL (cmake -DWEIR_NCCL_SOURCE=DIR)";
#endif
}

}  // namespace
}  // namespace weir::nccl::plugin
