// SPDX-License-Identifier: Apache-2.0
#include "datapath/aggregation/io/worker_port.h"

#include <algorithm>
#include <utility>

#include "datapath/aggregation/io/address.h"
#include "datapath/base/log.h"

namespace weir::aggregation {
namespace {

// A rank that is late for a while also looks as if it were the rows.
constexpr int kRepetitionsInRows = 2;
constexpr int kOperationsToJudge = 3;

}  // namespace

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
  const WorkerCounters before = worker->counters();
  const bool rows = port_->sends_rows();
  uint64_t resent = before.resent;
  int repetitions = 0;
  TimePoint now = RealClock().Now();
  const UdpPort::Sink sink = [&](SourceAddress from, std::span<const std::byte> datagram) {
    // Datagrams queued before the socket was connected may come from any address.
    if (from == aggregator) worker->OnPacket(datagram, now);
  };
  while (!worker->done()) {
    now = RealClock().Now();
    worker->OnTimer(now);
    if (worker->counters().resent > resent) ++repetitions;
    resent = worker->counters().resent;
    const bool unheard = worker->counters().replies == before.replies;
    if (unheard && repetitions >= kRepetitionsInRows) port_->SendRows(false);
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
  if (rows) JudgeRows(worker->status().ok() && !port_->sends_rows());
  if (worker->status().ok()) return OkStatus();
  const uint64_t refused = port_->counters().refused - refused_before;
  return Annotate(worker->status(),
                  StrCat("aggregator ", AddressText(aggregator),
                         refused == 0 ? "" : ", where its host says that nobody listens"));
}

void WorkerPort::JudgeRows(bool answered_without_rows) {
  without_rows_ = answered_without_rows ? without_rows_ + 1 : 0;
  if (without_rows_ < kOperationsToJudge) return port_->SendRows(true);
  Log(LogLevel::kWarning, "aggregation",
      StrCat("aggregator ", AddressText(aggregator_), " answers single packets of ",
             AddressText(port_->address()),
             " but not rows that the interface segments; packets leave singly from now on. Where "
             "the aggregator is behind a virtual interface, 'ethtool -K IFACE "
             "tx-udp-segmentation off' helps"));
}

}  // namespace weir::aggregation
