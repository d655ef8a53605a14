// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/udp_echo.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace weir::agent {
namespace {

constexpr uint32_t kMagic = 0x68634557;  // "WEch"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kRequest = 1;
constexpr uint8_t kReply = 2;
constexpr double kRepliesPerSecond = 5000;
constexpr double kReplyBurst = 1000;
constexpr size_t kTargetsMax = 1024;
constexpr int kSliceMs = 100;  // the longest delay of a stop

struct EchoHeader {
  uint32_t magic;
  uint8_t version;
  uint8_t type;
  uint16_t zero;
  uint64_t nonce;
  uint64_t sequence;
};
static_assert(sizeof(EchoHeader) == kEchoPacketBytesMin);

bool ReadHeader(std::span<const std::byte> packet, uint8_t type, EchoHeader* header) {
  if (packet.size() < sizeof *header || packet.size() > kEchoPacketBytesMax) return false;
  std::memcpy(header, packet.data(), sizeof *header);
  return header->magic == kMagic && header->version == kVersion && header->type == type;
}

// The socket of one address family, and the replies that it collects.
class EchoClient {
 public:
  EchoClient(std::span<const SocketAddress> targets, const UdpEchoOptions& options,
             const Clock& clock, std::stop_token stop)
      : targets_(targets), options_(options), clock_(clock), stop_(std::move(stop)) {
    count_ = std::clamp<uint32_t>(options.count, 1, 64);
    sent_at_.resize(targets.size() * count_);
    rtts_.resize(targets.size());
    sent_.resize(targets.size());
    answered_.resize(targets.size() * count_);
    send_errors_.resize(targets.size());
  }

  std::vector<StatusOr<RttSummary>> Run() {
    for (uint32_t round = 0; round < count_ && !stop_.stop_requested(); ++round) {
      const TimePoint next = clock_.Now() + options_.interval;
      for (size_t target = 0; target < targets_.size(); ++target) SendOne(target, round);
      Receive(round + 1 == count_ ? clock_.Now() + options_.timeout : next);
    }
    std::vector<StatusOr<RttSummary>> results;
    for (size_t target = 0; target < targets_.size(); ++target) results.push_back(Result(target));
    return results;
  }

