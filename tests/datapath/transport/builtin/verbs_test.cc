// SPDX-License-Identifier: Apache-2.0
// Features of the verbs transport only: devices, GIDs, locked memory, busy polling, silent hosts.
// Needs RDMA devices whose addresses WEIR_TEST_DEVICE_HOSTS lists (tests/integration/verbs_vm).

#if WEIR_HAVE_Verbs
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/support/world.h"

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

const TransportFactory& Verbs() { return **Transports().Find("verbs"); }

TransportOptions VerbsOptions(int rank, int world) {
  TransportOptions options;
  options.rank = rank;
  options.world = world;
  options.listen = ListenAddress(Verbs(), rank);
  options.unauthenticated = true;
  return options;
}

TransportOptions ListeningAt(const std::string& listen) {
  TransportOptions options = VerbsOptions(0, 2);
  options.listen = listen;
  return options;
}

TEST(NoVerbsTest, WithoutADeviceCreateSaysSo) {
  const std::string missing = MissingDevice(Verbs());
  if (missing.empty()) GTEST_SKIP() << "this host has an RDMA device";
  EXPECT_THAT(missing, HasSubstr("RDMA"));
  EXPECT_EQ(Verbs().Create(VerbsOptions(0, 2)).status().code(), StatusCode::kUnavailable);
}

class VerbsTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = MissingDevice(Verbs()); !why.empty()) GTEST_SKIP() << why;
  }
};

// "rxa" of "...; RDMA devices: rxa (10.0.0.1), ...".
std::string FirstDevice() {
  const std::string text = Message(Verbs().Create(ListeningAt("127.0.0.1:0")).status());
  constexpr std::string_view kBefore = "RDMA devices: ";
  const size_t at = text.find(kBefore), begin = at + kBefore.size();
  return at == std::string::npos ? text : text.substr(begin, text.find(" (", begin) - begin);
}

TEST_F(VerbsTransportTest, AddressesWithoutADeviceAreNamedAndDevicesListed) {
  const struct {
    std::string listen;
    StatusCode code;
    std::string text;
  } cases[] = {
      {"127.0.0.1:0", StatusCode::kUnavailable, "no RDMA device has the address 127.0.0.1"},
      {"192.0.2.1:0", StatusCode::kUnavailable, "no RDMA device has the address 192.0.2.1"},
      {"0.0.0.0:0", StatusCode::kInvalidArgument, "expected that of one RDMA device"},
      {"nonsense", StatusCode::kInvalidArgument, "expected host:port"},
      {"mlx9_9:0", StatusCode::kInvalidArgument, "cannot resolve host 'mlx9_9'"},
  };
  for (const auto& [listen, code, text] : cases) {
    const Status status = Verbs().Create(ListeningAt(listen)).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(listen.substr(0, listen.find(':'))),
                                       HasSubstr(text), HasSubstr(FirstDevice() + " (")));
  }
}

TEST_F(VerbsTransportTest, DeviceAndGidIndexStandForTheirAddress) {
  const std::string device = FirstDevice();
  const auto by_name = Verbs().Create(ListeningAt(device + ":0"));
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  const std::string host = (*by_name)->address().substr(0, (*by_name)->address().rfind(':'));
  int found = 0;
  for (int index = 0; index < 8; ++index) {
    const auto by_index = Verbs().Create(ListeningAt(StrCat(device, "/", index, ":0")));
    if (by_index.ok()) found += (*by_index)->address().rfind(host + ":", 0) == 0;
  }
  EXPECT_GE(found, 1);
  const Status absent = Verbs().Create(ListeningAt(device + "/250:0")).status();
  EXPECT_EQ(absent.code(), StatusCode::kInvalidArgument) << absent;
  EXPECT_THAT(Message(absent), HasSubstr("has no GID index 250"));
  EXPECT_EQ(Verbs().Create(ListeningAt(device + "/x:0")).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Verbs().Create(ListeningAt(device + ":x")).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(VerbsTransportTest, TakenPortIsUnavailable) {
  const auto first = Verbs().Create(VerbsOptions(0, 2));
  ASSERT_TRUE(first.ok()) << first.status();
  const Status status = Verbs().Create(ListeningAt((*first)->address())).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr((*first)->address()), HasSubstr("address already in use")));
}

