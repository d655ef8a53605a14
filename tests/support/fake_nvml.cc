// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library with two GPUs: one that supports every question, and one that
// supports few of them, as virtual GPUs do. WEIR_FAKE_NVML_BROKEN makes the initialisation fail.

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kNotSupported = 3;
int devices[2];

bool IsFirst(const void* device) { return device == &devices[0]; }
int Give(const void* device, unsigned value, unsigned* out) {
  if (!IsFirst(device)) return kNotSupported;
  *out = value;
  return 0;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) int

FAKE nvmlInit_v2() { return std::getenv("WEIR_FAKE_NVML_BROKEN") == nullptr ? 0 : 9; }
FAKE nvmlShutdown() { return 0; }
FAKE nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
FAKE nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return 0;
}
FAKE nvmlDeviceGetName(void* device, char* text, unsigned length) {
  std::snprintf(text, length, "%s", IsFirst(device) ? "Fake H100" : "Fake vGPU");
  return 0;
}
FAKE nvmlDeviceGetUUID(void* device, char* text, unsigned length) {
  if (!IsFirst(device)) return kNotSupported;
  std::snprintf(text, length, "GPU-0123");
  return 0;
}
FAKE nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  if (!IsFirst(device)) return kNotSupported;
  memory[0] = 80ull << 30;
  memory[1] = 60ull << 30;
  memory[2] = 20ull << 30;
  return 0;
}
FAKE nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  if (!IsFirst(device)) return kNotSupported;
  rates[0] = 75;
  rates[1] = 30;
  return 0;
}
FAKE nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned* out) {
  return Give(device, 5, out);
}
FAKE nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* out) { return Give(device, 16, out); }
FAKE nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned* out) {
  return Give(device, 1, out);
}
FAKE nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* out) { return Give(device, 16, out); }
FAKE nvmlDeviceGetClockInfo(void* device, int kind, unsigned* out) {
  return Give(device, kind == 1 ? 1980 : 2619, out);
}
FAKE nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  if (!IsFirst(device)) return kNotSupported;
  *active = link < 12 ? 1 : 0;
  return 0;
}
FAKE nvmlDeviceGetNvLinkVersion(void* device, unsigned, unsigned* out) {
  return Give(device, 4, out);
}