 private:
  void SendOne(size_t target, uint32_t round) {
    const SocketAddress& to = targets_[target];
    FileDescriptor& fd = to.family() == AF_INET6 ? v6_ : v4_;
    if (!fd.valid()) {
      fd = FileDescriptor(socket(to.family(), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!fd.valid()) {
        send_errors_[target] = errno;
        return;
      }
    }
    const uint64_t sequence = target * count_ + round;
    const auto packet = MakeEchoRequest(options_.nonce, sequence, options_.packet_bytes);
    sent_at_[sequence] = clock_.Now();
    const ssize_t n = sendto(fd.get(), packet.data(), packet.size(), 0, to.get(), to.size());
    if (n < 0) {
      send_errors_[target] = errno;
    } else {
      ++sent_[target];
    }
  }

  bool Complete() const { return received_ >= targets_.size() * count_; }

  void Receive(TimePoint until) {
    while (!Complete() && !stop_.stop_requested()) {
      const TimePoint now = clock_.Now();
      if (now >= until) return;
      pollfd fds[2] = {{v4_.get(), POLLIN, 0}, {v6_.get(), POLLIN, 0}};
      if (poll(fds, 2, PollMilliseconds(now, until, kSliceMs)) <= 0) continue;
      for (const pollfd& ready : fds) {
        if (ready.revents != 0) Drain(ready.fd);
      }
    }
  }

  void Drain(int fd) {
    std::array<std::byte, kEchoPacketBytesMax + 1> packet;
    sockaddr_storage from{};
    while (true) {
      socklen_t from_size = sizeof from;
      const ssize_t n = recvfrom(fd, packet.data(), packet.size(), 0,
                                 reinterpret_cast<sockaddr*>(&from), &from_size);
      const TimePoint now = clock_.Now();
      if (n < 0) return;  // drained, or an ICMP error, which also shows as loss
      uint64_t sequence = 0;
      const auto bytes = std::span(packet).first(static_cast<size_t>(n));
      if (!ParseEchoReply(bytes, options_.nonce, &sequence) || sequence >= answered_.size())
        continue;
      const size_t target = sequence / count_;
      const SocketAddress source(reinterpret_cast<sockaddr*>(&from), from_size);
      if (answered_[sequence] || sent_at_[sequence] == TimePoint() ||
          !(source == targets_[target])) {
        continue;  // a duplicate, or from another sender
      }
      answered_[sequence] = true;
      ++received_;
      rtts_[target].push_back(ToSeconds(now - sent_at_[sequence]));
    }
  }

  StatusOr<RttSummary> Result(size_t target) const {
    if (!rtts_[target].empty()) return SummarizeRtts(rtts_[target], sent_[target]);
    if (stop_.stop_requested()) return Aborted("latency probe stopped");
    if (sent_[target] == 0) {
      return ErrnoStatus(StrCat("send to ", targets_[target].ToString()), send_errors_[target]);
    }
    return DeadlineExceeded(StrCat("no udp echo reply from ", targets_[target].ToString(), " to ",
                                   sent_[target], " requests within ", ToSeconds(options_.timeout),
                                   " s"));
  }

  std::span<const SocketAddress> targets_;
  const UdpEchoOptions& options_;
  const Clock& clock_;
  std::stop_token stop_;
  uint32_t count_ = 1;
  FileDescriptor v4_;
  FileDescriptor v6_;
  std::vector<TimePoint> sent_at_;
  std::vector<bool> answered_;
  std::vector<std::vector<double>> rtts_;
  std::vector<uint32_t> sent_;
  std::vector<int> send_errors_;
  size_t received_ = 0;
};

}  // namespace

std::vector<std::byte> MakeEchoRequest(uint64_t nonce, uint64_t sequence, size_t packet_bytes) {
  std::vector<std::byte> packet(std::clamp(packet_bytes, kEchoPacketBytesMin, kEchoPacketBytesMax));
  const EchoHeader header{kMagic, kVersion, kRequest, 0, nonce, sequence};
  std::memcpy(packet.data(), &header, sizeof header);
  return packet;
}

bool ParseEchoReply(std::span<const std::byte> packet, uint64_t nonce, uint64_t* sequence) {
  EchoHeader header;
  if (!ReadHeader(packet, kReply, &header) || header.nonce != nonce) return false;
  *sequence = header.sequence;
  return true;
}

std::vector<StatusOr<RttSummary>> MeasureUdpEcho(std::span<const SocketAddress> targets,
                                                 const UdpEchoOptions& options, const Clock& clock,
                                                 std::stop_token stop) {
  const size_t probed = std::min(targets.size(), kTargetsMax);
  EchoClient client(targets.first(probed), options, clock, std::move(stop));
  std::vector<StatusOr<RttSummary>> results = client.Run();
  while (results.size() < targets.size()) {
    results.push_back(ResourceExhausted(StrCat("more than ", kTargetsMax, " probe targets")));
  }
  return results;
}

StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start(const SocketAddress& address,
                                                        const Clock& clock) {
  WEIR_ASSIGN_OR_RETURN(FileDescriptor tcp, BindSocket(address, SOCK_STREAM));
  WEIR_ASSIGN_OR_RETURN(const SocketAddress bound, LocalAddress(tcp.get()));
  WEIR_ASSIGN_OR_RETURN(FileDescriptor udp, BindSocket(bound, SOCK_DGRAM));
  FileDescriptor wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return ErrnoStatus("eventfd", errno);
  return std::unique_ptr<EchoServer>(
      new EchoServer(std::move(udp), std::move(tcp), std::move(wake), bound.port(), clock));
}

EchoServer::EchoServer(FileDescriptor udp, FileDescriptor tcp, FileDescriptor wake, uint16_t port,
                       const Clock& clock)
    : udp_(std::move(udp)),
      tcp_(std::move(tcp)),
      wake_(std::move(wake)),
      port_(port),
      clock_(clock),
      reply_tokens_(kReplyBurst),
      refilled_(clock.Now()),
      thread_([this] { Serve(); }) {}

EchoServer::~EchoServer() {
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) != sizeof one) return;  // cannot fail on an eventfd at 0
  thread_.join();
}

void EchoServer::Serve() {
  NameThread("weir-echo");
  while (true) {
    pollfd fds[3] = {{wake_.get(), POLLIN, 0}, {udp_.get(), POLLIN, 0}, {tcp_.get(), POLLIN, 0}};
    if (poll(fds, 3, -1) < 0) continue;
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0) AnswerUdp();
    if (fds[2].revents != 0) AcceptTcp();
  }
}

void EchoServer::AnswerUdp() {
  const TimePoint now = clock_.Now();
  reply_tokens_ =
      std::min(kReplyBurst, reply_tokens_ + kRepliesPerSecond * ToSeconds(now - refilled_));
  refilled_ = now;
  std::array<std::byte, kEchoPacketBytesMax + 1> packet;
  sockaddr_storage from{};
  for (int i = 0; i < 64; ++i) {
    socklen_t from_size = sizeof from;
    const ssize_t n = recvfrom(udp_.get(), packet.data(), packet.size(), 0,
                               reinterpret_cast<sockaddr*>(&from), &from_size);
    if (n < 0) return;
    EchoHeader header;
    const auto bytes = std::span(packet).first(static_cast<size_t>(n));
    if (!ReadHeader(bytes, kRequest, &header) || reply_tokens_ < 1) continue;
    reply_tokens_ -= 1;
    header.type = kReply;
    std::memcpy(packet.data(), &header, sizeof header);
    // A full send buffer loses the reply, as the network might.
    (void)sendto(udp_.get(), packet.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from),
                 from_size);
  }
}

void EchoServer::AcceptTcp() {
  for (int i = 0; i < 16; ++i) {
    FileDescriptor accepted(accept4(tcp_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.valid()) return;
  }
}

}  // namespace weir::agent
