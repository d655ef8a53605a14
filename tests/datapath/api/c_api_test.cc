// SPDX-License-Identifier: Apache-2.0
// The C interface: argument checks, requests, errors per thread, and exceptions.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "datapath/api/weir.h"
#include "datapath/base/json.h"
#include "tests/support/world.h"

namespace {

weir_options Options(int rank, int world) {
  weir_options options = {};
  options.struct_size = sizeof options;
  options.job = "c";
  options.rank = rank;
  options.world = world;
  options.operation_timeout_s = 10;
  options.connect_timeout_s = 10;
  return options;
}

class CApiTest : public ::testing::Test {
 protected:
  void Open(
      int world, const char* transport = nullptr,
      const std::function<void(weir_options*)>& tune = [](weir_options*) {}) {
    for (int rank = 0; rank < world; ++rank) {
      weir_options options = Options(rank, world);
      options.transport = transport;
      tune(&options);
      weir_session* session = nullptr;
      char error[256] = "";
      ASSERT_EQ(weir_session_create(&options, &session, error, sizeof error), WEIR_OK) << error;
      sessions.push_back(session);
    }
    std::vector<const char*> addresses;
    for (weir_session* session : sessions) addresses.push_back(weir_session_address(session));
    weir::testing::RunRanks(world, [&](int rank) {
      EXPECT_EQ(weir_session_connect(sessions[rank], addresses.data(), world), WEIR_OK)
          << weir_last_error(sessions[rank]);
    });
  }
  void Close() {
    weir::testing::RunRanks(static_cast<int>(sessions.size()),
                            [&](int rank) { weir_session_close(sessions[rank]); });
    sessions.clear();
  }
  ~CApiTest() override { Close(); }
  std::vector<weir_session*> sessions;
};

TEST_F(CApiTest, InterruptEndsConnect) {
  const weir_options options = Options(0, 2);
  weir_session* session = nullptr;
  ASSERT_EQ(weir_session_create(&options, &session, nullptr, 0), WEIR_OK);
  const char* addresses[] = {weir_session_address(session), "127.0.0.1:1"};
  std::thread other([&] { EXPECT_EQ(weir_session_interrupt_connect(session), WEIR_OK); });
  EXPECT_EQ(weir_session_connect(session, addresses, 2), WEIR_ABORTED) << weir_last_error(session);
  other.join();
  weir_session_close(session);
}

TEST_F(CApiTest, CreateChecksItsOptions) {
  weir_session* session = reinterpret_cast<weir_session*>(1);
  char error[200] = "";
  const auto create = [&](const weir_options& options) {
    return weir_session_create(&options, &session, error, sizeof error);
  };
  weir_options options = Options(0, 1);
  options.struct_size = 0;
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(session, nullptr);
  EXPECT_NE(std::string(error).find("struct_size"), std::string::npos) << error;
  options = Options(0, 1);
  options.job = nullptr;
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error).find("job"), std::string::npos) << error;
  for (const auto& [rank, world] : {std::pair(-1, 2), {2, 2}, {0, 0}, {0, 1 << 20}}) {
    EXPECT_EQ(create(Options(rank, world)), WEIR_INVALID_ARGUMENT);
  }
  for (const char* labels : {"a", "=b", "a=", "a=b,a=c", "a=b,,c=d"}) {
    options = Options(0, 1);
    options.labels = labels;
    EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT) << labels;
    EXPECT_NE(std::string(error).find("labels"), std::string::npos) << error;
  }
  options = Options(0, 1);
  options.labels = "namespace=team-a,stage=dev";
  EXPECT_EQ(create(options), WEIR_OK) << error;
  weir_session_close(session);
  options = Options(0, 1);
  options.transport = "pigeon";
  EXPECT_EQ(create(options), WEIR_NOT_FOUND);
  EXPECT_NE(std::string(error).find("tcp"), std::string::npos) << error;
  options = Options(0, 1);
  options.plan_file = "/nonexistent/plan.json";
  EXPECT_EQ(create(options), WEIR_NOT_FOUND);
  options = Options(0, 1);
  options.agent = "carrier";
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  options = Options(0, 1);
  options.transport = "tcp:connections=17";
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error).find("connections: expected 1..16, found '17'"), std::string::npos)
      << error;
  options = Options(0, 1);
  options.operation_timeout_s = NAN;
  EXPECT_EQ(create(options), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_session_create(nullptr, &session, nullptr, 0), WEIR_INVALID_ARGUMENT);
  options = Options(0, 1);
  EXPECT_EQ(weir_session_create(&options, nullptr, error, 1), WEIR_INVALID_ARGUMENT);
}

