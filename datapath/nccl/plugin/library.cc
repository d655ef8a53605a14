// SPDX-License-Identifier: Apache-2.0
// libnccl-weir.so: the tables of functions that NCCL looks up, and the only place that reads the
// environment. No function here fails or throws: whatever goes wrong, NCCL runs as without the
// library.
//   WEIR_AGENT, WEIR_AGENT_TOKEN  the agent of the node, as for libweir
//   WEIR_NCCL_TABLE   file with the table that is used from the first call on, equal on all ranks
//   WEIR_NCCL_SAMPLE  every how many operations one is measured, on average (16); 0: none
//   WEIR_NCCL_ENV     file of NCCL's variables for the environment plug-in

#include <dlfcn.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "datapath/base/caught.h"
#include "datapath/base/log.h"
#include "datapath/nccl/plugin/environment.h"
#include "datapath/nccl/plugin/interface.h"
#include "datapath/nccl/plugin/plugin.h"
#include "datapath/wire/agent_socket.h"

namespace weir::nccl::plugin {
namespace {

constexpr uint32_t kSampleEveryMax = 1 << 20;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// At most `bytes_max` and one more bytes, so that the parser notices a longer file.
StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(StrCat("cannot open ", path));
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::shared_ptr<const Table> FirstTable() {
  const std::string path = Variable("WEIR_NCCL_TABLE");
  if (path.empty()) return std::make_shared<const Table>();
  const StatusOr<std::string> text = ReadFile(path, kTableBytesMax);
  StatusOr<Table> table = text.ok() ? Table::Parse(*text) : StatusOr<Table>(text.status());
  if (table.ok()) return std::make_shared<const Table>(*std::move(table));
  Log(LogLevel::kError, "nccl",
      StrCat("WEIR_NCCL_TABLE=", path, " is not used: ", Message(table.status())));
  return std::make_shared<const Table>();
}

uint32_t SampleEvery() {
  const std::string text = Variable("WEIR_NCCL_SAMPLE");
  uint32_t value = PluginOptions().sample_every;
  if (text.empty()) return value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value <= kSampleEveryMax) {
    return value;
  }
  Log(LogLevel::kError, "nccl",
      StrCat("WEIR_NCCL_SAMPLE: expected 0 to ", kSampleEveryMax, ", found '", text, "'"));
  return PluginOptions().sample_every;
}

// Made at the first use, so that a process that only loads the library pays nothing.
struct Shared {
  PluginOptions options;
  bool tunes = false, measures = false;  // whether there is anything to do
  std::unique_ptr<Plugin> plugin;

  Shared() {
    options.agent = Variable("WEIR_AGENT");
    options.agent_token = Variable("WEIR_AGENT_TOKEN");
    options.first = FirstTable();
    options.sample_every = SampleEvery();
    if (!options.agent.empty()) {
      const Status valid = CheckAgentAddress(options.agent);
      if (!valid.ok()) {
        Log(LogLevel::kError, "nccl", Message(valid));
        options.agent.clear();
      }
    }
    tunes = !options.agent.empty() || options.first->size() > 0;
    measures = !options.agent.empty() && options.sample_every > 0;
    plugin = std::make_unique<Plugin>(options);
  }
};

// A process may exit while NCCL's threads still use their communicators. Then nothing is destroyed.
// When NCCL unloads the library there are none left.
struct SharedHolder {
  Shared* const shared = new Shared;

  ~SharedHolder() {
    if (shared->plugin->idle()) delete shared;
  }
};

Shared& Process() {
  static SharedHolder holder;
  return *holder.shared;
}

// The tuner.

int StartTuner(void** context, uint64_t communicator, size_t ranks, size_t nodes) {
  *context = nullptr;
  (void)Caught([&] {
    if (Process().tunes) {
      *context = Process().plugin->AddTuner(communicator, static_cast<uint32_t>(ranks),
                                            static_cast<uint32_t>(nodes));
    }
  });
  return kSuccess;
}

int StartTunerV4(size_t ranks, size_t nodes, NcclLogger /*logger*/, void** context) {
  return StartTuner(context, 0, ranks, nodes);
}

int StartTunerV5(void** context, uint64_t communicator, size_t ranks, size_t nodes,
                 NcclLogger /*logger*/, NvlinkDomains* /*domains*/, TunerConstants* /*constants*/) {
  return StartTuner(context, communicator, ranks, nodes);
}

int Choose(void* context, int function, size_t bytes, int pipelined_operations, float** cost_table,
           int algorithms, int protocols, int /*registered_buffers*/, int* channels) {
  if (context == nullptr || cost_table == nullptr || channels == nullptr) return kSuccess;
  (void)Caught([&] {
    static_cast<Tuner*>(context)->Choose(function, bytes, pipelined_operations,
                                         reinterpret_cast<float*>(cost_table), algorithms,
                                         protocols, channels);
  });
  return kSuccess;
}

int ChooseChunk(void* context, int function, size_t bytes, int algorithm, int protocol,
                int /*channels*/, size_t* chunk_bytes) {
  if (context == nullptr || chunk_bytes == nullptr) return kSuccess;
  (void)Caught([&] {
    static_cast<Tuner*>(context)->ChooseChunk(function, bytes, algorithm, protocol, chunk_bytes);
  });
  return kSuccess;
}

int EndTuner(void* context) {
  if (context == nullptr) return kSuccess;
  (void)Caught([&] { Process().plugin->Remove(static_cast<const Tuner*>(context)); });
  return kSuccess;
}

// The profiler.

int StartProfile(void** context, uint64_t communicator, int* event_mask, const char* name,
                 int nodes, int ranks, int rank) {
  *context = nullptr;
  *event_mask = 0;
  (void)Caught([&] {
    if (!Process().measures) return;
    *context = Process().plugin->AddProfile(
        {communicator, name == nullptr ? "" : name, nodes, ranks, rank});
    // NCCL has one mask for all communicators.
    *event_mask = kEventCollective | kEventPointToPoint | kEventProxyOperation | kEventProxyStep;
  });
  return kSuccess;
}

int StartProfileV4(void** context, int* event_mask, const char* name, uint64_t communicator,
                   int nodes, int ranks, int rank, NcclLogger /*logger*/) {
  return StartProfile(context, communicator, event_mask, name, nodes, ranks, rank);
}

int StartProfileV5(void** context, uint64_t communicator, int* event_mask, const char* name,
                   int nodes, int ranks, int rank, NcclLogger /*logger*/) {
  return StartProfile(context, communicator, event_mask, name, nodes, ranks, rank);
}

template <typename Descriptor>
int StartEvent(void* context, void** event, Descriptor* descriptor) {
  *event = context == nullptr ? nullptr : static_cast<Profile*>(context)->Start(*descriptor);
  return kSuccess;
}

int StopEvent(void* event) {
  Profile::Stop(event);
  return kSuccess;
}

int RecordEventState(void* event, EventState state, EventStateArguments* arguments) {
  Profile::Record(event, state, arguments);
  return kSuccess;
}

int EndProfile(void* context) {
  if (context == nullptr) return kSuccess;
  (void)Caught([&] { Process().plugin->Remove(static_cast<const Profile*>(context)); });
  return kSuccess;
}

// The environment. One variable, NCCL_ENV_PLUGIN, is then enough: the other two plug-ins are this
// library unless the job names others.

struct Environment {
  std::map<std::string, std::string, std::less<>> variables;

