// SPDX-License-Identifier: Apache-2.0
// Workers in separate network namespaces, each on an interface of the aggregator, with real frames.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "datapath/aggregation/io/worker_port.h"
#include "datapath/aggregation/sum_worker.h"
#include "datapath/aggregation/table_worker.h"
#include "datapath/aggregation/xdp/xdp_plane.h"
#include "datapath/base/random.h"

namespace weir::aggregation {
namespace {

constexpr int kWorkers = 4;
constexpr size_t kElements = 40'000;
const TimeoutLimits kPatientTimeouts = {.first = std::chrono::milliseconds(50),
                                        .min = std::chrono::milliseconds(10),
                                        .max = std::chrono::milliseconds(200)};

bool Shell(const std::string& commands) {
  return std::system(StrCat("exec >/dev/null 2>&1; set -e; ", commands).c_str()) == 0;
}

/// The inputs and results of one worker's thread.
struct Peer {
  pid_t thread = 0;
  std::unique_ptr<WorkerPort> port;
  std::unique_ptr<XdpPlane> passes;
  std::string failure;
};

constexpr XdpPlaneOptions kSmallPlane = {.limits = {.slots = 64, .slots_per_job = 64, .leases = 4}};

class PortSink : public ReplySink {
 public:
  explicit PortSink(UdpPort* port) : port_(port) {}
  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    port_->Send(to, packet);
  }

 private:
  UdpPort* const port_;
};

/// A star: threads live in namespaces that end with them, so there is nothing to clean up.
class Star {
 public:
  /// work(worker, port, aggregator, lease) runs on every worker's thread. Empty when all went well.
  template <typename Work>
  std::string Operate(const Lease& lease, XdpAttachMode mode, Work work) {
    native_ = mode == XdpAttachMode::kNative;
    std::vector<std::thread> threads;
    for (int w = 0; w < kWorkers; ++w) {
      threads.emplace_back([&, w] { RunWorker(w, lease, work); });
    }
    std::thread aggregator([&] { RunAggregator(lease, mode); });
    for (std::thread& thread : threads) thread.join();
    done_ = true;
    aggregator.join();
    std::string all = failure_;
    for (const Peer& peer : peers_) all += peer.failure;
    return all;
  }

  XdpPlaneCounters counters;
  uint64_t to_socket = 0;

 private:
  template <typename Work>
  void RunWorker(int w, const Lease& lease, Work work) {
    Peer& peer = peers_[static_cast<size_t>(w)];
    peer.thread = gettid();
    if (unshare(CLONE_NEWNET) != 0) peer.failure = "no namespace; ";
    born_.arrive_and_wait();
    wired_.wait();
    const std::string net = StrCat("10.77.", w + 1);
    if (peer.failure.empty() &&
        !Shell(StrCat("ip addr add ", net, ".2/24 dev port0; ip link set port0 up; ",
                      "ip route add default via ", net, ".1"))) {
      peer.failure = "no address; ";
    }
    auto port = WorkerPort::Bind({.listen = StrCat(net, ".2:0"), .rows = false});
    if (!port.ok()) peer.failure += Message(port.status());
    if (port.ok()) peer.port = std::move(*port);
    if (native_ && peer.failure.empty()) peer.failure = TakeFrames(&peer);
    bound_.arrive_and_wait();
    granted_.wait();
    if (!failure_.empty() || !peer.failure.empty()) return;
    const Status worked = work(w, peer.port.get(), address_);
    if (!worked.ok()) peer.failure = StrCat("worker ", w, ": ", Message(worked), "; ");
  }

  // A driver of virtual interfaces accepts frames from the other end's program only if there is one
  // here, too. This one knows no lease and passes all.
  static std::string TakeFrames(Peer* peer) {
    auto plane = XdpPlane::Load(kSmallPlane);
    if (!plane.ok()) return Message(plane.status());
    peer->passes = std::move(*plane);
    const Status attached = peer->passes->Attach("port0", XdpAttachMode::kNative);
    return attached.ok() ? "" : Message(attached);
  }

  void Wire() {
    std::string commands = "ip link set lo up; ip addr add 10.77.0.1/32 dev lo; ";
    for (int w = 0; w < kWorkers; ++w) {
      const std::string name = StrCat("port", w + 1);
      const pid_t peer = peers_[static_cast<size_t>(w)].thread;
      commands += StrCat("ip link add ", name, " type veth peer name port0 netns ", peer,
                         "; ip addr add 10.77.", w + 1, ".1/24 dev ", name, "; ip link set ", name,
                         " up; ");
    }
    if (!Shell(commands)) failure_ = "no interfaces; ";
  }

  std::unique_ptr<XdpPlane> Prepare(const Lease& lease, XdpAttachMode mode, UdpPort* port) {
    auto plane = XdpPlane::Load(kSmallPlane);
    if (!plane.ok()) {
      failure_ += Message(plane.status());
      return nullptr;
    }
    std::vector<SourceAddress> addresses;
    for (int w = 0; w < kWorkers; ++w) {
      const Status attached = (*plane)->Attach(StrCat("port", w + 1), mode);
      if (!attached.ok()) failure_ += Message(attached);
      const Peer& peer = peers_[static_cast<size_t>(w)];
      addresses.push_back(peer.port == nullptr ? 0 : peer.port->address());
    }
    const auto range = (*plane)->Grant(lease, addresses, port->address());
    if (!range.ok()) failure_ += Message(range.status());
    return std::move(*plane);
  }

