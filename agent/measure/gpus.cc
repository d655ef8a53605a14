// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/gpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "agent/measure/socket.h"
#include "datapath/base/log.h"

namespace weir::agent {
namespace {

// NVML's C interface as far as it is used. Its functions return 0 for success; others than these
// may be missing in old drivers.
using NvmlDevice = void*;
struct NvmlUtilisation {
  unsigned gpu, memory;  // per cent
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int kNvmlClockSm = 1;
constexpr int kNvmlClockMemory = 2;
constexpr unsigned kNvmlLinksMax = 18;
constexpr double kHertzPerMegahertz = 1e6;

}  // namespace

double GpuInfo::pcie_bytes_per_s() const {
  // The payload rate of one lane: generations 1 and 2 code 8 bits as 10, later ones 128 as 130, the
  // newest FLITs.
  static constexpr std::array<double, 7> kLane = {0,       0.25e9,  0.5e9,  0.985e9,
                                                  1.969e9, 3.938e9, 7.563e9};
  return pcie_generation < kLane.size() ? kLane[pcie_generation] * pcie_width : 0;
}

class GpuMonitor::Nvml {
 public:
  static StatusOr<std::unique_ptr<Nvml>> Load(const std::string& library) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return NotFound(StrCat("no NVML: ", dlerror()));
    std::unique_ptr<Nvml> nvml(new Nvml(handle));
    for (const char* needed : {"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2",
                               "nvmlDeviceGetHandleByIndex_v2"}) {
      if (dlsym(handle, needed) == nullptr) return NotFound(StrCat(library, " has no ", needed));
    }
    if (const int error = nvml->Call("nvmlInit_v2"); error != 0) {
      return Unavailable(StrCat("nvmlInit_v2: error ", error));
    }
    nvml->initialised_ = true;
    return nvml;
  }

  ~Nvml() {
    if (initialised_) Call("nvmlShutdown");
    dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Gpus Read() {
    Gpus gpus;
    unsigned count = 0;
    if (Call("nvmlDeviceGetCount_v2", &count) != 0) return gpus;
    count = std::min<unsigned>(count, kGpusMax);
    for (unsigned i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      if (Call("nvmlDeviceGetHandleByIndex_v2", i, &device) != 0) continue;
      gpus.info.push_back(ReadInfo(device));
      gpus.samples.push_back(ReadSample(device));
    }
    return gpus;
  }

 private:
  explicit Nvml(void* handle) : handle_(handle) {}

  // Returns the function's result, or an error when this version of the library lacks it.
  template <typename... Args>
  int Call(const char* name, Args... args) {
    auto* const function = reinterpret_cast<int (*)(Args...)>(dlsym(handle_, name));
    return function == nullptr ? -1 : function(args...);
  }

  unsigned Number(const char* name, NvmlDevice device) {
    unsigned value = 0;
    return Call(name, device, &value) == 0 ? value : 0;
  }

  double Clock(NvmlDevice device, int kind) {
    unsigned megahertz = 0;
    if (Call("nvmlDeviceGetClockInfo", device, kind, &megahertz) != 0) return 0;
    return megahertz * kHertzPerMegahertz;
  }

  std::string Text(const char* name, NvmlDevice device) {
    std::array<char, 97> text{};
    if (Call(name, device, text.data(), static_cast<unsigned>(text.size() - 1)) != 0) return "";
    return text.data();
  }

  GpuInfo ReadInfo(NvmlDevice device) {
    GpuInfo info;
    info.name = Text("nvmlDeviceGetName", device);
    info.uuid = Text("nvmlDeviceGetUUID", device);
    NvmlMemory memory{};
    if (Call("nvmlDeviceGetMemoryInfo", device, &memory) == 0) info.memory_bytes = memory.total;
    info.pcie_generation = Number("nvmlDeviceGetMaxPcieLinkGeneration", device);
    info.pcie_width = Number("nvmlDeviceGetMaxPcieLinkWidth", device);
    for (unsigned link = 0; link < kNvmlLinksMax; ++link) {
      int active = 0;
      if (Call("nvmlDeviceGetNvLinkState", device, link, &active) != 0 || active == 0) continue;
      ++info.nvlinks;
      unsigned version = 0;
      if (Call("nvmlDeviceGetNvLinkVersion", device, link, &version) == 0) {
        info.nvlink_version = std::max(info.nvlink_version, version);
      }
    }
    return info;
  }

  GpuSample ReadSample(NvmlDevice device) {
    GpuSample sample;
    NvmlUtilisation busy{};
    if (Call("nvmlDeviceGetUtilizationRates", device, &busy) == 0) {
      sample.utilisation = std::min(busy.gpu, 100u) / 100.0;
      sample.memory_utilisation = std::min(busy.memory, 100u) / 100.0;
    }
    NvmlMemory memory{};
    if (Call("nvmlDeviceGetMemoryInfo", device, &memory) == 0) {
      sample.memory_used_bytes = memory.used;
    }
    sample.sm_clock_hz = Clock(device, kNvmlClockSm);
    sample.memory_clock_hz = Clock(device, kNvmlClockMemory);
    sample.pcie_generation = Number("nvmlDeviceGetCurrPcieLinkGeneration", device);
    sample.pcie_width = Number("nvmlDeviceGetCurrPcieLinkWidth", device);
    return sample;
  }

  void* const handle_;
  bool initialised_ = false;
};

GpuMonitor::GpuMonitor(const std::string& library, Duration interval) : interval_(interval) {
  if (library.empty()) return;
  StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Load(library);
  if (!nvml.ok()) {
    Log(LogLevel::kInfo, "agent", StrCat("no GPUs are watched: ", Message(nvml.status())));
    return;
  }
  nvml_ = std::move(*nvml);
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

GpuMonitor::~GpuMonitor() = default;

void GpuMonitor::Run(const std::stop_token& stop) {
  NameThread("weir-gpus");
  while (!stop.stop_requested()) {
    Gpus gpus = nvml_->Read();
    std::unique_lock lock(mutex_);
    newest_ = std::move(gpus);
    measured_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, stop, interval_, [] { return false; });
  }
}

Gpus GpuMonitor::Newest(Duration wait) {
  std::unique_lock lock(mutex_);
  if (nvml_ != nullptr) changed_.wait_for(lock, wait, [this] { return measured_; });
  return newest_;
}

}  // namespace weir::agent