TEST_F(CApiTest, CallersSumOverAGroupOfTheirOwn) {
  std::vector<weir_session*> both(2);
  std::vector<const char*> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    weir_options options = Options(rank, 2);
    options.caller_sums = 1;
    ASSERT_EQ(weir_session_create(&options, &both[rank], nullptr, 0), WEIR_OK);
    addresses.push_back(weir_session_address(both[rank]));
  }
  std::array<std::array<float, 2>, 2> data = {{{1, 2}, {3, 4}}};
  weir::testing::RunRanks(2, [&](int rank) {
    weir_session* const session = both[rank];
    ASSERT_EQ(weir_session_connect(session, addresses.data(), 2), WEIR_OK);
    const weir_parameter parameter = {"p", 2, 0};
    uint64_t key = 0;
    int32_t needs = -1, done = -1, skipped = -1;
    ASSERT_EQ(weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
    EXPECT_EQ(weir_caller_sum_needs(session, key, &needs), WEIR_FAILED_PRECONDITION);
    ASSERT_EQ(weir_step_begin(session), WEIR_OK);
    ASSERT_EQ(weir_caller_sum_needs(session, key, &needs), WEIR_OK);
    EXPECT_EQ(needs, WEIR_CALLER_SUMS | WEIR_NEEDS_SUM);  // step 0 is compared, no agent samples
    weir_request* request = nullptr;
    ASSERT_EQ(weir_caller_sum_begin(session, key, data[rank].data(), &request), WEIR_OK);
    EXPECT_EQ(weir_request_test(request, &done), WEIR_OK);
    EXPECT_EQ(done, 0);
    const float sum[2] = {4, INFINITY};
    weir_caller_sum ended = {};
    EXPECT_EQ(weir_caller_sum_end(session, key, &ended), WEIR_INVALID_ARGUMENT);
    ended.struct_size = sizeof ended;
    ended.network_s = NAN;
    EXPECT_EQ(weir_caller_sum_end(session, key, &ended), WEIR_INVALID_ARGUMENT);
    ended.network_s = 0.001;
    ended.sum = sum;
    EXPECT_EQ(weir_caller_sum_end(session, key + 1, &ended), WEIR_FAILED_PRECONDITION);
    EXPECT_EQ(weir_caller_sum_end(session, key, &ended), WEIR_OK);
    EXPECT_EQ(weir_request_wait(request, 5, nullptr), WEIR_OK);
    EXPECT_EQ(weir_request_release(request), WEIR_OK);
    ASSERT_EQ(weir_step_end(session, &skipped), WEIR_OK) << weir_last_error(session);
    EXPECT_EQ(skipped, 1);  // `finite` is 0
  });
  for (weir_session* const session : both) weir_session_close(session);
}

