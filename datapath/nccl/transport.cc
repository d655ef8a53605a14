// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/transport.h"

#include <sched.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "datapath/nccl/lane.h"

namespace weir::nccl {
namespace {

// The longest sleep while no work of the device is awaited, in order to notice Interrupt and other
// events of the control transport.
constexpr Duration kOpenPause = std::chrono::milliseconds(1);

class NcclTransport : public Transport {
 public:
  NcclTransport(std::unique_ptr<Transport> control, std::unique_ptr<Device> device,
                std::function<FrameFault(int)> frame_fault,
                std::shared_ptr<FrameFault> control_fault)
      : device_(std::move(device)),
        frame_fault_(std::move(frame_fault)),
        control_fault_(std::move(control_fault)),
        control_(std::move(control)) {}
  ~NcclTransport() override;

  int rank() const override { return control_->rank(); }
  int world() const override { return control_->world(); }
  const TransportAddress& address() const override { return control_->address(); }
  Status Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) override;
  StatusOr<Ticket> PostSend(int peer, FrameHeader header,
                            std::span<const std::byte> payload) override;
  StatusOr<Ticket> PostReceive(int peer, std::span<std::byte> buffer) override;
  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override;
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override;
  void Wake() override;
  void Abort(std::string_view reason) override;
  // Abort drops the channels, which read the buffers. Its own messages are in memory of this
  // object.
  void Abandon(std::string_view reason) override { Abort(reason); }
  void Interrupt() override { control_->Interrupt(); }
  std::vector<PathSample> Samples() const override { return control_->Samples(); }
  uint64_t bytes_sent() const override {
    return control_->bytes_sent() + payload_bytes_.load(std::memory_order_relaxed);
  }

 private:
  struct Told {
    Ticket ticket;
    ControlMessage message;
  };
  using Inbox = std::array<std::byte, kFrameHeaderBytes>;

  Status Fail(Status status);
  StatusOr<Frame*> NewFrame(int peer, std::span<const std::byte> buffer);
  Status OpenPair(int peer, TimePoint deadline);
  StatusOr<std::unique_ptr<Channel>> OpenDirection(int peer, bool sends, TimePoint deadline);
  Status Tell(int peer, ControlMessage message);
  Status Listen(int peer);
  Status OnControl(size_t index);
  Status DriveLanes(bool* progress);
  StatusOr<bool> Turn(TimePoint until);

  const std::unique_ptr<Device> device_;
  const std::function<FrameFault(int)> frame_fault_;
  const std::shared_ptr<FrameFault> control_fault_;  // of the control transport's next send
  std::atomic<uint64_t> payload_bytes_ = 0;
  std::atomic<bool> woken_ = false;
  bool connected_ = false;
  Status failure_;
  Ticket issued_ = 0;
  std::map<Ticket, Frame> frames_;
  std::map<int, Lane> lanes_;
  std::map<int, Inbox> inboxes_;
  // Operations of the control transport: a receive per peer, then the oldest send.
  std::vector<int> peers_;
  std::vector<Ticket> listening_;
  std::deque<Told> told_;
  // Destroyed first, because until then it uses the messages above.
  const std::unique_ptr<Transport> control_;
};

NcclTransport::~NcclTransport() {
  if (!connected_ || !failure_.ok()) return;
  for (auto& [peer, lane] : lanes_) {
    if (!lane.departed()) (void)Tell(peer, Lane::ShutdownNotice());
  }
  // The control transport sends its own shutdown notice after these messages.
}

// Every later call returns the first failure. The device releases all buffers at once.
Status NcclTransport::Fail(Status status) {
  if (!failure_.ok()) return failure_;
  failure_ = std::move(status);
  for (auto& [peer, lane] : lanes_) lane.DropChannels();
  if (connected_) control_->Abort(Message(failure_));
  return failure_;
}

// ---- connecting

Status NcclTransport::Connect(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  if (connected_) return FailedPrecondition("the transport is already connected");
  WEIR_RETURN_IF_ERROR(control_->Connect(addresses, deadline));
  connected_ = true;
  for (int r = 0; r < world(); ++r) {
    if (r == rank()) continue;
    lanes_.try_emplace(r, rank(), r, StrCat("rank ", r, " (", addresses[r], ")"));
    peers_.push_back(r);
  }
  // All ranks go through the pairs in the same order, that of (lower, higher), so a rank that
  // waits for a pair waits for one that comes earlier in it.
  for (int lower = 0; lower < world(); ++lower) {
    for (int higher = lower + 1; higher < world(); ++higher) {
      if (lower != rank() && higher != rank()) continue;
      const Status status = OpenPair(lower == rank() ? higher : lower, deadline);
      if (!status.ok()) return Fail(status);
    }
  }
  for (const int peer : peers_) {
    listening_.push_back(0);
    if (const Status status = Listen(peer); !status.ok()) return Fail(status);
  }
  return OkStatus();
}

// Opens both directions, first that of the lower rank.
Status NcclTransport::OpenPair(int peer, TimePoint deadline) {
  std::unique_ptr<Channel> out, in;
  for (const bool sends : {rank() < peer, rank() > peer}) {
    WEIR_ASSIGN_OR_RETURN((sends ? out : in), OpenDirection(peer, sends, deadline));
  }
  lanes_.at(peer).SetChannels(std::move(out), std::move(in));
  return OkStatus();
}

StatusOr<std::unique_ptr<Channel>> NcclTransport::OpenDirection(int peer, bool sends,
                                                                TimePoint deadline) {
  UniqueId id = {};
  if (sends) {
    WEIR_ASSIGN_OR_RETURN(id, device_->NewId());
    WEIR_ASSIGN_OR_RETURN(const Ticket ticket, control_->PostSend(peer, {}, id));
    WEIR_RETURN_IF_ERROR(control_->Wait(ticket, deadline).status());
  } else {
    WEIR_ASSIGN_OR_RETURN(const Ticket ticket, control_->PostReceive(peer, id));
    WEIR_ASSIGN_OR_RETURN(const FrameHeader header, control_->Wait(ticket, deadline));
    if (header.payload_bytes != id.size()) {
      return DataLoss(StrCat(lanes_.at(peer).name(), " sent an id of ", header.payload_bytes,
                             " bytes; expected ", id.size()));
    }
  }
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, device_->Open(id, sends));
  for (;;) {
    const StatusOr<bool> done = channel->Done();
    if (!done.ok()) return Annotate(done.status(), lanes_.at(peer).name());
    if (*done) return channel;
    const TimePoint now = RealClock().Now();
    if (now >= deadline) {
      return DeadlineExceeded(StrCat(lanes_.at(peer).name(), " does not answer over NCCL"));
    }
    // In the meantime a peer may end or report why it gives up.
    WEIR_RETURN_IF_ERROR(control_->WaitAny({}, std::min(deadline, now + kOpenPause)).status());
  }
}

