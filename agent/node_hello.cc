// SPDX-License-Identifier: Apache-2.0
#include "agent/node_hello.h"

#include "agent/measure/network_interfaces.h"

namespace weir::agent {

v1::NodeHello MakeHello(const AgentOptions& options, const Gpus& gpus) {
  v1::NodeHello hello;
  hello.set_node(options.node);
  hello.set_address(options.address);
  hello.set_probe_port(options.probe_port);
  hello.set_iperf_port(options.iperf_port);
  hello.set_agent_version(options.version);
  hello.set_instance(options.instance);
  for (const InterfaceInfo& info : ListInterfaces()) {
    v1::NetworkInterface& interface = *hello.add_interfaces();
    interface.set_name(info.name);
    interface.set_speed_bytes_per_s(info.speed_bytes_per_s);
    interface.set_mtu(info.mtu);
  }
  for (const GpuInfo& info : gpus.info) {
    v1::Gpu& gpu = *hello.add_gpus();
    gpu.set_name(info.name);
    gpu.set_uuid(info.uuid);
    gpu.set_memory_bytes(info.memory_bytes);
    gpu.set_pcie_generation(info.pcie_generation);
    gpu.set_pcie_lanes(info.pcie_width);
    gpu.set_pcie_bytes_per_s(info.pcie_bytes_per_s());
    gpu.set_nvlinks(info.nvlinks);
    gpu.set_nvlink_version(info.nvlink_version);
  }
  return hello;
}

}  // namespace weir::agent