  Environment() {
    Dl_info self{};
    if (dladdr(reinterpret_cast<const void*>(&StopEvent), &self) != 0) {
      variables["NCCL_TUNER_PLUGIN"] = self.dli_fname;
      variables["NCCL_PROFILER_PLUGIN"] = self.dli_fname;
    }
    const std::string path = Variable("WEIR_NCCL_ENV");
    if (path.empty()) return;
    const StatusOr<std::string> text = ReadFile(path, kEnvironmentBytesMax);
    const auto parsed = text.ok() ? ParseEnvironment(*text) : text.status();
    if (!parsed.ok()) {
      Log(LogLevel::kError, "nccl",
          StrCat("WEIR_NCCL_ENV=", path, " is not used: ", Message(parsed.status())));
      return;
    }
    for (const auto& [name, value] : *parsed) variables[name] = value;
  }
};

const Environment* Variables() {
  static const Environment environment;
  return &environment;
}

int StartEnvironmentV1(uint8_t, uint8_t, uint8_t, const char*) {
  (void)Caught([] { Variables(); });
  return kSuccess;
}

int StartEnvironmentV2(uint8_t, uint8_t, uint8_t, const char*, NcclLogger) {
  (void)Caught([] { Variables(); });
  return kSuccess;
}

// Variables that the job sets itself take precedence.
const char* GetVariable(const char* name) {
  if (name == nullptr) return nullptr;
  const char* value = std::getenv(name);
  if (value != nullptr) return value;
  (void)Caught([&] {
    const auto& variables = Variables()->variables;
    const auto found = variables.find(std::string_view(name));
    if (found != variables.end()) value = found->second.c_str();
  });
  return value;
}

int EndEnvironment() { return kSuccess; }

}  // namespace
}  // namespace weir::nccl::plugin

#define WEIR_NCCL_EXPORT extern "C" __attribute__((visibility("default"), used)) const

// NOLINTBEGIN(readability-identifier-naming): the names that NCCL looks up
namespace plugin = weir::nccl::plugin;
WEIR_NCCL_EXPORT plugin::TunerV4 ncclTunerPlugin_v4 = {"weir", plugin::StartTunerV4, plugin::Choose,
                                                       plugin::EndTuner};
WEIR_NCCL_EXPORT plugin::TunerV5 ncclTunerPlugin_v5 = {"weir", plugin::StartTunerV5, plugin::Choose,
                                                       plugin::EndTuner};
WEIR_NCCL_EXPORT plugin::TunerV6 ncclTunerPlugin_v6 = {"weir", plugin::StartTunerV5, plugin::Choose,
                                                       plugin::EndTuner, plugin::ChooseChunk};
WEIR_NCCL_EXPORT plugin::ProfilerV4 ncclProfiler_v4 = {
    "weir",
    plugin::StartProfileV4,
    plugin::StartEvent<plugin::EventDescriptorV4>,
    plugin::StopEvent,
    plugin::RecordEventState,
    plugin::EndProfile};
WEIR_NCCL_EXPORT plugin::ProfilerV5 ncclProfiler_v5 = {
    "weir",
    plugin::StartProfileV5,
    plugin::StartEvent<plugin::EventDescriptorV5>,
    plugin::StopEvent,
    plugin::RecordEventState,
    plugin::EndProfile};
WEIR_NCCL_EXPORT plugin::ProfilerV6 ncclProfiler_v6 = ncclProfiler_v5;
WEIR_NCCL_EXPORT plugin::EnvironmentV1 ncclEnvPlugin_v1 = {
    "weir", plugin::StartEnvironmentV1, plugin::EndEnvironment, plugin::GetVariable};
WEIR_NCCL_EXPORT plugin::EnvironmentV2 ncclEnvPlugin_v2 = {
    "weir", plugin::StartEnvironmentV2, plugin::EndEnvironment, plugin::GetVariable};
// NOLINTEND(readability-identifier-naming)
