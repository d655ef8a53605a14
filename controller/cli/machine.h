// SPDX-License-Identifier: Apache-2.0
#pragma once
// The facts that doctor checks on its own machine: kernel features, limits and libraries that
// ranks, agents and aggregators need. Reading and judging are separate, so that judging can be
// tested.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "controller/cli/finding.h"

namespace weir::cli {

struct MachineFacts {
  std::string kernel;                  // release, as uname prints it
  bool udp_segments = false;           // the kernel cuts and joins rows of datagrams (GSO, GRO)
  std::string shared_memory_error;     // why ranks here cannot share memory; empty: they can
  std::string peer_memory_error;       // why none may read another's memory; empty: they may
  uint64_t receive_buffer_bytes = 0;   // net.core.rmem_max
  bool slow_start_after_idle = false;  // net.ipv4.tcp_slow_start_after_idle
  uint64_t open_files = 0;             // soft limit; UINT64_MAX: none
  uint64_t memlock_bytes = 0;          // soft limit; UINT64_MAX: none
  bool rdma_devices = false;           // /sys/class/infiniband has some
  std::string agent_socket;            // looked at
  std::string agent_error;             // why no agent accepts there; empty: one does
  uint16_t probe_port = 0;             // of agents
  bool probe_port_taken = false;       // somebody listens there for TCP
  bool probe_udp_port_taken = false;   // and for UDP
  std::map<std::string, std::string> libraries;  // libweir.so by path -> its version, or an error
};

/// Looks. Makes and drops one segment of shared memory, connects once to the agent's socket
/// (WEIR_AGENT where it is unix:PATH, else /run/weir/agent.sock), and loads every libweir.so that
/// WEIR_LIBRARY, LD_LIBRARY_PATH and the usual directories have. Milliseconds; waits for nothing.
MachineFacts LookAtMachine();

/// One finding per matter. version: of this program. Pure.
std::vector<Finding> JudgeMachine(const MachineFacts& facts, const std::string& version);

}  // namespace weir::cli