  void RunAggregator(const Lease& lease, XdpAttachMode mode) {
    if (unshare(CLONE_NEWNET) != 0) failure_ = "no namespace; ";
    born_.arrive_and_wait();
    if (failure_.empty()) Wire();
    wired_.count_down();
    bound_.arrive_and_wait();
    auto port = UdpPort::Bind({.listen = "10.77.0.1:0"});
    if (!port.ok()) failure_ += Message(port.status());
    std::unique_ptr<XdpPlane> plane;
    if (failure_.empty()) plane = Prepare(lease, mode, port->get());
    if (port.ok()) address_ = (*port)->address();
    granted_.count_down();
    if (plane == nullptr || !failure_.empty()) return;
    PortSink sink(port->get());
    while (!done_) {
      if (plane->AwaitReplies(std::chrono::milliseconds(5))) plane->SendReplies(&sink);
      (*port)->Flush();
      (*port)->Receive([&](SourceAddress, std::span<const std::byte>) { ++to_socket; });
    }
    const auto counted = plane->Counters();
    if (counted.ok()) counters = *counted;
  }

  std::vector<Peer> peers_ = std::vector<Peer>(kWorkers);
  std::string failure_;
  bool native_ = false;
  SourceAddress address_ = 0;
  std::latch born_{kWorkers + 1}, wired_{1}, bound_{kWorkers + 1}, granted_{1};
  std::atomic<bool> done_ = false;
};

class XdpNetworkTest : public ::testing::TestWithParam<XdpAttachMode> {
 protected:
  void SetUp() override {
    std::string why;
    std::thread([&why] {
      if (unshare(CLONE_NEWNET) != 0) why = "network namespaces are not permitted";
      if (why.empty() && !Shell("ip link add probe0 type veth peer name probe1"))
        why = "no veth interfaces";
    }).join();
    if (why.empty()) {
      const auto plane = XdpPlane::Load(kSmallPlane);
      if (!plane.ok()) why = Message(plane.status());
    }
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(XdpNetworkTest, WorkersOfSwitchMlGetExactSums) {
  const Lease lease{.id = 1,
                    .epoch = 1,
                    .cookie = 77,
                    .workers = kWorkers,
                    .slots = 32,
                    .lanes = 256,
                    .checked = false};
  std::vector<std::vector<float>> tensors(kWorkers, std::vector<float>(kElements));
  std::vector<float> expected(kElements);
  Random random(3);
  for (auto& tensor : tensors) {
    for (size_t i = 0; i < kElements; ++i) {
      tensor[i] = static_cast<float>(random.Below(2001)) - 1000;
      expected[i] += tensor[i];
    }
  }
  Star star;
  EXPECT_EQ(star.Operate(lease, GetParam(),
                         [&](int w, WorkerPort* port, SourceAddress aggregator) {
                           SumWorker worker(lease, kPatientTimeouts, w);
                           const TimePoint deadline = RealClock().Now() + std::chrono::seconds(20);
                           const Status begun =
                               worker.Begin(tensors[static_cast<size_t>(w)], 1, deadline);
                           return begun.ok() ? port->Run(aggregator, &worker) : begun;
                         }),
            "");
  for (int w = 0; w < kWorkers; ++w) {
    EXPECT_EQ(tensors[static_cast<size_t>(w)], expected) << "worker " << w;
  }
  const uint64_t packets = (kElements + 255) / 256 + 32;
  EXPECT_EQ(star.counters.packets.completed, packets);
  EXPECT_EQ(star.counters.packets.added, packets * (kWorkers - 1));
  EXPECT_EQ(star.counters.packets.foreign, 0u);
  EXPECT_GE(star.counters.handed, packets);
  EXPECT_EQ(star.to_socket, 0u);
}

// A reply of THC is longer than its request, and the driver's frames have no room for it.
TEST_P(XdpNetworkTest, WorkersOfThcGetExactMeans) {
  Lease lease{.id = 2,
              .epoch = 1,
              .cookie = 78,
              .mode = PacketMode::kTable,
              .workers = kWorkers,
              .slots = 8,
              .lanes = 1024,
              .sum_bits = 8,
              .checked = false};
  for (uint8_t i = 0; i < 16; ++i) lease.levels.push_back(static_cast<uint8_t>(2 * i));
  std::vector<std::vector<uint8_t>> indices(kWorkers, std::vector<uint8_t>(kElements));
  std::vector<std::vector<float>> means(kWorkers, std::vector<float>(kElements));
  std::vector<float> expected(kElements);
  Random random(4);
  for (auto& row : indices) {
    for (size_t i = 0; i < kElements; ++i) {
      row[i] = static_cast<uint8_t>(random.Below(16));
      expected[i] += static_cast<float>(2 * row[i]);
    }
  }
  for (float& sum : expected) sum = sum / kWorkers - 15;
  Star star;
  EXPECT_EQ(star.Operate(lease, GetParam(),
                         [&](int w, WorkerPort* port, SourceAddress aggregator) {
                           const auto at = static_cast<size_t>(w);
                           TableWorker worker(lease, kPatientTimeouts, w);
                           const TimePoint deadline = RealClock().Now() + std::chrono::seconds(20);
                           const Status begun = worker.Begin(indices[at], means[at], 1, deadline);
                           return begun.ok() ? port->Run(aggregator, &worker) : begun;
                         }),
            "");
  for (int w = 0; w < kWorkers; ++w) {
    EXPECT_EQ(means[static_cast<size_t>(w)], expected) << "worker " << w;
  }
  EXPECT_EQ(star.counters.packets.completed, (kElements + 1023) / 1024);
  EXPECT_EQ(star.to_socket, 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, XdpNetworkTest,
                         ::testing::Values(XdpAttachMode::kGeneric, XdpAttachMode::kNative),
                         [](const auto& info) {
                           return std::string(info.param == XdpAttachMode::kNative ? "native"
                                                                                   : "generic");
                         });

}  // namespace
}  // namespace weir::aggregation
