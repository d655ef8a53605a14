// SPDX-License-Identifier: Apache-2.0
// The C interface of communicators: arguments, operations, errors per thread.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "datapath/api/weir.h"
#include "tests/support/world.h"

namespace {

weir_communicator_options CommunicatorOptions(int rank, int world) {
  weir_communicator_options options = {};
  options.struct_size = sizeof options;
  options.job = "c-communicator";
  options.rank = rank;
  options.world = world;
  options.operation_timeout_s = 10;
  options.connect_timeout_s = 10;
  return options;
}

class CommunicatorApiTest : public ::testing::Test {
 protected:
  void Open(int world) {
    std::vector<const char*> addresses;
    for (int rank = 0; rank < world; ++rank) {
      const weir_communicator_options options = CommunicatorOptions(rank, world);
      weir_communicator* communicator = nullptr;
      char error[256] = "";
      ASSERT_EQ(weir_communicator_create(&options, &communicator, error, sizeof error), WEIR_OK)
          << error;
      all.push_back(communicator);
      addresses.push_back(weir_communicator_address(communicator));
    }
    weir::testing::RunRanks(world, [&](int rank) {
      EXPECT_EQ(weir_communicator_connect(all[rank], addresses.data(), world), WEIR_OK)
          << weir_communicator_last_error(all[rank]);
    });
  }
  // Waits, expects success, and releases.
  void Finish(int rank, weir_request* operation) {
    EXPECT_EQ(weir_request_wait(operation, 0, nullptr), WEIR_OK)
        << weir_communicator_last_error(all[rank]);
    EXPECT_EQ(weir_request_release(operation), WEIR_OK);
  }
  ~CommunicatorApiTest() override {
    weir::testing::RunRanks(static_cast<int>(all.size()),
                            [&](int rank) { weir_communicator_close(all[rank]); });
  }
  std::vector<weir_communicator*> all;
};

TEST_F(CommunicatorApiTest, CreateChecksItsOptions) {
  weir_communicator* communicator = reinterpret_cast<weir_communicator*>(1);
  char error[200] = "";
  const auto create = [&](const weir_communicator_options& options) {
    return weir_communicator_create(&options, &communicator, error, sizeof error);
  };
  weir_communicator_options options = CommunicatorOptions(0, 1);
  options.struct_size = 1;
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(communicator, nullptr);
  EXPECT_NE(std::string(error).find("struct_size"), std::string::npos) << error;
  options = CommunicatorOptions(0, 1);
  options.job = nullptr;
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  for (const auto& [rank, world] : {std::pair(-1, 2), {2, 2}, {0, 0}, {0, 1 << 20}}) {
    EXPECT_EQ(create(CommunicatorOptions(rank, world)), WEIR_INVALID_ARGUMENT);
  }
  options = CommunicatorOptions(0, 1);
  options.transport = "pigeon";
  EXPECT_EQ(create(options), WEIR_NOT_FOUND);
  EXPECT_NE(std::string(error).find("tcp"), std::string::npos) << error;
  options = CommunicatorOptions(0, 1);
  options.operation_timeout_s = NAN;
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_create(nullptr, &communicator, nullptr, 0), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_create(&options, nullptr, error, 1), WEIR_INVALID_ARGUMENT);
}

TEST_F(CommunicatorApiTest, InterruptEndsConnect) {
  const weir_communicator_options options = CommunicatorOptions(0, 2);
  weir_communicator* own = nullptr;
  ASSERT_EQ(weir_communicator_create(&options, &own, nullptr, 0), WEIR_OK);
  const char* addresses[] = {weir_communicator_address(own), "127.0.0.1:1,127.0.0.1:2"};
  std::thread other([&] { EXPECT_EQ(weir_communicator_interrupt_connect(own), WEIR_OK); });
  EXPECT_EQ(weir_communicator_connect(own, addresses, 2), WEIR_ABORTED)
      << weir_communicator_last_error(own);
  other.join();
  weir_communicator_close(own);
}

