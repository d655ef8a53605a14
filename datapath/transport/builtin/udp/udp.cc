// The udp transport: a mesh of reliable streams over datagrams, one socket per rank.

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "datapath/transport/builtin/udp/rendezvous.h"
#include "datapath/transport/mesh/mesh_transport.h"

namespace weir {
namespace {

using std::chrono::milliseconds;
using udp::Endpoint;
using udp::Peers;

constexpr uint64_t kSocketIndex = 0;
// The last words have to be repeated until they arrive.
constexpr Duration kUdpLingerMax = milliseconds(3000);
// How long the attendant leaves a rank alone that waited just now, and how long it sleeps without
// knowing what the rank has posted meanwhile.
constexpr Duration kAttendantTick = milliseconds(4);
constexpr Duration kAttendantSleepMax = milliseconds(20);
constexpr char kAlgorithm[] = "newreno";

/// Does what the kernel does for TCP while the rank computes: acknowledges, repeats what was lost,
/// answers pings. A rank that waits does all that itself, which saves switching threads.
class Attendant {
 public:
  /// `endpoint` outlives it; `busy` and `waits` say whether the rank drives the endpoint itself.
  Attendant(Endpoint& endpoint, const std::atomic<bool>& busy, const std::atomic<uint64_t>& waits)
      : endpoint_(endpoint), busy_(busy), waits_(waits), stop_(eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Attendant() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "weir-udp");
    uint64_t seen = ~uint64_t{0};
    for (;;) {
      const uint64_t waits = waits_.load();
      const bool leave_alone = busy_.load() || waits != seen;
      seen = waits;
      const TimePoint now = RealClock().Now();
      const Duration sleep =
          leave_alone ? kAttendantTick
                      : std::min<Duration>(endpoint_.NextTimer(now) - now, kAttendantSleepMax);
      pollfd polled[] = {{stop_.get(), POLLIN, 0}, {endpoint_.fd(), POLLIN, 0}};
      (void)poll(polled, leave_alone ? 1 : 2, mesh::PollTimeout(sleep));
      if (polled[0].revents != 0) return;
      if (!leave_alone) endpoint_.DriveUnless(busy_, RealClock().Now());
    }
  }

  Endpoint& endpoint_;
  const std::atomic<bool>& busy_;
  const std::atomic<uint64_t>& waits_;
  const mesh::UniqueFd stop_;
  std::thread thread_;
};

class UdpTransport : public mesh::MeshTransport {
 public:
  UdpTransport(mesh::MeshParts parts, std::unique_ptr<Endpoint> endpoint,
               const std::array<uint64_t, 2>& secret)
      : MeshTransport(std::move(parts)), secret_(secret), endpoint_(std::move(endpoint)) {}
  ~UdpTransport() override {
    const Busy busy(*this);
    if (Leave(mesh::kFarewellMax)) Linger(orderly() ? kUdpLingerMax : mesh::kFarewellMax);
    Disconnect();
  }

  StatusOr<FrameHeader> Wait(Ticket ticket, TimePoint deadline) override {
    const Busy busy(*this);
    return MeshTransport::Wait(ticket, deadline);
  }
  StatusOr<std::optional<size_t>> WaitAny(std::span<const Ticket> tickets,
                                          TimePoint deadline) override {
    const Busy busy(*this);
    return MeshTransport::WaitAny(tickets, deadline);
  }
  std::vector<PathSample> Samples() const override;
  int unauthenticated_peers() const override { return options().unauthenticated ? world() - 1 : 0; }

 private:
  // The rank drives the endpoint itself.
  class Busy {
   public:
    explicit Busy(UdpTransport& transport) : transport_(transport) { transport_.busy_.store(true); }
    ~Busy() {
      transport_.waits_.fetch_add(1);
      transport_.busy_.store(false);
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    UdpTransport& transport_;
  };

  Status Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) override;
  mesh::Peer* peer(int rank) override {
    const auto index = static_cast<size_t>(rank);
    return index < peers_.connections.size() ? peers_.connections[index].get() : nullptr;
  }
  Status DriveAll(TimePoint now, bool* progress) override;
  Status Rest(const mesh::Operation* awaited, TimePoint now, TimePoint deadline,
              bool progress) override;
  void DriveFarewell(TimePoint now, bool* progress) override;
  Status RestInFarewell(Duration timeout) override { return Poll(timeout); }
  void EndSending() override;
  void Disconnect() override;
  Status Poll(Duration timeout);
  void Linger(Duration bound);

  const std::array<uint64_t, 2> secret_;
  TimePoint busy_until_{}, rested_{};  // see Rest
  std::atomic<bool> busy_ = false;
  std::atomic<uint64_t> waits_ = 0;     // that ended
  std::unique_ptr<Endpoint> endpoint_;  // none after a disconnect
  Peers peers_;
  std::unique_ptr<Attendant> attendant_;

