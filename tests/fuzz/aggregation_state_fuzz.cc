// SPDX-License-Identifier: Apache-2.0
// Aggregator and workers under arbitrary packets that parse: no crash, no reply to strangers, never
// more replies than workers, and a worker ends with its buffers whole.

#include <cstring>
#include <memory>
#include <vector>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/float_worker.h"
#include "datapath/aggregation/max_worker.h"
#include "datapath/aggregation/sparse_worker.h"
#include "datapath/aggregation/sum_worker.h"
#include "datapath/aggregation/table_worker.h"
#include "datapath/base/check.h"

namespace weir::aggregation {
namespace {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t Next() { return empty() ? 0 : data_[at_++]; }
  uint32_t Word() {
    // Values are mostly small, as fields are, and sometimes arbitrary.
    const uint8_t first = Next();
    return first < 250 ? first % 5u : uint32_t{Next()} << 24 | uint32_t{Next()} << 16 | 0xFFFF;
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

class CountingSink : public ReplySink {
 public:
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    WEIR_CHECK(to < 3);
    WEIR_CHECK(DecodePacket(packet).ok());
    ++sent;
  }
  int sent = 0;
};

Lease FuzzLease(uint16_t mode) {
  Lease lease = {.id = mode,
                 .epoch = 1,
                 .mode = static_cast<PacketMode>(mode),
                 .workers = 3,
                 .slots = 2,
                 .lanes = 2,
                 .checked = false};
  if (lease.mode == PacketMode::kSparse) lease.columns = 2;
  if (lease.mode == PacketMode::kTable) {
    lease.sum_bits = 8;
    lease.levels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    lease.quorum = 1;
    lease.cutoff = Duration(5);
  }
  return lease;
}

std::vector<std::byte> FuzzPacket(const Lease& lease, bool reply, FuzzInput* input) {
  PacketHeader h = RequestHeader(lease);
  h.flags |= static_cast<uint8_t>(reply ? kPacketReply : 0);
  const uint8_t odd = input->Next();
  if ((odd & 1) != 0 && lease.mode == PacketMode::kSum) h.flags |= kPacketLead;
  if (reply && (odd & 6) == 6) h.flags |= kPacketNotice;
  if (reply && (odd & 24) == 24) h.flags |= kPacketOverflow;
  h.slot = static_cast<uint16_t>(input->Word());
  h.round = input->Word();
  h.operation = (odd & 32) != 0 ? 0 : input->Word();
  h.offset = input->Word();
  h.exponent = static_cast<uint16_t>(input->Word());
  if (reply) h.contributions = static_cast<uint16_t>((odd & 64) != 0 ? 3 : input->Word());
  if (lease.mode == PacketMode::kSparse) h.detail = input->Word() & 3;
  if ((h.flags & kPacketNotice) != 0) h.detail = 1 + (input->Word() & 1);
  std::vector<std::byte> packet(kPacketHeaderBytes + PayloadBytes(h));
  EncodePacketHeader(h, std::span(packet).first<kPacketHeaderBytes>());
  for (size_t i = kPacketHeaderBytes; i < packet.size(); ++i) {
    packet[i] = static_cast<std::byte>(input->Next());
  }
  return packet;
}

void FuzzAggregator(FuzzInput* input) {
  Aggregator aggregator({.slots = 10, .slots_per_job = 2, .leases = 5});
  const SourceAddress sources[] = {0, 1, 2};
  for (uint16_t mode = 1; mode <= 5; ++mode) {
    WEIR_CHECK(aggregator.Grant(FuzzLease(mode), sources).ok());
  }
  CountingSink sink;
  for (TimePoint now{}; !input->empty(); now += Duration(1)) {
    const auto mode = static_cast<uint16_t>(1 + input->Next() % 5);
    const SourceAddress source = input->Next() % 4;
    const std::vector<std::byte> packet = FuzzPacket(FuzzLease(mode), false, input);
    sink.sent = 0;
    aggregator.OnPacket(source, packet, now, &sink);
    WEIR_CHECK(sink.sent <= (source == 3 ? 0 : 3));
    aggregator.OnTimer(now, &sink);
  }
}

template <typename Lane, typename MakeWorker, typename Begin>
void FuzzWorker(uint16_t mode, FuzzInput* input, MakeWorker&& make, Begin&& begin) {
  const Lease lease = FuzzLease(mode);
  std::vector<Lane> data(11, Lane{1});
  auto worker = make(lease);
  WEIR_CHECK(begin(worker.get(), std::span(data)).ok());
  TimePoint now{};
  while (!input->empty() && !worker->done()) {
    now += Duration(std::chrono::milliseconds(input->Next() % 8));
    worker->OnTimer(now);
    while (!worker->NextPacket(now).empty()) {
    }
    worker->OnPacket(FuzzPacket(lease, true, input), now);
  }
}

}  // namespace
}  // namespace weir::aggregation

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  using namespace weir::aggregation;
  FuzzInput input(data, size);
  const TimePoint end{std::chrono::hours(1)};
  const auto make = [](auto type) {
    using T = typename decltype(type)::type;
    return [](const Lease& lease) { return std::make_unique<T>(lease, TimeoutLimits{}, 1); };
  };
  std::vector<float> means(11);
  const std::vector<uint8_t> indices(11, 3);
  switch (input.Next() % 6) {
    case 0:
      FuzzAggregator(&input);
      break;
    case 1:
      FuzzWorker<float>(1, &input, make(std::type_identity<SumWorker>{}),
                        [&](SumWorker* w, auto all) { return w->Begin(all, 0, end); });
      break;
    case 2:
      FuzzWorker<uint32_t>(2, &input, make(std::type_identity<MaxWorker>{}),
                           [&](MaxWorker* w, auto all) { return w->Begin(all, 0, end); });
      break;
    case 3:
      FuzzWorker<float>(3, &input, make(std::type_identity<TableWorker>{}),
                        [&](TableWorker* w, auto) { return w->Begin(indices, means, 0, end); });
      break;
    case 4:
      FuzzWorker<float>(4, &input, make(std::type_identity<SparseWorker>{}),
                        [&](SparseWorker* w, auto all) { return w->Begin(all, 201, 0, end); });
      break;
    default:
      FuzzWorker<float>(5, &input, make(std::type_identity<FloatWorker>{}),
                        [&](FloatWorker* w, auto all) { return w->Begin(all, 0, end); });
  }
  return 0;
}
