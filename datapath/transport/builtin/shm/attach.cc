// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/builtin/shm/attach.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/base/log.h"
#include "datapath/transport/mesh/hello.h"

namespace weir::shm {
namespace {

using mesh::ErrorText;
using mesh::UniqueFd;
using std::chrono::milliseconds;

constexpr size_t kPendingBeyondWorld = 64;
constexpr size_t kOfferBytes = 32;  // and a proof
constexpr std::string_view kOfferLabel = "weir offer", kAnswerLabel = "weir answer";
constexpr uint32_t kStaysTcp = 0, kIsAttached = 1;

// The checked frame of one handshake message.
struct Frame {
  FrameHeader header;
  std::span<const std::byte> payload;
};

StatusOr<Frame> ParseFrame(std::span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    return DataLoss(StrCat("a message of ", bytes.size(), " bytes"));
  }
  Frame frame;
  WEIR_ASSIGN_OR_RETURN(frame.header, DecodeFrameHeader(bytes.first<kFrameHeaderBytes>()));
  frame.payload = bytes.subspan(kFrameHeaderBytes);
  if (frame.header.payload_bytes != frame.payload.size() ||
      Checksum(frame.payload) != frame.header.payload_checksum) {
    return DataLoss("a corrupt message");
  }
  return frame;
}

// Proves that a message is of the rank at the other end of the TCP connection, and not of another
// process of this user. 0 where the job has no key.
StatusOr<Secret> Proof(const Neighbour& peer, std::string_view label,
                       std::span<const std::byte> said) {
  if (peer.channel == nullptr || !peer.channel->sealer) return Secret{};
  return MakeProof(peer.secret, label, said);
}

Status CheckProof(const Neighbour& peer, std::string_view label, std::span<const std::byte> said,
                  std::span<const std::byte> proof) {
  WEIR_ASSIGN_OR_RETURN(const Secret expected, Proof(peer, label, said));
  if (SameSecret(proof, expected)) return OkStatus();
  return FailedPrecondition(
      StrCat("rank ", peer.rank, " did not prove that it is who asks to share memory"));
}

// Takes from a handshake message the peer's eventfd and, if the peer has one, its staging buffer.
Status TakeEventFdAndStaging(std::span<UniqueFd> descriptors, Attachment* attachment) {
  WEIR_RETURN_IF_ERROR(CheckEventFd(descriptors[0].get()));
  attachment->peer_event_fd = std::move(descriptors[0]);
  if (descriptors.size() == 1) return OkStatus();
  WEIR_ASSIGN_OR_RETURN(attachment->staging, SealedMemory::Map(descriptors[1].get(), kStagingBytes,
                                                               SealedMemory::Peers::kRead));
  return OkStatus();
}

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

struct Attacher::Link {
  enum class State { kAwaitingAnswer, kAwaitingVerdict, kAwaitingStaging, kDone };
  Neighbour peer;
  State state = State::kAwaitingVerdict;
  std::unique_ptr<Attachment> attachment;
  std::string why_not;
  mesh::HandshakeReader told;

