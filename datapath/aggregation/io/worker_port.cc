// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/io/worker_port.h"

#include <algorithm>
#include <utility>

#include "datapath/aggregation/io/address.h"

namespace weir::aggregation {

StatusOr<std::unique_ptr<WorkerPort>> WorkerPort::Bind(const UdpPortOptions& options) {
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<UdpPort> port, UdpPort::Bind(options));
  if (port->address() >> 16 == 0) {
    return InvalidArgument(StrCat("worker address: expected that of an interface, found ",
                                  options.listen, ", which the aggregator cannot know it by"));
  }
  return std::unique_ptr<WorkerPort>(new WorkerPort(std::move(port)));
}

Status WorkerPort::Run(SourceAddress aggregator, Worker* worker) {
  if (aggregator != aggregator_) {
    WEIR_RETURN_IF_ERROR(port_->Connect(aggregator));
    aggregator_ = aggregator;
  }
  const uint64_t refused_before = port_->counters().refused;
  TimePoint now = RealClock().Now();
  const UdpPort::Sink sink = [&](SourceAddress from, std::span<const std::byte> datagram) {
    // Datagrams queued before the socket was connected may come from any address.
    if (from == aggregator) worker->OnPacket(datagram, now);
  };
  while (!worker->done()) {
    now = RealClock().Now();
    worker->OnTimer(now);
    for (auto packet = worker->NextPacket(now); !packet.empty(); packet = worker->NextPacket(now)) {
      port_->Send(aggregator, packet);
    }
    port_->Flush();
    const auto timer = worker->NextTimer();
    if (!timer.has_value()) break;
    port_->Wait(now, *timer);
    now = RealClock().Now();
    port_->Receive(sink);
  }
  if (worker->status().ok()) return OkStatus();
  const uint64_t refused = port_->counters().refused - refused_before;
  return Annotate(worker->status(),
                  StrCat("aggregator ", AddressText(aggregator),
                         refused == 0 ? "" : ", where its host says that nobody listens"));
}

}  // namespace weir::aggregation
