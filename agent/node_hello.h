// SPDX-License-Identifier: Apache-2.0
#pragma once
// The greeting of a node: who it is, and what hardware it has.

#include "agent/agent.h"

namespace weir::agent {

/// Asks the kernel for the node's interfaces; `gpus` are those that were found. Thread-safe.
v1::NodeHello MakeHello(const AgentOptions& options, const Gpus& gpus);

}  // namespace weir::agent