// ---- the control connection

Status NcclTransport::Tell(int peer, ControlMessage message) {
  told_.push_back({0, std::move(message)});
  const StatusOr<Ticket> ticket = control_->PostSend(peer, {}, told_.back().message);
  if (!ticket.ok()) {
    told_.pop_back();
    return ticket.status();
  }
  told_.back().ticket = *ticket;
  return OkStatus();
}

Status NcclTransport::Listen(int peer) {
  const size_t index = static_cast<size_t>(peer < rank() ? peer : peer - 1);
  WEIR_ASSIGN_OR_RETURN(listening_[index], control_->PostReceive(peer, inboxes_[peer]));
  return OkStatus();
}

// Operation `index` of the control transport has ended.
Status NcclTransport::OnControl(size_t index) {
  if (index == peers_.size()) {
    WEIR_RETURN_IF_ERROR(control_->Wait(told_.front().ticket, TimePoint::max()).status());
    told_.pop_front();
    return OkStatus();
  }
  const int peer = peers_[index];
  WEIR_ASSIGN_OR_RETURN(const FrameHeader header,
                        control_->Wait(listening_[index], TimePoint::max()));
  WEIR_RETURN_IF_ERROR(
      lanes_.at(peer).OnMessage(std::span(inboxes_[peer]).first(header.payload_bytes)));
  return Listen(peer);
}

// ---- posting

StatusOr<Frame*> NcclTransport::NewFrame(int peer, std::span<const std::byte> buffer) {
  if (!failure_.ok()) return failure_;
  if (!connected_) return FailedPrecondition("the transport is not connected");
  if (peer < 0 || peer >= world() || peer == rank()) {
    return InvalidArgument(
        StrCat("peer: expected another rank of 0..", world() - 1, ", found ", peer));
  }
  if (!buffer.empty()) WEIR_RETURN_IF_ERROR(device_->Check(buffer));
  if (frames_.size() == kFramesMax) {
    return ResourceExhausted(StrCat("more than ", kFramesMax, " posted operations"));
  }
  Frame& frame = frames_[++issued_];
  frame.ticket = issued_;
  frame.peer = peer;
  return &frame;
}

StatusOr<Ticket> NcclTransport::PostSend(int peer, FrameHeader header,
                                         std::span<const std::byte> payload) {
  if (payload.size() > kFramePayloadBytesMax) {
    return InvalidArgument(StrCat("payload: expected at most ", kFramePayloadBytesMax,
                                  " bytes, found ", payload.size()));
  }
  WEIR_ASSIGN_OR_RETURN(Frame* const frame, NewFrame(peer, payload));
  Lane& lane = lanes_.at(peer);
  if (lane.departed()) {
    frames_.erase(frame->ticket);
    return Unavailable(StrCat(lane.name(), " closed the connection"));
  }
  frame->send = true;
  frame->header = header;
  // Sends only read the payload.
  frame->buffer = {const_cast<std::byte*>(payload.data()), payload.size()};
  if (frame_fault_) *control_fault_ = frame_fault_(peer);
  const Ticket ticket = frame->ticket;
  payload_bytes_.fetch_add(payload.size(), std::memory_order_relaxed);
  const Status status = Tell(peer, lane.Announce(frame));
  *control_fault_ = FrameFault::kNone;
  if (!status.ok()) return Fail(status);
  return ticket;
}

