// SPDX-License-Identifier: Apache-2.0
// Strangers that use RDMA's connection manager directly, against ranks that hold the job's
// key. Needs RDMA devices whose addresses WEIR_TEST_DEVICE_HOSTS lists
// (tests/integration/verbs_vm).

#if WEIR_HAVE_Verbs
#include <poll.h>

#include <thread>

#include "datapath/transport/builtin/verbs/device.h"
#include "datapath/transport/builtin/verbs/hello.h"
#include "tests/datapath/transport/conformance.h"

namespace weir::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kStrangersJob = 79;

const TransportFactory& OverVerbs() { return **Transports().Find("verbs"); }

std::unique_ptr<Transport> NewRank(int rank) {
  TransportOptions options;
  options.job = kStrangersJob;
  options.rank = rank;
  options.world = 2;
  options.listen = ListenAddress(OverVerbs(), rank);
  options.job_key = TestKey();
  auto transport = OverVerbs().Create(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return std::move(*transport);
}

verbs::Hello HelloOf(uint32_t rank, Protection protection) {
  verbs::Hello hello = {.job = kStrangersJob,
                        .rank = rank,
                        .world = 2,
                        .expected_peer = rank == 0 ? UINT32_MAX : 0,
                        .window = {4096, 4},
                        .protection = protection};
  hello.nonce.fill(std::byte{7});
  return hello;
}

// An id of the connection manager and its events, with a deadline.
class Stranger {
 public:
  struct Heard {
    rdma_cm_event_type type;
    rdma_cm_id* id = nullptr;
    Bytes said = {};

    std::string text() const { return reinterpret_cast<const char*>(said.data()); }
  };

  Stranger() : channel_(verbs::Rdma().rdma_create_event_channel()) { NewId(); }

  Heard Next() {
    pollfd waits = {channel_->fd, POLLIN, 0};
    rdma_cm_event* event = nullptr;
    if (poll(&waits, 1, 10'000) != 1 ||
        verbs::Rdma().rdma_get_cm_event(channel_.get(), &event) != 0) {
      ADD_FAILURE() << "no event within 10 s";
      return {RDMA_CM_EVENT_ADDR_ERROR};
    }
    Heard heard = {event->event, event->id, {}};
    const auto* said = static_cast<const std::byte*>(event->param.conn.private_data);
    if (said != nullptr) heard.said.assign(said, said + event->param.conn.private_data_len);
    heard.said.push_back({});
    verbs::Rdma().rdma_ack_cm_event(event);
    return heard;
  }

  // Returns the answer to a request to the rank at `address`.
  Heard Dial(const TransportAddress& address, const verbs::Request& request) {
    NewId();
    mesh::SocketAddress from = Own(1), to = *mesh::ResolveAddress(address);
    EXPECT_EQ(verbs::Rdma().rdma_resolve_addr(id_.get(), reinterpret_cast<sockaddr*>(&from.storage),
                                              reinterpret_cast<sockaddr*>(&to.storage), 2000),
              0);
    EXPECT_EQ(Next().type, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(verbs::Rdma().rdma_resolve_route(id_.get(), 2000), 0);
    EXPECT_EQ(Next().type, RDMA_CM_EVENT_ROUTE_RESOLVED);
    rdma_conn_param parameters = ParametersOf(request);
    EXPECT_EQ(verbs::Rdma().rdma_connect(id_.get(), &parameters), 0);
    return Next();
  }

  // Listens in the place of rank 0.
  TransportAddress Listen() {
    mesh::SocketAddress at = Own(0);
    EXPECT_EQ(verbs::Rdma().rdma_bind_addr(id_.get(), reinterpret_cast<sockaddr*>(&at.storage)), 0);
    EXPECT_EQ(verbs::Rdma().rdma_listen(id_.get(), 8), 0);
    return verbs::BoundAddress(id_.get());
  }
  void Accept(rdma_cm_id* id) {
    const verbs::Request reply = verbs::EncodeHello(HelloOf(0, Protection::kAuthenticated));
    rdma_conn_param parameters = ParametersOf(reply);
    accepted_.emplace_back(id);
    EXPECT_EQ(verbs::Rdma().rdma_accept(id, &parameters), 0);
  }
  static void Reject(rdma_cm_id* id, const verbs::Challenge& challenge) {
    EXPECT_EQ(verbs::Rdma().rdma_reject(id, challenge.data(), challenge.size()), 0);
    verbs::Rdma().rdma_destroy_id(id);
  }

 private:
  void NewId() {
    rdma_cm_id* raw = nullptr;
    EXPECT_EQ(verbs::Rdma().rdma_create_id(channel_.get(), &raw, nullptr, RDMA_PS_TCP), 0);
    id_.reset(raw);
  }
  static mesh::SocketAddress Own(int rank) {
    return *mesh::ResolveAddress(ListenAddress(OverVerbs(), rank));
  }
  static rdma_conn_param ParametersOf(const verbs::Request& request) {
    rdma_conn_param parameters = {};
    parameters.private_data = request.data();
    parameters.private_data_len = request.size();
    parameters.qp_num = 77;
    return parameters;
  }

  verbs::ChannelPtr channel_;
  verbs::CmIdPtr id_;
  std::vector<verbs::CmIdPtr> accepted_;
};

class VerbsKeyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = MissingDevice(OverVerbs()); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(VerbsKeyTest, NobodyIsConnectedWithoutAProofAndTheTrueRankMayStillCome) {
  Logged logged;
  auto rank0 = NewRank(0), rank1 = NewRank(1);
  const std::vector<TransportAddress> addresses = {rank0->address(), rank1->address()};
  Status status0;
  std::thread accepting([&] { status0 = rank0->Connect(addresses, Within(kPatience)); });
  Stranger stranger;
  const verbs::Hello hello = HelloOf(1, Protection::kAuthenticated);
  auto heard = stranger.Dial(addresses[0], verbs::EncodeHello(HelloOf(1, Protection::kChecked)));
  EXPECT_EQ(heard.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(heard.text(), "job key: rank 0 has one, rank 1 none");
  heard = stranger.Dial(addresses[0], verbs::EncodeProof(hello.nonce, {}));  // before any challenge
  EXPECT_EQ(heard.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(heard.text(), "");
  heard = stranger.Dial(addresses[0], verbs::EncodeHello(hello));
  EXPECT_EQ(heard.type, RDMA_CM_EVENT_REJECTED);
  const auto challenge = verbs::DecodeChallenge(heard.said);
  ASSERT_TRUE(challenge.ok()) << challenge.status();
  for (const Secret& proof : {Secret(), challenge->proof}) {
    heard = stranger.Dial(addresses[0], verbs::EncodeProof(hello.nonce, proof));
    EXPECT_EQ(heard.type, RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(heard.text(), "does not hold the job's key (it claims to be rank 1)");
  }
  const Status status1 = rank1->Connect(addresses, Within(kPatience));
  accepting.join();
  EXPECT_TRUE(status0.ok()) << status0;
  EXPECT_TRUE(status1.ok()) << status1;
  const std::string host = addresses[1].substr(0, addresses[1].rfind(':'));
  EXPECT_THAT(logged.text(), HasSubstr("rank 0 refused " + host + ":"));
}

TEST_F(VerbsKeyTest, AFalseRank0IsFoundOut) {
  for (const bool challenges : {false, true}) {
    SCOPED_TRACE(challenges ? "with a challenge" : "without a challenge");
    Stranger stranger;
    const TransportAddress address = stranger.Listen();
    auto rank1 = NewRank(1);
    Status status;
    std::thread connecting([&] {
      status = rank1->Connect({address, rank1->address()}, Within(kPatience));
    });
    auto heard = stranger.Next();
    EXPECT_EQ(heard.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    EXPECT_TRUE(verbs::DecodeHello(heard.said).ok());
    if (challenges) {
      const verbs::Hello hello = HelloOf(0, Protection::kAuthenticated);
      Stranger::Reject(heard.id, verbs::EncodeChallenge(hello, Secret()));
      heard = stranger.Next();
      EXPECT_EQ(heard.type, RDMA_CM_EVENT_CONNECT_REQUEST);
      EXPECT_TRUE(verbs::IsProof(heard.said));
    }
    stranger.Accept(heard.id);
    connecting.join();
    EXPECT_STATUS(
        status, kFailedPrecondition,
        HasSubstr(StrCat("rank 0 (", address, ") does not hold the job's key of rank 1")));
  }
}

}  // namespace
}  // namespace weir::testing
#endif  // WEIR_HAVE_Verbs
