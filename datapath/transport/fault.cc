// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/fault.h"

#include <thread>

#include "datapath/base/random.h"

namespace weir {
namespace {

// Tickets of dropped frames, which no inner transport knows.
constexpr Ticket kDroppedBit = Ticket{1} << 63;

// Decides what happens to each frame. Shared by the decorator, which delays and drops, and the
// inner transport's frame_fault, which corrupts and disconnects below the checksum.
class Faults {
 public:
  struct Decision {
    Duration delay{};
    bool drop = false;
    FrameFault below = FrameFault::kNone;
  };

  Faults(const FaultOptions& options, int rank)
      : options_(options), active_(options.rank < 0 || options.rank == rank), rank_(rank) {}

  Decision Next(int peer) {
    Decision decision;
    if (!active_) return decision;
    ++frames_;
    if (options_.disconnect_after_frames > 0 && frames_ > options_.disconnect_after_frames) {
      decision.below = FrameFault::kDisconnect;
      return decision;
    }
    const auto found = options_.peers.find(peer);
    const PeerFaults& faults = found == options_.peers.end() ? options_.every_peer : found->second;
    const uint64_t lane = (static_cast<uint64_t>(rank_) << 32) | static_cast<uint32_t>(peer);
    Random random(MixSeed(MixSeed(options_.seed, lane), frames_to_[peer]++));
    if (random.Uniform() < faults.delay_probability) {
      decision.delay = FromSeconds(ToSeconds(faults.delay_max) * random.Uniform());
    }
    decision.drop = random.Uniform() < faults.drop_probability || frames_ == options_.drop_frame;
    if (random.Uniform() < faults.corrupt_probability) decision.below = FrameFault::kCorrupt;
    return decision;
  }

  FrameFault pending = FrameFault::kNone;  // for the frame being posted

 private:
  const FaultOptions options_;
  const bool active_;
  const int rank_;
  uint64_t frames_ = 0;
  std::map<int, uint64_t> frames_to_;
};

class FaultTransport : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  const TransportAddress& address() const override { return inner_->address(); }
  Status Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) override {
    return inner_->Connect(addresses, deadline);
  }

  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override {
    const Faults::Decision decision = faults_->Next(peer);
    if (decision.delay > Duration::zero()) std::this_thread::sleep_for(decision.delay);
    if (decision.drop) {
      header.payload_bytes = static_cast<uint32_t>(payload.size());
      header.source_rank = static_cast<uint16_t>(rank());
      const Ticket ticket = kDroppedBit | ++dropped_count_;
      dropped_[ticket] = header;
      return ticket;
    }
    faults_->pending = decision.below;
    return inner_->PostSend(peer, header, payload);
  }

  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override {
    return inner_->PostReceive(peer, buffer);
  }

  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override {
    const auto found = dropped_.find(ticket);
    if (found == dropped_.end()) return inner_->Wait(ticket, deadline);
    const FrameHeader header = found->second;
    dropped_.erase(found);
    return header;
  }

  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override {
    for (size_t i = 0; i < tickets.size(); ++i) {
      if (dropped_.count(tickets[i]) != 0) return std::optional(i);
    }
    return inner_->WaitAny(tickets, deadline);
  }

  const StagingBuffers* staging() const override { return inner_->staging(); }
  void Wake() override { inner_->Wake(); }
  void Abort(std::string_view reason) override { inner_->Abort(reason); }
  void Abandon(std::string_view reason) override { inner_->Abandon(reason); }
  void Interrupt() override { inner_->Interrupt(); }
  std::vector<PathSample> Samples() const override { return inner_->Samples(); }
  std::vector<ArrivalSample> TakeArrivals() override { return inner_->TakeArrivals(); }
  uint64_t bytes_sent() const override { return inner_->bytes_sent(); }
  int unauthenticated_peers() const override { return inner_->unauthenticated_peers(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<Faults> faults_;
  uint64_t dropped_count_ = 0;
  std::map<Ticket, FrameHeader> dropped_;
};

class FaultFactory : public TransportFactory {
 public:
  FaultFactory(const TransportFactory& inner, FaultOptions options)
      : inner_(inner), options_(std::move(options)), traits_(inner.Traits()) {
    traits_.name += "+fault";
  }
  const TransportTraits& Traits() const override { return traits_; }

  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    auto faults = std::make_shared<Faults>(options_, options.rank);
    TransportOptions with_faults = options;
    with_faults.frame_fault = [faults](int) {
      return std::exchange(faults->pending, FrameFault::kNone);
    };
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Transport> inner, inner_.Create(with_faults));
    return std::make_unique<FaultTransport>(std::move(inner), std::move(faults));
  }

 private:
  const TransportFactory& inner_;
  const FaultOptions options_;
  TransportTraits traits_;
};

}  // namespace

std::unique_ptr<TransportFactory> MakeFaultFactory(const TransportFactory& inner,
                                                   FaultOptions options) {
  return std::make_unique<FaultFactory>(inner, std::move(options));
}

}  // namespace weir