TEST_F(CommunicatorApiTest, EveryOperationDoesWhatItSays) {
  constexpr int kWorld = 3;
  Open(kWorld);
  weir::testing::RunRanks(kWorld, [&](int rank) {
    weir_communicator* own = all[rank];
    weir_request* op = nullptr;
    std::vector<float> data(100, static_cast<float>(rank + 1));
    ASSERT_EQ(weir_communicator_all_reduce(own, data.data(), 100, WEIR_FLOAT32, WEIR_AVERAGE, &op),
              WEIR_OK);
    Finish(rank, op);
    EXPECT_EQ(data, std::vector<float>(100, 2.0f));
    std::vector<int64_t> one = {rank};
    ASSERT_EQ(weir_communicator_reduce(own, one.data(), 1, WEIR_INT64, WEIR_MAX, 1, &op), WEIR_OK);
    Finish(rank, op);
    EXPECT_EQ(one[0], rank == 1 ? 2 : rank);
    std::vector<int32_t> runs = {rank, 10 * rank, 100 * rank}, part(1), gathered(kWorld);
    ASSERT_EQ(weir_communicator_reduce_scatter(own, runs.data(), part.data(), 1, WEIR_INT32,
                                               WEIR_SUM, &op),
              WEIR_OK);
    Finish(rank, op);
    ASSERT_EQ(weir_communicator_all_gather(own, part.data(), gathered.data(), sizeof(int32_t), &op),
              WEIR_OK);
    Finish(rank, op);
    EXPECT_EQ(gathered, (std::vector<int32_t>{3, 30, 300}));
    ASSERT_EQ(weir_communicator_broadcast(own, one.data(), sizeof(int64_t), 1, &op), WEIR_OK);
    Finish(rank, op);
    EXPECT_EQ(one[0], 2);
    // A gather to rank 0.
    std::vector<uint8_t> mine = {static_cast<uint8_t>(rank)}, taken(kWorld, 9);
    const void* outgoing[kWorld] = {mine.data(), nullptr, nullptr};
    const uint64_t outgoing_bytes[kWorld] = {1, 0, 0};
    void* incoming[kWorld] = {taken.data(), taken.data() + 1, taken.data() + 2};
    uint64_t incoming_bytes[kWorld] = {1, 1, 1};
    if (rank != 0) std::fill(incoming_bytes, incoming_bytes + kWorld, 0);
    ASSERT_EQ(
        weir_communicator_all_to_all(own, outgoing, outgoing_bytes, incoming, incoming_bytes, &op),
        WEIR_OK);
    Finish(rank, op);
    EXPECT_EQ(taken, rank == 0 ? (std::vector<uint8_t>{0, 1, 2}) : (std::vector<uint8_t>(3, 9)));
    ASSERT_EQ(weir_communicator_barrier(own, &op), WEIR_OK);
    Finish(rank, op);
  });
}

TEST_F(CommunicatorApiTest, MessagesAreWaitedForTestedAndReleased) {
  Open(2);
  std::vector<double> out = {1, 2}, in(2);
  weir_request *receive = nullptr, *send = nullptr;
  ASSERT_EQ(weir_communicator_receive(all[1], in.data(), 16, WEIR_ANY_RANK, 5, &receive), WEIR_OK);
  int32_t done = 7, peer = 7;
  EXPECT_EQ(weir_request_test(receive, &done), WEIR_OK);
  EXPECT_EQ(done, 0);
  EXPECT_EQ(weir_request_release(receive), WEIR_FAILED_PRECONDITION);
  EXPECT_EQ(weir_request_wait(receive, 0.01, &peer), WEIR_DEADLINE_EXCEEDED);
  EXPECT_STRNE(weir_communicator_last_error(all[1]), "");
  ASSERT_EQ(weir_communicator_send(all[0], out.data(), 16, 1, 5, &send), WEIR_OK);
  Finish(0, send);
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(weir_request_wait(receive, 5, &peer), WEIR_OK);
    EXPECT_EQ(peer, 0);
  }
  EXPECT_EQ(in, out);
  EXPECT_EQ(weir_request_test(receive, &done), WEIR_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(weir_request_release(receive), WEIR_OK);
  EXPECT_EQ(weir_request_release(receive), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_request_wait(receive, 0, nullptr), WEIR_INVALID_ARGUMENT);
}

