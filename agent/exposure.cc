// SPDX-License-Identifier: Apache-2.0
#include "agent/exposure.h"

#include <algorithm>

#include "deploy/program/loopback.h"

namespace weir::agent {
namespace {

struct Listener {
  const char* name;
  const char* flag;
  std::string address;  // of --address an IP; else IP:PORT
  bool local;
  const char* remedy;  // besides --unprotected
};

}  // namespace

Status CheckExposure(const Exposure& exposure) {
  const auto named = [&](const std::string& name) {
    return std::ranges::find(exposure.unprotected, name) != exposure.unprotected.end();
  };
  const auto local = [](const std::string& address) {
    return address.empty() || IsLoopbackTarget(address);
  };
  const Listener listeners[] = {
      {"probes", "--address", exposure.address, IsLoopback(exposure.address), ""},
      {"metrics", "--metrics", exposure.metrics,
       local(exposure.metrics) || exposure.metrics_protected,
       "--cert, --key and --metrics-token-file, or "},
      {"health", "--health", exposure.health, local(exposure.health), ""},
      {"ranks", "--listen-ranks", exposure.ranks, local(exposure.ranks), ""}};
  for (const std::string& name : exposure.unprotected) {
    const auto known = [&](const Listener& listener) { return name == listener.name; };
    if (std::ranges::none_of(listeners, known)) {
      return InvalidArgument(
          StrCat("--unprotected: unknown listener '", name, "'; valid: ", kUnprotectedNames));
    }
  }
  for (const Listener& listener : listeners) {
    if (listener.local || named(listener.name)) continue;
    return InvalidArgument(StrCat(listener.flag, " ", listener.address,
                                  " can be reached from other machines, without TLS and a "
                                  "credential: give ",
                                  listener.remedy, "--unprotected ", listener.name,
                                  " if the network may reach it"));
  }
  return OkStatus();
}

}  // namespace weir::agent
