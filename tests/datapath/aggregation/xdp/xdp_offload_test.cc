// SPDX-License-Identifier: Apache-2.0
// A server whose leases the kernel serves where it can, on the loopback interface of a namespace.
#include "datapath/aggregation/xdp/xdp_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "datapath/aggregation/io/server.h"
#include "tests/datapath/aggregation/io/job.h"

namespace weir::aggregation {
namespace {

constexpr char kOwner[] = "an-owner-of-this-test";

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A program behind the driver gets rows of datagrams as one packet.
constexpr bool kNoRows = false;

/// Runs `body` on a thread in its own namespace with a server that offloads; returns the reason if
/// that is not possible.
std::string WithServer(
    const std::function<void(AggregatorServer* server, const XdpOffload* offload)>& body) {
  std::string why;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0 || std::system("ip link set lo up") != 0) {
      why = "network namespaces are not permitted";
      return;
    }
    auto server = AggregatorServer::Start({.limits = {.slots = 64, .slots_per_job = 32}});
    ASSERT_TRUE(server.ok()) << server.status();
    auto offload = XdpOffload::Start({.interfaces = {"lo"},
                                      .mode = XdpAttachMode::kGeneric,
                                      .plane = {.limits = (*server)->options().limits},
                                      .socket = (*server)->socket()});
    if (!offload.ok()) {
      why = Message(offload.status());
      return;
    }
    const XdpOffload* const watched = offload->get();
    (*server)->UseOffload(std::move(*offload));
    body(server->get(), watched);
  }).join();
  return why;
}

Lease UncheckedTerms(int workers, uint16_t slots) {
  return {.workers = workers, .slots = slots, .checked = false};
}

TEST(XdpOffloadTest, SumsAreExactAndTheSocketSeesNoPacket) {
  const std::string why = WithServer([](AggregatorServer* server, const XdpOffload* offload) {
    JobPorts ports(3, kNoRows);
    const auto grant = server->Grant({.job = "train",
                                      .terms = UncheckedTerms(3, 16),
                                      .workers = ports.addresses,
                                      .owner = kOwner});
    ASSERT_TRUE(grant.ok()) << grant.status();
    EXPECT_TRUE(grant->offloaded);
    JobTensors tensors = IntegerTensors(3, 20'000, 5);
    const std::vector<float> expected = SumOf(tensors);
    const JobRun run{.lease = grant->lease, .aggregator = grant->address};
    const auto results = ports.OnAll([&](size_t w) {
      return RunSum(run, ports.ports[w].get(), static_cast<int>(w), &tensors[w]);
    });
    for (size_t w = 0; w < results.size(); ++w) {
      ASSERT_TRUE(results[w].ok()) << results[w];
      EXPECT_EQ(tensors[w], expected) << "worker " << w;
    }
    EXPECT_GT(offload->Counters()->packets.completed, 20'000u / 256);
    const auto status = server->Offload();
    ASSERT_TRUE(status.ok() && status->has_value()) << status.status();
    EXPECT_EQ((*status)->slots_granted, 16u);
    EXPECT_EQ((*status)->leases, 1u);
    EXPECT_GT((*status)->counters.packets.completed, 20'000u / 256);
    EXPECT_GT((*status)->counters.handed, 0u) << "replies to those whose frame was not at hand";
    EXPECT_EQ((*server->Shards())[0].counters.port.received, 0u);
    EXPECT_LT((*server->Leases())[0].idle, std::chrono::seconds(5));
    EXPECT_TRUE(server->Revoke("train", 0, kOwner).ok());
    EXPECT_EQ(server->Leases()->size(), 0u);
  });
  if (!why.empty()) GTEST_SKIP() << why;
}

TEST(XdpOffloadTest, TheSocketServesWhatTheKernelCannotAndAJobMayGoFromOneToTheOther) {
  const std::string why = WithServer([](AggregatorServer* server, const XdpOffload* offload) {
    JobPorts ports(2, kNoRows);
    for (const bool checked : {true, false, true}) {
      Lease terms = UncheckedTerms(2, 32);
      terms.checked = checked;
      const auto grant = server->Grant(
          {.job = "train", .terms = terms, .workers = ports.addresses, .owner = kOwner});
      ASSERT_TRUE(grant.ok()) << grant.status();
      EXPECT_EQ(grant->offloaded, !checked);
      JobTensors tensors = IntegerTensors(2, 3000, 6);
      const std::vector<float> expected = SumOf(tensors);
      const JobRun run{.lease = grant->lease, .aggregator = grant->address};
      const auto results = ports.OnAll([&](size_t w) {
        return RunSum(run, ports.ports[w].get(), static_cast<int>(w), &tensors[w]);
      });
      for (size_t w = 0; w < 2; ++w) {
        ASSERT_TRUE(results[w].ok()) << results[w];
        EXPECT_EQ(tensors[w], expected);
      }
    }
    // Two such leases fit into the 64 slots of each plane, and the changes have left none behind.
    for (const char* job : {"second", "third"}) {
      const auto grant = server->Grant({.job = job,
                                        .terms = UncheckedTerms(2, 32),
                                        .workers = ports.addresses,
                                        .owner = kOwner});
      ASSERT_TRUE(grant.ok()) << grant.status();
      EXPECT_TRUE(grant->offloaded) << job;
    }
    // A full kernel leaves the lease to the socket.
    const auto last = server->Grant({.job = "fourth",
                                     .terms = UncheckedTerms(2, 32),
                                     .workers = ports.addresses,
                                     .owner = kOwner});
    ASSERT_TRUE(last.ok()) << last.status();
    EXPECT_FALSE(last->offloaded);
    EXPECT_GT(offload->Counters()->packets.completed, 0u);
  });
  if (!why.empty()) GTEST_SKIP() << why;
}

TEST(XdpOffloadTest, TheWorkerThatHoldsAJobUpIsNamed) {
  const std::string why = WithServer([](AggregatorServer* server, const XdpOffload*) {
    JobPorts ports(2, kNoRows);
    const auto grant = server->Grant({.job = "train",
                                      .terms = UncheckedTerms(2, 4),
                                      .workers = ports.addresses,
                                      .owner = kOwner});
    ASSERT_TRUE(grant.ok()) << grant.status();
    std::vector<float> tensor(1000, 1.0f);
    const JobRun run{.lease = grant->lease,
                     .aggregator = grant->address,
                     .deadline = std::chrono::milliseconds(300)};
    EXPECT_EQ(RunSum(run, ports.ports[0].get(), 0, &tensor).code(), StatusCode::kDeadlineExceeded);
    const auto leases = server->Leases();
    ASSERT_TRUE(leases.ok() && leases->size() == 1 && (*leases)[0].oldest.has_value());
    EXPECT_THAT((*leases)[0].oldest->missing, ElementsAre(1));
    EXPECT_GT((*leases)[0].oldest->age, std::chrono::milliseconds(100));
  });
  if (!why.empty()) GTEST_SKIP() << why;
}

TEST(XdpOffloadTest, NamesWhatIsWrong) {
  EXPECT_THAT(Message(XdpOffload::Start({}).status()), HasSubstr("1 to 64 interfaces"));
  EXPECT_THAT(Message(XdpOffload::Start({.interfaces = {"lo"}}).status()), HasSubstr("no socket"));
}

}  // namespace
}  // namespace weir::aggregation
