// SPDX-License-Identifier: Apache-2.0
// A worker whose rows of packets do not get through: switches in software take a row for one frame.
#include "datapath/aggregation/io/worker_port.h"

#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "datapath/aggregation/aggregator.h"
#include "datapath/aggregation/io/address.h"
#include "datapath/base/log.h"
#include "tests/datapath/aggregation/io/job.h"

namespace weir::aggregation {
namespace {

using ::testing::HasSubstr;

/// An aggregator that drops datagrams which the kernel hands over as a row.
class Switch : public ReplySink {
 public:
  explicit Switch(bool takes_rows) : takes_rows_(takes_rows) {
    fd_ = mesh::UniqueFd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = ToSocketAddress(*ParseSourceAddress("127.0.0.1:0"));
    socklen_t size = sizeof address;
    const int on = 1;
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(setsockopt(fd_.get(), SOL_UDP, UDP_GRO, &on, sizeof on), 0);
    address_ = ToSourceAddress(address);
  }

  ~Switch() override {
    if (!thread_.joinable()) return;
    ended_ = true;
    thread_.join();
  }

  void Serve(const Lease& lease, std::span<const SourceAddress> workers) {
    ASSERT_TRUE(aggregator_.Grant(lease, workers).ok());
    thread_ = std::thread([this] { Loop(); });
  }

  void Send(SourceAddress to, std::span<const std::byte> packet) override {
    const sockaddr_in address = ToSocketAddress(to);
    sendto(fd_.get(), packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr*>(&address),
           sizeof address);
  }

  SourceAddress address() const { return address_; }
  int dropped() const { return dropped_; }

 private:
  void Loop() {
    std::vector<std::byte> buffer(65536);
    while (!ended_) {
      pollfd ready = {fd_.get(), POLLIN, 0};
      if (poll(&ready, 1, 10) <= 0) continue;
      std::array<char, CMSG_SPACE(sizeof(int))> control = {};
      sockaddr_in from = {};
      iovec part = {buffer.data(), buffer.size()};
      msghdr message = {};
      message.msg_name = &from;
      message.msg_namelen = sizeof from;
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t size = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
      if (size < 0) continue;
      int segment = static_cast<int>(size);
      if (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr && c->cmsg_type == UDP_GRO) {
        std::memcpy(&segment, CMSG_DATA(c), sizeof segment);
      }
      if (segment < size && !takes_rows_) {
        ++dropped_;
        continue;
      }
      for (ssize_t at = 0; at < size; at += segment) {
        const auto length = static_cast<size_t>(std::min<ssize_t>(segment, size - at));
        aggregator_.OnPacket(ToSourceAddress(from), std::span(buffer).subspan(at, length),
                             RealClock().Now(), this);
      }
    }
  }

  const bool takes_rows_;
  mesh::UniqueFd fd_;
  SourceAddress address_ = 0;
  Aggregator aggregator_{{}};
  std::thread thread_;
  std::atomic<bool> ended_ = false;
  std::atomic<int> dropped_ = 0;
};

class WorkerPortTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rows, WorkerPortTest, testing::Bool());

TEST_P(WorkerPortTest, RowsThatNobodyAnswersLeaveAsSinglePackets) {
  const bool takes_rows = GetParam();
  std::mutex mutex;
  std::vector<std::string> warnings;
  SetLogSink([&](LogLevel level, std::string_view, std::string_view message) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::kWarning) warnings.emplace_back(message);
  });
  constexpr int kWorkers = 2;
  Lease lease;
  lease.id = 3;
  lease.epoch = 1;
  lease.cookie = 7;
  lease.mode = PacketMode::kSum;
  lease.workers = kWorkers;
  lease.slots = 16;
  lease.lanes = 64;
  Switch middle(takes_rows);
  JobPorts job(kWorkers);
  middle.Serve(lease, job.addresses);
  JobTensors tensors = IntegerTensors(kWorkers, 64 * 16 * 4, 1);
  std::vector<std::unique_ptr<SumWorker>> workers;
  for (int w = 0; w < kWorkers; ++w) {
    workers.push_back(std::make_unique<SumWorker>(lease, kLoopbackTimeouts, w));
  }
  const auto run = [&](uint32_t operation) {
    const auto results = job.OnAll([&](size_t w) -> Status {
      std::vector<float> tensor = tensors[w];
      WEIR_RETURN_IF_ERROR(
          workers[w]->Begin(tensor, operation, RealClock().Now() + std::chrono::seconds(20)));
      WEIR_RETURN_IF_ERROR(job.ports[w]->Run(middle.address(), workers[w].get()));
      return tensor == SumOf(tensors) ? OkStatus() : Internal("not the sum");
    });
    for (const Status& result : results) EXPECT_TRUE(result.ok()) << result;
  };
  run(0);
  run(1);
  run(2);
  const int dropped = middle.dropped();
  run(3);
  run(4);
  SetLogSink({});
  if (takes_rows) {
    EXPECT_EQ(middle.dropped(), 0);
    EXPECT_TRUE(warnings.empty()) << warnings[0];
    return;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(middle.dropped(), dropped) << "single packets from the beginning";
  ASSERT_EQ(warnings.size(), size_t{kWorkers});
  EXPECT_THAT(warnings[0], HasSubstr("tx-udp-segmentation off"));
}

}  // namespace
}  // namespace weir::aggregation
