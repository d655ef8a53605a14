// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/verbs/rdma_core.h"

#include <dlfcn.h>

#include <string_view>

#include "datapath/base/check.h"

namespace weir::verbs {
namespace {

struct Loaded {
  Status status = OkStatus();
  RdmaCore core;
};

Status Missing(const char* what) {
  const char* const reason = dlerror();
  return Unavailable(StrCat("transport verbs needs RDMA libraries, ", what,
                            " was not found (Debian: librdmacm1 and ibverbs-providers): ",
                            reason != nullptr ? reason : "unknown reason"));
}

Loaded Load() {
  Loaded loaded;
  const char* const verbs_name = "libibverbs.so.1";
  const char* const manager_name = "librdmacm.so.1";
  void* const verbs = dlopen(verbs_name, RTLD_NOW | RTLD_LOCAL);
  if (verbs == nullptr) return {Missing(verbs_name), {}};
  void* const manager = dlopen(manager_name, RTLD_NOW | RTLD_LOCAL);
  if (manager == nullptr) return {Missing(manager_name), {}};
#define WEIR_RDMA_RESOLVE(name)                                                      \
  loaded.core.name = reinterpret_cast<decltype(loaded.core.name)>(                   \
      dlsym(std::string_view(#name).starts_with("rdma_") ? manager : verbs, #name)); \
  if (loaded.core.name == nullptr) return {Missing(#name), {}};
  WEIR_RDMA_FUNCTIONS(WEIR_RDMA_RESOLVE)
#undef WEIR_RDMA_RESOLVE
  return loaded;
}

const Loaded& Instance() {
  static const Loaded loaded = Load();
  return loaded;
}

}  // namespace

Status LoadRdmaCore() { return Instance().status; }

const RdmaCore& Rdma() {
  WEIR_CHECK(Instance().status.ok());
  return Instance().core;
}

}  // namespace weir::verbs