StatusOr<Ticket> NcclTransport::PostReceive(int peer, std::span<std::byte> buffer) {
  WEIR_ASSIGN_OR_RETURN(Frame* const frame, NewFrame(peer, buffer));
  frame->buffer = buffer;
  lanes_.at(peer).Expect(frame);
  return frame->ticket;
}

// ---- waiting

Status NcclTransport::DriveLanes(bool* progress) {
  for (auto& [peer, lane] : lanes_) {
    std::vector<ControlMessage> tell;
    WEIR_RETURN_IF_ERROR(lane.Drive(&tell, progress));
    for (ControlMessage& message : tell) WEIR_RETURN_IF_ERROR(Tell(peer, std::move(message)));
  }
  return OkStatus();
}

// Moves what can be moved now. When there is nothing, waits until something may have happened, at
// most until `until`. While the device is working, it is polled, because it wakes no thread.
// Returns false when nothing happened.
StatusOr<bool> NcclTransport::Turn(TimePoint until) {
  bool progress = false, busy = false;
  WEIR_RETURN_IF_ERROR(DriveLanes(&progress));
  for (const auto& [peer, lane] : lanes_) busy |= lane.busy();
  const TimePoint now = RealClock().Now();
  std::vector<Ticket> tickets = listening_;
  if (!told_.empty()) tickets.push_back(told_.front().ticket);
  WEIR_ASSIGN_OR_RETURN(const std::optional<size_t> index,
                        control_->WaitAny(tickets, progress || busy ? now : until));
  if (index.has_value()) {
    WEIR_RETURN_IF_ERROR(OnControl(*index));
    return true;
  }
  if (busy && !progress) sched_yield();
  return progress;
}

StatusOr<FrameHeader> NcclTransport::Wait(Ticket ticket, TimePoint deadline) {
  if (!failure_.ok()) return failure_;
  const auto found = frames_.find(ticket);
  if (found == frames_.end()) return InvalidArgument(StrCat("ticket ", ticket, " is not posted"));
  const Frame& frame = found->second;
  Lane& lane = lanes_.at(frame.peer);
  while (!frame.done) {
    const bool over = lane.CannotFinish(frame);
    const StatusOr<bool> progress = Turn(over ? RealClock().Now() : deadline);
    if (!progress.ok()) return Fail(progress.status());
    if (frame.done) break;
    if (over && !*progress) {
      return Fail(Unavailable(StrCat(lane.name(), " closed the connection")));
    }
    if (!*progress && RealClock().Now() >= deadline) {
      return Fail(DeadlineExceeded(frame.send ? StrCat(lane.name(), " takes no more data: ",
                                                       frame.buffer.size(), " bytes to send")
                                              : StrCat("no answer from ", lane.name())));
    }
  }
  const FrameHeader header = frame.header;
  frames_.erase(found);
  return header;
}

StatusOr<std::optional<size_t>> NcclTransport::WaitAny(std::span<const Ticket> tickets,
                                                       TimePoint deadline) {
  for (;;) {
    if (!failure_.ok()) return failure_;
    if (!connected_) return FailedPrecondition("the transport is not connected");
    const StatusOr<bool> progress = Turn(woken_.load() ? RealClock().Now() : deadline);
    if (!progress.ok()) return Fail(progress.status());
    for (size_t i = 0; i < tickets.size(); ++i) {
      const auto found = frames_.find(tickets[i]);
      if (found == frames_.end()) {
        return InvalidArgument(StrCat("ticket ", tickets[i], " is not posted"));
      }
      if (found->second.done) return std::optional(i);
    }
    if (woken_.exchange(false)) return std::optional<size_t>();
    if (!*progress && RealClock().Now() >= deadline) return std::optional<size_t>();
  }
}

void NcclTransport::Wake() {
  woken_.store(true);
  control_->Wake();
}

void NcclTransport::Abort(std::string_view reason) {
  if (!failure_.ok()) return;
  failure_ = Aborted(StrCat("rank ", rank(), " aborted: ", reason));
  for (auto& [peer, lane] : lanes_) lane.DropChannels();
  control_->Abort(reason);
}

class NcclFactory : public TransportFactory {
 public:
  explicit NcclFactory(OpenDevice open) : open_(std::move(open)) {}
  const TransportTraits& Traits() const override { return traits_; }
  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_());
    WEIR_ASSIGN_OR_RETURN(const TransportFactory* const tcp, Transports().Find("tcp"));
    TransportOptions control = options;
    const auto fault = std::make_shared<FrameFault>(FrameFault::kNone);
    if (options.frame_fault) control.frame_fault = [fault](int) { return *fault; };
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, tcp->Create(control));
    return std::make_unique<NcclTransport>(std::move(transport), std::move(device),
                                           options.frame_fault, fault);
  }

 private:
  const OpenDevice open_;
  const TransportTraits traits_ = {.name = "nccl", .needs_device = true};
};

}  // namespace

std::unique_ptr<TransportFactory> MakeFactory(OpenDevice open) {
  return std::make_unique<NcclFactory>(std::move(open));
}

}  // namespace weir::nccl