  FrameSealer* sealer() const { return peer.channel ? peer.channel->sealer.get() : nullptr; }
  FrameOpener* opener() const { return peer.channel ? peer.channel->opener.get() : nullptr; }
  std::string name() const { return StrCat("rank ", peer.rank, " (", peer.address, ")"); }
};

struct Attacher::PendingPeer {
  UniqueFd control;
  pid_t process = 0;
};

Attacher::Attacher(const AttachOptions& options) : options_(options) {}
Attacher::~Attacher() = default;

StatusOr<std::vector<AttachResult>> Attacher::Run(std::vector<Neighbour> neighbours,
                                                  TimePoint deadline) {
  for (Neighbour& peer : neighbours) {
    Link& link = links_.emplace_back();
    link.peer = std::move(peer);
    link.told = mesh::HandshakeReader(link.opener());
  }
  for (Link& link : links_) {
    if (link.peer.rank > options_.rank) continue;
    StartHandshake(link);
    if (link.state != Link::State::kAwaitingAnswer) {
      WEIR_RETURN_IF_ERROR(Tell(link, false, link.why_not));
    }
  }
  WEIR_RETURN_IF_ERROR(RunUntilDone(deadline));
  all_staging_ = options_.staging >= 0 &&
                 links_.size() + 1 == static_cast<size_t>(options_.world) &&
                 std::all_of(links_.begin(), links_.end(), [](const Link& link) {
                   return link.attachment != nullptr && link.attachment->staging;
                 });
  // A rank that lacks a pair or a staging buffer tells all ranks that it is attached to. The other
  // rank of a missing pair knows it by itself.
  const bool has_all = all_staging_;
  for (Link& link : links_) {
    if (link.attachment != nullptr) WEIR_RETURN_IF_ERROR(TellOfStaging(link, has_all));
  }
  WEIR_RETURN_IF_ERROR(RunUntilDone(deadline));
  std::vector<AttachResult> results;
  for (Link& link : links_) {
    results.push_back({std::move(link.attachment), std::move(link.why_not)});
  }
  return results;
}

Status Attacher::RunUntilDone(TimePoint deadline) {
  const auto done = [](const Link& link) { return link.state == Link::State::kDone; };
  while (!std::all_of(links_.begin(), links_.end(), done)) {
    WEIR_RETURN_IF_ERROR(Round(deadline));
  }
  return OkStatus();
}

Status Attacher::Unfinished() const {
  std::string names;
  for (const Link& link : links_) {
    if (link.state == Link::State::kDone) continue;
    names += StrCat(names.empty() ? "" : "; ", link.name());
  }
  return DeadlineExceeded(
      StrCat("rank ", options_.rank, " agreed on shared memory with all but ", names));
}

// Waits for the next event of any socket and handles it.
Status Attacher::Round(TimePoint deadline) {
  const TimePoint now = RealClock().Now();
  if (now >= deadline) return Unfinished();
  std::vector<pollfd> polled = {{options_.wake, POLLIN, 0},
                                {options_.rendezvous->get(), POLLIN, 0}};
  for (const Link& link : links_) {
    int fd = -1;  // ignored by poll
    if (link.state == Link::State::kAwaitingAnswer) fd = link.attachment->control.get();
    if (link.state == Link::State::kAwaitingVerdict ||
        link.state == Link::State::kAwaitingStaging) {
      fd = link.peer.socket;
    }
    polled.push_back({fd, POLLIN, 0});
  }
  const size_t pending_at = polled.size();
  for (const PendingPeer& peer : pending_) polled.push_back({peer.control.get(), POLLIN, 0});
  const int wait = mesh::PollTimeout(std::min<Duration>(deadline - now, milliseconds(1000)));
  if (poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR) {
    return Internal(StrCat("poll: ", ErrorText(errno)));
  }
  if (polled[0].revents != 0) return Aborted("connecting was interrupted");
  // Pending peers come before verdicts, because a verdict refers to a peer that has connected.
  if (polled[1].revents != 0) Admit();
  for (size_t i = 0; i < pending_.size(); ++i) {
    const bool is_new = pending_at + i >= polled.size();
    if (is_new || polled[pending_at + i].revents != 0) OnPendingPeer(pending_[i]);
  }
  std::erase_if(pending_, [](const PendingPeer& peer) { return !peer.control; });
  for (size_t i = 0; i < links_.size(); ++i) {
    if (polled[2 + i].revents == 0) continue;
    Link& link = links_[i];
    switch (link.state) {
      case Link::State::kAwaitingAnswer:
        WEIR_RETURN_IF_ERROR(OnAnswer(link));
        break;
      case Link::State::kAwaitingVerdict:
        WEIR_RETURN_IF_ERROR(OnVerdict(link));
        break;
      case Link::State::kAwaitingStaging:
        WEIR_RETURN_IF_ERROR(OnStaging(link));
        break;
      case Link::State::kDone:
        break;
    }
  }
  return OkStatus();
}

// ---- the higher rank of a pair

void Attacher::StartHandshake(Link& link) {
  link.attachment = std::make_unique<Attachment>();
  const Status offered = Offer(link);
  if (offered.ok()) {
    link.state = Link::State::kAwaitingAnswer;
    return;
  }
  link.attachment = nullptr;
  link.why_not = weir::Message(offered);
}

Status Attacher::Offer(Link& link) {
  Attachment& attachment = *link.attachment;
  UniqueFd memory;
  WEIR_ASSIGN_OR_RETURN(attachment.segment, Segment::Create(options_.ring_bytes, &memory));
  attachment.created = true;
  WEIR_ASSIGN_OR_RETURN(attachment.control, ConnectToRendezvous(link.peer.rendezvous));
  WEIR_ASSIGN_OR_RETURN(attachment.peer, CheckPeer(attachment.control.get()));
  attachment.process = WatchProcess(attachment.peer);
  std::array<std::byte, kOfferBytes + kSecretBytes> payload;
  ByteWriter writer(payload);
  writer.Write(options_.job);
  writer.Write(static_cast<uint32_t>(options_.rank));
  writer.Write(static_cast<uint32_t>(options_.world));
  writer.Write(static_cast<uint32_t>(link.peer.rank));
  writer.Write(kLayoutVersion);
  writer.Write(static_cast<uint64_t>(options_.ring_bytes));
  WEIR_ASSIGN_OR_RETURN(const Secret proof,
                        Proof(link.peer, kOfferLabel, std::span(payload).first<kOfferBytes>()));
  writer.Write(proof);
  WEIR_CHECK(writer.ok() && writer.offset() == payload.size());
  std::vector<int> descriptors = {memory.get(), options_.event_fd};
  if (options_.staging >= 0) descriptors.push_back(options_.staging);
  return SendHandshake(attachment.control.get(),
                       mesh::EncodeFrame(FrameType::kHello, options_.rank, payload), descriptors);
}

Status Attacher::OnAnswer(Link& link) {
  StatusOr<std::optional<HandshakeMessage>> message =
      ReceiveHandshake(link.attachment->control.get());
  if (message.ok() && !message->has_value()) return OkStatus();
  const Status taken = message.ok() ? TakeAnswer(link, std::move(**message)) : message.status();
  if (!taken.ok()) link.attachment = nullptr;
  return Tell(link, taken.ok(), weir::Message(taken));
}

Status Attacher::TakeAnswer(Link& link, HandshakeMessage message) {
  WEIR_ASSIGN_OR_RETURN(const Frame frame, ParseFrame(message.bytes));
  if (frame.header.type == FrameType::kAbort) {
    return Unavailable(StrCat("it refused: ", mesh::PrintableText(frame.payload)));
  }
  if (frame.header.type != FrameType::kHello || frame.header.source_rank != link.peer.rank ||
      message.descriptors.empty() || message.descriptors.size() > 2) {
    return DataLoss(StrCat("expected rank ", link.peer.rank, "'s hello and its eventfd"));
  }
  WEIR_RETURN_IF_ERROR(CheckProof(link.peer, kAnswerLabel, {}, frame.payload));
  return TakeEventFdAndStaging(std::span(message.descriptors), link.attachment.get());
}

// Sends the verdict over TCP. From here on both ends agree.
Status Attacher::Tell(Link& link, bool attached, std::string why_not) {
  link.state = Link::State::kDone;
  link.why_not = attached ? "" : why_not.substr(0, 1024);
  std::vector<std::byte> payload(sizeof(uint32_t) + link.why_not.size());
  ByteWriter writer(payload);
  writer.Write(attached ? kIsAttached : kStaysTcp);
  writer.WriteBytes(AsBytes(link.why_not));
  return SendTold(link, payload);
}

Status Attacher::SendTold(const Link& link, std::span<const std::byte> payload) {
  if (mesh::WriteFrame(link.peer.socket, mesh::EncodeFrame(FrameType::kHello, options_.rank,
                                                           payload, link.sealer()))) {
    return OkStatus();
  }
  return Unavailable(StrCat(link.name(), " closed the connection"));
}

// ---- the lower rank of a pair

void Attacher::Admit() {
  const size_t pending_max = static_cast<size_t>(options_.world) + kPendingBeyondWorld;
  for (;;) {
    UniqueFd fd(
        accept4(options_.rendezvous->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      // Who waits to be let in learns so at once, and stays on TCP.
      Log(LogLevel::kWarning, "transport",
          StrCat("rank ", options_.rank,
                 " shares no memory with ranks that ask for it now: ", ErrorText(errno)));
      options_.rendezvous->Reset();
    }
    if (!fd) return;
    const StatusOr<pid_t> process = CheckPeer(fd.get());
    if (!process.ok()) continue;
    if (pending_.size() >= pending_max) pending_.erase(pending_.begin());  // it waits longest
    pending_.push_back({std::move(fd), *process});
  }
}

void Attacher::OnPendingPeer(PendingPeer& pending) {
  StatusOr<std::optional<HandshakeMessage>> message = ReceiveHandshake(pending.control.get());
  if (message.ok() && !message->has_value()) return;
  const Status accepted = message.ok() ? Accept(pending, std::move(**message)) : message.status();
  if (!accepted.ok()) {
    const std::string why = weir::Message(accepted);
    Log(LogLevel::kWarning, "transport",
        StrCat("rank ", options_.rank, " refused to share memory: ", why));
    // An error does not matter: the end of the connection tells the peer, too.
    (void)SendHandshake(pending.control.get(), mesh::EncodeAbort(options_.rank, why), {});
  }
  pending.control = UniqueFd();
}

Status Attacher::Accept(PendingPeer& pending, HandshakeMessage message) {
  WEIR_ASSIGN_OR_RETURN(const Frame frame, ParseFrame(message.bytes));
  if (frame.header.type != FrameType::kHello || message.descriptors.size() < 2 ||
      message.descriptors.size() > 3) {
    return DataLoss("expected a hello with memory and an eventfd");
  }
  ByteReader reader(frame.payload);
  uint64_t job = 0, ring_bytes = 0;
  uint32_t rank = 0, world = 0, called = 0, version = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&job));
  WEIR_RETURN_IF_ERROR(reader.Read(&rank));
  WEIR_RETURN_IF_ERROR(reader.Read(&world));
  WEIR_RETURN_IF_ERROR(reader.Read(&called));
  WEIR_RETURN_IF_ERROR(reader.Read(&version));
  WEIR_RETURN_IF_ERROR(reader.Read(&ring_bytes));
  if (job != options_.job || world != static_cast<uint32_t>(options_.world) ||
      called != static_cast<uint32_t>(options_.rank)) {
    return FailedPrecondition(StrCat("expected job ", options_.job, ", rank ", options_.rank,
                                     " of ", options_.world, ", found job ", job, ", rank ", called,
                                     " of ", world));
  }
  if (version != kLayoutVersion) {
    return FailedPrecondition(
        StrCat("memory layout: expected ", kLayoutVersion, ", found ", version));
  }
  const auto found = std::find_if(links_.begin(), links_.end(), [&](const Link& link) {
    return static_cast<uint32_t>(link.peer.rank) == rank &&
           link.state == Link::State::kAwaitingVerdict && link.attachment == nullptr;
  });
  if (found == links_.end()) return FailedPrecondition(StrCat("rank ", rank, " is not awaited"));
  WEIR_RETURN_IF_ERROR(
      CheckProof(found->peer, kOfferLabel, frame.payload.first(reader.offset()), reader.rest()));
  auto attachment = std::make_unique<Attachment>();
  WEIR_RETURN_IF_ERROR(
      TakeEventFdAndStaging(std::span(message.descriptors).subspan(1), attachment.get()));
  WEIR_ASSIGN_OR_RETURN(attachment->segment,
                        Segment::Map(message.descriptors[0].get(), ring_bytes));
  attachment->peer = pending.process;
  attachment->process = WatchProcess(pending.process);
  std::vector<int> descriptors = {options_.event_fd};
  if (options_.staging >= 0) descriptors.push_back(options_.staging);
  WEIR_ASSIGN_OR_RETURN(const Secret proof, Proof(found->peer, kAnswerLabel, {}));
  WEIR_RETURN_IF_ERROR(SendHandshake(pending.control.get(),
                                     mesh::EncodeFrame(FrameType::kHello, options_.rank, proof),
                                     descriptors));
  attachment->control = std::move(pending.control);
  found->attachment = std::move(attachment);
  return OkStatus();
}