TEST_F(CommunicatorApiTest, WrongArgumentsAreNamed) {
  Open(1);
  weir_communicator* own = all[0];
  weir_request* op = reinterpret_cast<weir_request*>(1);
  float x = 0;
  EXPECT_EQ(weir_communicator_all_reduce(own, nullptr, 1, WEIR_FLOAT32, WEIR_SUM, &op),
            WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(op, nullptr);
  EXPECT_NE(std::string(weir_communicator_last_error(own)).find("data"), std::string::npos);
  EXPECT_EQ(weir_communicator_all_reduce(own, &x, 1, 8, WEIR_SUM, &op), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_all_reduce(own, &x, 1, -1, WEIR_SUM, &op), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_all_reduce(own, &x, 1, WEIR_FLOAT32, 5, &op), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_all_reduce(own, &x, UINT64_MAX, WEIR_FLOAT64, WEIR_SUM, &op),
            WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_all_reduce(own, &x, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
            WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_all_reduce(nullptr, &x, 1, WEIR_FLOAT32, WEIR_SUM, &op),
            WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_broadcast(own, &x, 4, 1, &op), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_all_to_all(own, nullptr, nullptr, nullptr, nullptr, &op),
            WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_send(own, &x, 4, 0, 0, &op), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_request_wait(nullptr, 0, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_request_test(nullptr, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_communicator_connect(own, nullptr, 1), WEIR_INVALID_ARGUMENT);
  EXPECT_STREQ(weir_communicator_address(nullptr), "");
  weir_communicator_close(nullptr);
}

TEST_F(CommunicatorApiTest, WrongAddressesCanBeCorrected) {
  weir_communicator_options options = {};
  options.struct_size = sizeof options;
  options.job = "corrected";
  options.world = 1;
  weir_communicator* own = nullptr;
  ASSERT_EQ(weir_communicator_create(&options, &own, nullptr, 0), WEIR_OK);
  all.push_back(own);
  const char* addresses[] = {weir_communicator_address(own), "127.0.0.1:1"};
  EXPECT_EQ(weir_communicator_connect(own, addresses, 2), WEIR_INVALID_ARGUMENT);
  const char* half[] = {"127.0.0.1:1"};
  EXPECT_EQ(weir_communicator_connect(own, half, 1), WEIR_INVALID_ARGUMENT);
  ASSERT_EQ(weir_communicator_connect(own, addresses, 1), WEIR_OK)
      << weir_communicator_last_error(own);
  EXPECT_EQ(weir_communicator_connect(own, addresses, 1), WEIR_FAILED_PRECONDITION);
  weir_request* op = nullptr;
  ASSERT_EQ(weir_communicator_barrier(own, &op), WEIR_OK);
  Finish(0, op);
  ASSERT_EQ(weir_communicator_shutdown(own), WEIR_OK);
  EXPECT_EQ(weir_communicator_barrier(own, &op), WEIR_FAILED_PRECONDITION) << "closed, not full";
}

TEST_F(CommunicatorApiTest, ShutdownEndsAWaitInAnotherThread) {
  Open(2);
  weir_request* op = nullptr;
  ASSERT_EQ(weir_communicator_barrier(all[0], &op), WEIR_OK);
  weir_status waited = WEIR_OK;
  std::thread waiter([&] { waited = weir_request_wait(op, 0, nullptr); });
  EXPECT_EQ(weir_communicator_shutdown(all[0]), WEIR_OK);
  waiter.join();
  EXPECT_EQ(waited, WEIR_ABORTED);
  EXPECT_EQ(weir_communicator_barrier(all[0], &op), WEIR_FAILED_PRECONDITION);
  EXPECT_EQ(weir_communicator_shutdown(all[0]), WEIR_OK);
}

}  // namespace