// Returns the duration of a step in which both ranks sum `elements` ones.
double StepSeconds(const std::vector<weir_session*>& sessions, size_t elements) {
  uint64_t key = 0;
  const weir_parameter parameter = {"p", elements, 0};
  for (weir_session* s : sessions) {
    EXPECT_EQ(weir_define_bucket(s, &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
  }
  const auto begin = std::chrono::steady_clock::now();
  weir::testing::RunRanks(static_cast<int>(sessions.size()), [&](int rank) {
    std::vector<float> data(elements, 1.0f);
    ASSERT_EQ(weir_step_begin(sessions[rank]), WEIR_OK);
    ASSERT_EQ(weir_all_reduce(sessions[rank], key, data.data(), 1, nullptr, nullptr, nullptr),
              WEIR_OK);
    ASSERT_EQ(weir_step_end(sessions[rank], nullptr), WEIR_OK) << weir_last_error(sessions[rank]);
    EXPECT_EQ(data, std::vector<float>(elements, static_cast<float>(sessions.size())));
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

size_t OpenDescriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST_F(CApiTest, TcpOptionsReachTheConnections) {
  const size_t before = OpenDescriptors();
  Open(2, "tcp");
  const size_t with_one = OpenDescriptors() - before;
  StepSeconds(sessions, 1000);
  Close();
  Open(2, "tcp:connections=3,zero_copy=4Ki");
  EXPECT_EQ(OpenDescriptors() - before, with_one + 4);  // two more connections, both ends
  StepSeconds(sessions, 100'000);
  Close();
  // 1 MB each way at 2 MB/s; loopback alone takes a few milliseconds.
  Open(2, "tcp:pacing=2M");
  EXPECT_GT(StepSeconds(sessions, 250'000), 0.2);
}

TEST_F(CApiTest, WhatIsNoKeyIsRefused) {
  const unsigned char key[32] = {1};
  const auto create = [](const void* bytes, size_t size, int encrypt, int unauthenticated) {
    weir_options options = Options(0, 2);
    options.job_key = bytes;
    options.job_key_size = size;
    options.encrypt = encrypt;
    options.unauthenticated = unauthenticated;
    weir_session* session = nullptr;
    char error[256] = "";
    const weir_status status = weir_session_create(&options, &session, error, sizeof error);
    EXPECT_EQ(status == WEIR_OK, session != nullptr);
    weir_session_close(session);
    return std::string(error);
  };
  EXPECT_EQ(create(key, 32, 1, 0), "");
  EXPECT_EQ(create(nullptr, 0, 0, 1), "");
  EXPECT_EQ(create(key, 16, 0, 0), "job key: expected 32 bytes, found 16");
  EXPECT_EQ(create(nullptr, 32, 0, 0), "job_key: is null, its size 32");
  EXPECT_EQ(create(nullptr, 0, 1, 0), "encrypt: needs a job key");
  EXPECT_EQ(create(key, 32, 0, 1), "unauthenticated: expected no job key beside it");
}

TEST_F(CApiTest, RanksWithAKeyReduce) {
  const unsigned char key[32] = {1};
  for (const int encrypt : {0, 1}) {
    Open(2, "tcp", [&](weir_options* options) {
      options->job_key = key;
      options->job_key_size = sizeof key;
      options->encrypt = encrypt;
    });
    StepSeconds(sessions, 100'000);
    weir_stats stats = {};
    stats.struct_size = sizeof stats;
    ASSERT_EQ(weir_get_stats(sessions[0], &stats), WEIR_OK);
    EXPECT_EQ(stats.unauthenticated_peers, 0);
    Close();
  }
}

TEST_F(CApiTest, RanksOfOneNodeShareMemoryUnlessToldOtherwise) {
  for (const char* transport : {static_cast<const char*>(nullptr), "auto", "shm", "tcp"}) {
    Open(3, transport);
    uint64_t key = 0;
    const weir_parameter parameter = {"p", 1000, 0};
    for (weir_session* s : sessions) {
      ASSERT_EQ(weir_define_bucket(s, &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
    }
    weir::testing::RunRanks(3, [&](int rank) {
      std::vector<float> data(1000, 1.0f);
      ASSERT_EQ(weir_step_begin(sessions[rank]), WEIR_OK);
      ASSERT_EQ(weir_all_reduce(sessions[rank], key, data.data(), 1, nullptr, nullptr, nullptr),
                WEIR_OK);
      ASSERT_EQ(weir_step_end(sessions[rank], nullptr), WEIR_OK);
      EXPECT_EQ(data, std::vector<float>(1000, 3.0f));
    });
    for (weir_session* s : sessions) {
      weir_stats stats = {};
      stats.struct_size = sizeof stats;
      ASSERT_EQ(weir_get_stats(s, &stats), WEIR_OK);
      const bool tcp = transport != nullptr && std::string(transport) == "tcp";
      EXPECT_EQ(stats.peers_shared_memory, tcp ? 0 : 2) << (transport ? transport : "default");
    }
    Close();
  }
}

TEST_F(CApiTest, NullArgumentsAreRefusedEverywhere) {
  Open(1);
  weir_session* s = sessions[0];
  uint64_t key = 0;
  size_t size = 0;
  EXPECT_EQ(weir_step_begin(nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_session_connect(s, nullptr, 1), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_define_bucket(s, nullptr, 1, WEIR_FLOAT32, &key), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_define_bucket(s, nullptr, 0, WEIR_FLOAT32, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_define_bucket(s, nullptr, 0, 9, &key), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_request_wait(nullptr, 1, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_export_state(s, nullptr, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_import_state(s, nullptr, 3), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_import_state(s, "abc", 3), WEIR_DATA_LOSS);
  EXPECT_EQ(weir_get_stats(s, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_get_plan(s, nullptr, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_get_plan(s, nullptr, &size), WEIR_RESOURCE_EXHAUSTED);
  EXPECT_GT(size, 10u);
  weir_session_close(nullptr);
  EXPECT_EQ(weir_report_loss(nullptr, 1), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_report_non_finite(nullptr, "p"), WEIR_INVALID_ARGUMENT);
  EXPECT_STREQ(weir_session_address(nullptr), "");
  EXPECT_STREQ(weir_strerror(99), "unknown status");
  EXPECT_NE(weir_last_error(nullptr), nullptr);
}

TEST_F(CApiTest, DeviceDataIsChecked) {
  Open(1);
  weir_session* const s = sessions[0];
  const weir_parameter parameter = {"w", 10, 0};
  uint64_t key = 0;
  ASSERT_EQ(weir_define_bucket(s, &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
  ASSERT_EQ(weir_step_begin(s), WEIR_OK);
  float elements[10] = {};
  const int32_t count = weir_device_count();
  EXPECT_GE(count, 0);
  const auto reduce = [&](const weir_device_data* data) {
    return weir_all_reduce_device(s, key, data, 1, nullptr, nullptr, nullptr);
  };
  EXPECT_EQ(reduce(nullptr), WEIR_INVALID_ARGUMENT);
  weir_device_data data = {};
  data.data = elements;
  EXPECT_EQ(reduce(&data), WEIR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(weir_last_error(s)).find("struct_size"), std::string::npos);
  data.struct_size = sizeof data;
  for (const int32_t device : {-1, count}) {
    data.device = device;
    EXPECT_EQ(reduce(&data), WEIR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(weir_last_error(s)).find("device: found"), std::string::npos);
  }
  // The step goes on as if none of this had been asked.
  EXPECT_EQ(weir_all_reduce(s, key, elements, 1, nullptr, nullptr, nullptr), WEIR_OK);
  EXPECT_EQ(weir_step_end(s, nullptr), WEIR_OK);
}

TEST_F(CApiTest, RequestsAndCallbacksComplete) {
  Open(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(1000, 1.5f));
  std::vector<uint64_t> keys(2);
  std::vector<weir_request*> requests(2);
  std::atomic<int> calls{0};
  const weir_parameter parameter = {"w", 1000, 0};
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(weir_define_bucket(sessions[rank], &parameter, 1, WEIR_FLOAT32, &keys[rank]),
              WEIR_OK);
    ASSERT_EQ(weir_step_begin(sessions[rank]), WEIR_OK);
    ASSERT_EQ(weir_all_reduce(
                  sessions[rank], keys[rank], data[rank].data(), 0.5,
                  [](void* context, weir_status status) {
                    if (status == WEIR_OK) ++*static_cast<std::atomic<int>*>(context);
                  },
                  &calls, &requests[rank]),
              WEIR_OK);
  }
  EXPECT_EQ(keys[0], keys[1]);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(weir_request_wait(requests[rank], 0, nullptr), WEIR_OK);
    EXPECT_EQ(weir_request_release(requests[rank]), WEIR_OK);
    EXPECT_EQ(weir_request_wait(requests[rank], 0, nullptr), WEIR_INVALID_ARGUMENT);
    int32_t skipped = 7;
    EXPECT_EQ(weir_step_end(sessions[rank], &skipped), WEIR_OK);
    EXPECT_EQ(skipped, 0);
    EXPECT_EQ(data[rank][999], 1.5f);
  }
  EXPECT_EQ(calls, 2);
  weir_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(weir_get_stats(sessions[0], &stats), WEIR_OK);
  EXPECT_EQ(stats.struct_size, sizeof stats);
  EXPECT_GT(stats.bytes_sent, 2000u);
  EXPECT_EQ(stats.agent_connected, 0);
}

TEST_F(CApiTest, WaitingTooShortKeepsTheRequest) {
  Open(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(10));
  uint64_t key = 0;
  weir_request* request = nullptr;
  const weir_parameter parameter = {"w", 10, 0};
  for (weir_session* s : sessions) {
    ASSERT_EQ(weir_define_bucket(s, &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
    ASSERT_EQ(weir_step_begin(s), WEIR_OK);
  }
  ASSERT_EQ(weir_all_reduce(sessions[0], key, data[0].data(), 1, nullptr, nullptr, &request),
            WEIR_OK);
  EXPECT_EQ(weir_request_wait(request, 0.01, nullptr), WEIR_DEADLINE_EXCEEDED);
  ASSERT_EQ(weir_all_reduce(sessions[1], key, data[1].data(), 1, nullptr, nullptr, nullptr),
            WEIR_OK);
  EXPECT_EQ(weir_request_wait(request, 10, nullptr), WEIR_OK);
  for (weir_session* s : sessions) EXPECT_EQ(weir_step_end(s, nullptr), WEIR_OK);
}

TEST_F(CApiTest, LastErrorBelongsToThreadAndSession) {
  Open(1);
  EXPECT_EQ(weir_step_end(sessions[0], nullptr), WEIR_FAILED_PRECONDITION);
  EXPECT_NE(std::string(weir_last_error(sessions[0])).find("no step"), std::string::npos);
  std::thread([&] { EXPECT_STREQ(weir_last_error(sessions[0]), ""); }).join();
}

TEST_F(CApiTest, DeadPeerIsNamed) {
  Open(3);
  std::vector<float> data(1000);
  const weir_parameter parameter = {"w", 1000, 0};
  uint64_t key = 0;
  for (int rank : {0, 1}) {
    ASSERT_EQ(weir_define_bucket(sessions[rank], &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
    ASSERT_EQ(weir_step_begin(sessions[rank]), WEIR_OK);
  }
  weir_session_close(sessions[2]);
  sessions.pop_back();
  std::vector<float> other(1000);
  ASSERT_EQ(weir_all_reduce(sessions[0], key, data.data(), 1, nullptr, nullptr, nullptr), WEIR_OK);
  weir_all_reduce(sessions[1], key, other.data(), 1, nullptr, nullptr, nullptr);
  for (int rank : {0, 1}) {
    EXPECT_EQ(weir_step_end(sessions[rank], nullptr), WEIR_PEER_UNAVAILABLE);
    EXPECT_NE(std::string(weir_last_error(sessions[rank])).find("rank 2"), std::string::npos)
        << weir_last_error(sessions[rank]);
  }
}

TEST_F(CApiTest, SurvivorsReformOnTheSameHandles) {
  Open(3);
  const weir_parameter parameter = {"w", 4, 0};
  uint64_t key = 0;
  for (weir_session* s : sessions) {
    ASSERT_EQ(weir_define_bucket(s, &parameter, 1, WEIR_FLOAT32, &key), WEIR_OK);
  }
  weir_session_close(sessions[1]);
  sessions.erase(sessions.begin() + 1);
  float data[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  weir_request* request = nullptr;
  ASSERT_EQ(weir_step_begin(sessions[0]), WEIR_OK);
  ASSERT_EQ(weir_all_reduce(sessions[0], key, data[0], 1, nullptr, nullptr, &request), WEIR_OK);
  weir_mesh mesh = {sizeof(weir_mesh), 0, 0, 2, nullptr};
  EXPECT_EQ(weir_session_reform(sessions[0], nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_session_reform(nullptr, &mesh), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_session_reform(sessions[0], &mesh), WEIR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(weir_last_error(sessions[0])).find("mesh.epoch"), std::string::npos);
  mesh.epoch = 5;
  mesh.rank = 2;
  EXPECT_EQ(weir_session_reform(sessions[0], &mesh), WEIR_INVALID_ARGUMENT) << "rank 2 of 2";
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    mesh.rank = rank;
    ASSERT_EQ(weir_session_reform(sessions[rank], &mesh), WEIR_OK)
        << weir_last_error(sessions[rank]);
    addresses.emplace_back(weir_session_address(sessions[rank]));
  }
  EXPECT_NE(weir_request_wait(request, 1, nullptr), WEIR_OK) << "its step is void";
  const char* list[] = {addresses[0].c_str(), addresses[1].c_str()};
  weir::testing::RunRanks(2, [&](int rank) {
    EXPECT_EQ(weir_session_connect(sessions[rank], list, 2), WEIR_OK)
        << weir_last_error(sessions[rank]);
  });
  data[0][0] = 1;
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(weir_step_begin(sessions[rank]), WEIR_OK) << weir_last_error(sessions[rank]);
    ASSERT_EQ(weir_all_reduce(sessions[rank], key, data[rank], 1, nullptr, nullptr, nullptr),
              WEIR_OK);
  }
  for (weir_session* s : sessions) {
    EXPECT_EQ(weir_step_end(s, nullptr), WEIR_OK) << weir_last_error(s);
    weir_stats stats = {};
    stats.struct_size = sizeof stats;
    ASSERT_EQ(weir_get_stats(s, &stats), WEIR_OK);
    EXPECT_EQ(stats.epoch, 5u);
    EXPECT_EQ(stats.next_step, 1u);
    EXPECT_EQ(stats.model_source, 0);
  }
  EXPECT_EQ(data[0][0], 11);
  EXPECT_EQ(data[1][3], 44);
}

TEST_F(CApiTest, StateAndPlanGoThroughBuffersOfTheCaller) {
  Open(1);
  size_t size = 0;
  ASSERT_EQ(weir_export_state(sessions[0], nullptr, &size), WEIR_OK);
  std::vector<char> state(size);
  ASSERT_EQ(weir_export_state(sessions[0], state.data(), &size), WEIR_OK);
  EXPECT_EQ(size, state.size());
  EXPECT_EQ(weir_import_state(sessions[0], state.data(), size), WEIR_OK);
  size_t too_small = 0;
  EXPECT_EQ(weir_export_state(sessions[0], state.data(), &too_small), WEIR_RESOURCE_EXHAUSTED);
  std::vector<char> plan(4096);
  size = plan.size();
  ASSERT_EQ(weir_get_plan(sessions[0], plan.data(), &size), WEIR_OK);
  const auto document = weir::ParseJson({plan.data(), size}, 4096);
  ASSERT_TRUE(document.ok());
  EXPECT_EQ((*document)["fallback"]["codec"], "identity");
  const auto capabilities = weir::ParseJson(weir_capabilities(), 1 << 20);
  ASSERT_TRUE(capabilities.ok());
  EXPECT_TRUE(capabilities->contains("codecs"));
  EXPECT_STRNE(weir_version(), "");
}

}  // namespace
