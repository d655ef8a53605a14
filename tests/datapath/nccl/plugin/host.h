// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plays NCCL against the tables of functions that libnccl-weir.so exports.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "datapath/nccl/plugin/interface.h"

namespace weir::nccl::plugin {

/// The library, loaded as NCCL does and unloaded at the end. Its environment is read at the first
/// use after loading.
class LoadedLibrary {
 public:
  LoadedLibrary() : handle_(dlopen(WEIR_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << dlerror();
    was_loaded = true;
  }
  ~LoadedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  LoadedLibrary(const LoadedLibrary&) = delete;
  LoadedLibrary& operator=(const LoadedLibrary&) = delete;

  static inline bool was_loaded = false;  // in this process

  template <typename Table>
  const Table& Get(const char* symbol) const {
    auto* found = static_cast<const Table*>(dlsym(handle_, symbol));
    EXPECT_NE(found, nullptr) << symbol;
    return *found;
  }

 private:
  void* handle_;
};

/// NCCL's cost table, as float[7][3].
struct CostTable {
  CostTable() {
    for (int i = 0; i < kAlgorithms * kProtocols; ++i) cells[i] = 10.0f + static_cast<float>(i);
  }
  float** pointer() { return reinterpret_cast<float**>(cells); }
  float& at(int algorithm, int protocol) { return cells[algorithm * kProtocols + protocol]; }
  /// The cell that NCCL takes, as algorithm * 3 + protocol.
  int Best() const {
    int best = -1;
    for (int i = 0; i < kAlgorithms * kProtocols; ++i) {
      if (cells[i] >= 0 && (best < 0 || cells[i] < cells[best])) best = i;
    }
    return best;
  }
  float cells[kAlgorithms * kProtocols];
};

/// One communicator of a rank with tuner version 6.
class TunedCommunicator {
 public:
  TunedCommunicator(const TunerV6& tuner, uint64_t id, size_t ranks, size_t nodes = 1)
      : tuner_(tuner) {
    NvlinkDomains domains{1, 1, 1};
    EXPECT_EQ(tuner_.init(&context_, id, ranks, nodes, nullptr, &domains, nullptr), kSuccess);
  }
  ~TunedCommunicator() { EXPECT_EQ(tuner_.finalize(context_), kSuccess); }
  TunedCommunicator(const TunedCommunicator&) = delete;
  TunedCommunicator& operator=(const TunedCommunicator&) = delete;

  /// The cell that is chosen for one call, and the channels.
  int Call(int function, size_t bytes, int* channels = nullptr) {
    CostTable table;
    int count = 0;
    EXPECT_EQ(tuner_.get_coll_info(context_, function, bytes, 1, table.pointer(), kAlgorithms,
                                   kProtocols, 0, &count),
              kSuccess);
    if (channels != nullptr) *channels = count;
    return table.Best();
  }
  void* context() { return context_; }
  const TunerV6& tuner() const { return tuner_; }

 private:
  const TunerV6& tuner_;
  void* context_ = nullptr;
};

/// Sets variables for the life of the object.
class Variables {
 public:
  explicit Variables(const std::vector<std::pair<std::string, std::string>>& values) {
    for (const auto& [name, value] : values) {
      setenv(name.c_str(), value.c_str(), 1);
      names_.push_back(name);
    }
  }
  ~Variables() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::vector<std::string> names_;
};

}  // namespace weir::nccl::plugin