// The limit applies only to threads without CAP_IPC_LOCK; each thread has its own capabilities.
TEST_F(VerbsTransportTest, TooLittleLockedMemoryNamesLimitAndNeed) {
  rlimit before = {};
  getrlimit(RLIMIT_MEMLOCK, &before);
  Status status;
  std::thread([&] {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    ASSERT_EQ(syscall(SYS_capget, &header, data), 0);
    const rlimit little = {256 << 10, before.rlim_max};
    setrlimit(RLIMIT_MEMLOCK, &little);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    ASSERT_EQ(syscall(SYS_capset, &header, data), 0);
    status = Verbs().Create(VerbsOptions(0, 2)).status();
  }).join();
  setrlimit(RLIMIT_MEMLOCK, &before);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("ulimit -l"), HasSubstr("LimitMEMLOCK"),
                                     HasSubstr("needs 1277952 bytes"), HasSubstr("262144 bytes")));
}

// Ping-pong of small frames and one of many slots, between all pairs of devices.
void Exchange(const TransportOptions& options, int rounds) {
  auto world = ConnectWorld(Verbs(), 2, options);
  ASSERT_TRUE(world.ok()) << world.status();
  const Bytes small(64, std::byte{1}), large(3 << 20, std::byte{2});
  RunRanks(2, [&](int rank) {
    Transport& self = *(*world)[rank];
    Bytes in(large.size());
    for (int i = 0; i < rounds; ++i) {
      for (const int turn : {0, 1}) {
        const auto ticket =
            turn == rank ? self.PostSend(1 - rank, {}, small) : self.PostReceive(1 - rank, in);
        ASSERT_TRUE(ticket.ok() && self.Wait(*ticket, Within(kPatience)).ok());
      }
    }
    const auto send = self.PostSend(1 - rank, {}, large);
    const auto receive = self.PostReceive(1 - rank, in);
    ASSERT_TRUE(self.Wait(*receive, Within(kPatience)).ok());
    ASSERT_TRUE(self.Wait(*send, Within(kPatience)).ok());
    EXPECT_EQ(in, large);
    const PathSample sample = self.Samples().at(0);
    EXPECT_GE(sample.bytes_received, large.size());
    EXPECT_LE(sample.bytes_acked, self.bytes_sent());
    EXPECT_GE(sample.bytes_acked, large.size() / 2);
  });
}

TEST_F(VerbsTransportTest, BusyPollingAndSleepingExchangeTheSame) {
  TransportOptions options;
  for (const int busy_us : {0, 500}) {
    options.busy_poll = std::chrono::microseconds(busy_us);
    const TimePoint start = RealClock().Now();
    Exchange(options, 100);
    RecordProperty(StrCat("seconds_busy_", busy_us, "_us"),
                   StrCat(ToSeconds(RealClock().Now() - start)));
  }
}

TEST_F(VerbsTransportTest, BuffersOfAnySizeExchangeTheSame) {
  TransportOptions options;
  for (const auto& [send, receive] : {std::pair{1, 1}, {1, 4 << 20}, {2 << 20, 1}}) {
    options.send_buffer_bytes = send;
    options.receive_buffer_bytes = receive;
    Exchange(options, 5);
  }
}

// A host that loses power sends nothing, and a connection on which nothing is in flight does not
// notice it. WEIR_TEST_DEVICE_CUT is the command that cuts the wire between the devices.
TEST(CutVerbsTest, SilentHostIsNamedLongBeforeTheDeadline) {
  const char* const cut = std::getenv("WEIR_TEST_DEVICE_CUT");
  if (cut == nullptr) GTEST_SKIP() << "WEIR_TEST_DEVICE_CUT is not set";
  auto world = ConnectWorld(Verbs(), 2, {});
  ASSERT_TRUE(world.ok()) << world.status();
  ASSERT_EQ(std::system(cut), 0);
  RunRanks(2, [&](int rank) {
    Bytes buffer(8);
    const auto ticket = (*world)[rank]->PostReceive(1 - rank, buffer);
    const Status status = (*world)[rank]->Wait(*ticket, Within(100)).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(StrCat("rank ", 1 - rank, " (")),
                                       HasSubstr("closed the connection (")));
  });
}

}  // namespace
}  // namespace weir::testing
#endif  // WEIR_HAVE_Verbs