// Returns the payload of the next frame over TCP, or nothing while it is incomplete.
StatusOr<std::optional<std::span<const std::byte>>> Attacher::ReadTold(Link& link) {
  const StatusOr<bool> complete = link.told.Read(link.peer.socket);
  if (!complete.ok()) {
    if (complete.status().code() != StatusCode::kUnavailable) {
      return Annotate(complete.status(), StrCat(link.name(), " sent a malformed frame"));
    }
    return Unavailable(StrCat(link.name(), " closed the connection"));
  }
  if (!*complete) return std::nullopt;
  if (link.told.header().type == FrameType::kAbort) {
    if (link.told.payload().empty()) {
      return Unavailable(StrCat(link.name(), " closed the connection"));
    }
    return Unavailable(StrCat("rank ", link.peer.rank, " reported: ", link.told.text()));
  }
  return link.told.payload();
}

Status Attacher::OnVerdict(Link& link) {
  WEIR_ASSIGN_OR_RETURN(const auto told, ReadTold(link));
  if (!told.has_value()) return OkStatus();
  ByteReader reader(*told);
  uint32_t verdict = 0;
  WEIR_RETURN_IF_ERROR(Annotate(reader.Read(&verdict), StrCat(link.name(), " sent a verdict")));
  if (verdict > kIsAttached || (verdict == kIsAttached && link.attachment == nullptr)) {
    return DataLoss(StrCat(link.name(), " sent verdict ", verdict, " on shared memory that ",
                           link.attachment == nullptr ? "was never offered" : "was offered"));
  }
  if (verdict == kStaysTcp) {
    link.attachment = nullptr;
    link.why_not = StrCat("it says: ", mesh::PrintableText(reader.rest()));
  }
  link.state = Link::State::kDone;
  return OkStatus();
}

// ---- both ranks, once all their pairs are decided

Status Attacher::TellOfStaging(Link& link, bool has_all) {
  std::array<std::byte, sizeof(uint32_t)> payload;
  ByteWriter writer(payload);
  writer.Write(uint32_t{has_all});
  link.state = Link::State::kAwaitingStaging;
  link.told = mesh::HandshakeReader(link.opener());
  return SendTold(link, payload);
}

Status Attacher::OnStaging(Link& link) {
  WEIR_ASSIGN_OR_RETURN(const auto told, ReadTold(link));
  if (!told.has_value()) return OkStatus();
  ByteReader reader(*told);
  uint32_t has_all = 0;
  WEIR_RETURN_IF_ERROR(
      Annotate(reader.Read(&has_all), StrCat(link.name(), " spoke of staging buffers")));
  if (has_all > 1) {
    return DataLoss(
        StrCat(link.name(), " spoke of staging buffers: expected 0 or 1, found ", has_all));
  }
  all_staging_ = all_staging_ && has_all == 1;
  link.state = Link::State::kDone;
  return OkStatus();
}

}  // namespace weir::shm
