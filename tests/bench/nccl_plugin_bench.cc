// SPDX-License-Identifier: Apache-2.0
// The time that libnccl-weir.so adds to NCCL's own work: a question to the tuner, and the events of
// one transfer, inside and outside of the sample. A call of a function that does nothing is the
// peer.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <memory>

#include "datapath/nccl/plugin/profile.h"
#include "datapath/nccl/plugin/tuner.h"

namespace weir::nccl::plugin {
namespace {

[[gnu::noinline]] void Nothing(void* value) { benchmark::DoNotOptimize(value); }

void EmptyCall(benchmark::State& state) {
  int value = 0;
  for (auto _ : state) Nothing(&value);
}

// The agreement is among one rank; range(0) is the number of rules, of which the last one matches.
void TunerQuestion(benchmark::State& state) {
  std::string rules = R"({"rules": [)";
  for (int64_t i = 1; i < state.range(0); ++i) {
    rules += R"({"function": "reduce", "algorithm": "ring", "protocol": "ll"},)";
  }
  rules += R"({"function": "all_reduce", "algorithm": "ring", "protocol": "simple"}]})";
  TunerOptions options;
  options.communicator = static_cast<uint64_t>(getpid());
  options.first = std::make_shared<const Table>(*Table::Parse(rules));
  Tuner tuner(options);
  float costs[kAlgorithms * kProtocols] = {};
  int channels = 0;
  for (auto _ : state) {
    tuner.Choose(kNcclAllReduce, 4096, 1, costs, kAlgorithms, kProtocols, &channels);
  }
}

struct Transfers {
  explicit Transfers(uint32_t sample_every) : profile({0, "", 1, 2, 0, sample_every}) {
    EventDescriptorV5 collective{};
    collective.type = kEventCollective;
    collective.collective.function = "AllReduce";
    collective.collective.type = "ncclFloat32";
    collective.collective.count = 1 << 20;
    void* const parent = sample_every == 1 ? profile.Start(collective) : nullptr;
    EventDescriptorV5 proxy{};
    proxy.type = kEventProxyOperation;
    proxy.parent = parent;
    proxy.proxy_operation.process = getpid();
    proxy.proxy_operation.is_send = 1;
    step.type = kEventProxyStep;
    step.parent = profile.Start(proxy);
  }
  Profile profile;
  EventDescriptorV5 step{};
};

// The five calls of one transfer that is sent. NCCL leaves out the last four if the first one
// returned no handle.
void Transfer(benchmark::State& state) {
  Transfers transfers(static_cast<uint32_t>(state.range(0)));
  EventStateArguments arguments{};
  arguments.proxy_step.bytes = 131072;
  for (auto _ : state) {
    void* const event = transfers.profile.Start(transfers.step);
    if (event == nullptr) continue;
    Profile::Record(event, kStepSendGpuWait, &arguments);
    Profile::Record(event, kStepSendPeerWait, &arguments);
    Profile::Record(event, kStepSendWait, &arguments);
    Profile::Stop(event);
  }
  state.SetLabel(state.range(0) == 1 ? "in the sample" : "outside of the sample");
}

void Operation(benchmark::State& state) {
  Transfers transfers(static_cast<uint32_t>(state.range(0)));
  EventDescriptorV5 collective{};
  collective.type = kEventCollective;
  collective.collective.function = "AllReduce";
  collective.collective.type = "ncclFloat32";
  collective.collective.count = 1 << 20;
  for (auto _ : state) benchmark::DoNotOptimize(transfers.profile.Start(collective));
}

BENCHMARK(EmptyCall);
BENCHMARK(TunerQuestion)->Arg(1)->Arg(256);
BENCHMARK(Operation)->Arg(1)->Arg(16);
BENCHMARK(Transfer)->Arg(1)->Arg(1 << 20);

}  // namespace
}  // namespace weir::nccl::plugin

BENCHMARK_MAIN();
