// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of the agent's listeners other machines may reach without TLS and a credential: only those
// that the operator has named. Pure.

#include <string>
#include <vector>

#include "datapath/base/status.h"

namespace weir::agent {

/// The listeners that --unprotected can name.
inline constexpr const char* kUnprotectedNames = "probes, metrics, health, ranks";

struct Exposure {
  std::string address;                   // IP of probes and iperf3
  std::string metrics;                   // IP:PORT; empty: none
  bool metrics_protected = false;        // by TLS and a token
  std::string health;                    // IP:PORT; empty: none
  std::string ranks;                     // IP:PORT; empty: none
  std::vector<std::string> unprotected;  // that the operator has named
};

/// kInvalidArgument: an unknown name, or a listener off loopback that is neither protected nor
/// named; the message says which one and what the flags are.
Status CheckExposure(const Exposure& exposure);

}  // namespace weir::agent