  mutable Mutex samples_mutex_;  // guards the endpoint's lifetime against Samples, nothing else
  bool sampled_ WEIR_GUARDED_BY(samples_mutex_) = false;
};

Status UdpTransport::Join(const std::vector<TransportAddress>& addresses, TimePoint deadline) {
  udp::Rendezvous rendezvous(options(), secret_, endpoint_.get(), &peers_, wake());
  const Status status = rendezvous.Run(addresses, deadline);
  endpoint_->StopListening();
  if (!status.ok()) {
    SendFarewell(Message(status), mesh::kFarewellMax);
    Linger(mesh::kFarewellMax);
    Disconnect();
    return status;
  }
  if (world() > 1) attendant_ = std::make_unique<Attendant>(*endpoint_, busy_, waits_);
  MutexLock lock(samples_mutex_);
  sampled_ = true;
  return OkStatus();
}

// ---- waiting

Status UdpTransport::DriveAll(TimePoint now, bool* progress) {
  endpoint_->Drive(now);
  for (int r = 0; r < world(); ++r) {
    if (peer(r) != nullptr) WEIR_RETURN_IF_ERROR(peers_.Drive(r, now, progress, sent()));
  }
  endpoint_->Flush(now);
  return OkStatus();
}

Status UdpTransport::Rest(const mesh::Operation*, TimePoint now, TimePoint deadline,
                          bool progress) {
  // Looks again and again for so long after news or after a wait began.
  if (progress || now - rested_ > options().busy_poll) busy_until_ = now + options().busy_poll;
  Status status = OkStatus();
  if (!progress && now < busy_until_) {
    sched_yield();
  } else if (!progress) {
    status = Poll(deadline - now);
  }
  rested_ = RealClock().Now();
  return status;
}

Status UdpTransport::Poll(Duration timeout) {
  const TimePoint now = RealClock().Now();
  timeout = std::min<Duration>(timeout, endpoint_->NextTimer(now) - now);
  return events().Wait(timeout).status();
}

// ---- ending

void UdpTransport::DriveFarewell(TimePoint now, bool* progress) {
  endpoint_->Drive(now);
  for (const auto& connection : peers_.connections) {
    // An error means that this peer needs no farewell any more.
    if (connection && !connection->flushed()) (void)connection->DriveSend(now, progress, sent());
  }
}

void UdpTransport::EndSending() {
  for (const auto& stream : peers_.streams) {
    if (stream) stream->CloseWrite();
  }
}

// Until everything of ours has arrived: nobody repeats it once the socket is closed.
void UdpTransport::Linger(Duration bound) {
  const TimePoint deadline = RealClock().Now() + bound;
  for (;;) {
    const TimePoint now = RealClock().Now();
    endpoint_->Drive(now);
    if (endpoint_->Drained() || now >= deadline) return;
    if (!Poll(std::min<Duration>(deadline - now, milliseconds(10))).ok()) return;
  }
}

void UdpTransport::Disconnect() {
  attendant_.reset();
  peers_ = Peers();
  MutexLock lock(samples_mutex_);
  sampled_ = false;
  endpoint_.reset();
}

std::vector<PathSample> UdpTransport::Samples() const {
  std::vector<PathSample> samples;
  MutexLock lock(samples_mutex_);
  if (!sampled_) return samples;
  for (int r = 0; r < world(); ++r) {
    if (r != rank()) samples.push_back(endpoint_->Sample(r));
  }
  return samples;
}

// ---- making one

class UdpFactory : public TransportFactory {
 public:
  const TransportTraits& Traits() const override { return traits_; }

  StatusOr<std::unique_ptr<Transport>> Create(const TransportOptions& options) const override {
    if (!options.congestion_control.empty() && options.congestion_control != kAlgorithm) {
      return InvalidArgument(StrCat("congestion control '", options.congestion_control,
                                    "': udp has only ", kAlgorithm));
    }
    WEIR_RETURN_IF_ERROR(mesh::RequireUnauthenticated(options, traits_.name));
    WEIR_ASSIGN_OR_RETURN(mesh::MeshParts parts, mesh::MakeMeshParts(options));
    WEIR_ASSIGN_OR_RETURN(udp::DatagramSocket socket,
                          udp::DatagramSocket::Bind(options, &parts.address));
    WEIR_RETURN_IF_ERROR(parts.events->Add(socket.fd(), EPOLLIN, kSocketIndex));
    std::array<uint64_t, 2> secret;
    WEIR_ASSIGN_OR_RETURN(secret[0], udp::UnpredictableNumber());
    WEIR_ASSIGN_OR_RETURN(secret[1], udp::UnpredictableNumber());
    auto endpoint = std::make_unique<Endpoint>(std::move(socket), options.world);
    return std::make_unique<UdpTransport>(std::move(parts), std::move(endpoint), secret);
  }

 private:
  const TransportTraits traits_ = {.name = "udp", .lossless = true, .crosses_hosts = true};
};

}  // namespace

void RegisterUdp(Registry<TransportFactory>& registry, uint8_t wire_id) {
  registry.Add(wire_id, std::make_unique<UdpFactory>());
}

}  // namespace weir
