// SPDX-License-Identifier: Apache-2.0
// Attacks on whole jobs, by weir.h only: without a key each attack succeeds, which shows that it is
// effective; with a key it is refused and named.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>

#include "datapath/api/weir.h"
#include "datapath/base/log.h"
#include "tests/datapath/transport/builtin/man_in_the_middle.h"
#include "tests/support/world.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weir::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kJob[] = "attacked";
constexpr size_t kElements = 1000;
constexpr unsigned char kKey[32] = {1, 2, 3};

struct CloseSession {
  void operator()(weir_session* session) const { weir_session_close(session); }
};
using SessionPtr = std::unique_ptr<weir_session, CloseSession>;

SessionPtr NewSession(int rank, bool keyed, double connect_timeout_s = kPatience) {
  weir_options options = {};
  options.struct_size = sizeof options;
  options.job = kJob;
  options.rank = rank;
  options.world = 2;
  options.transport = "tcp";
  options.operation_timeout_s = 4;
  options.connect_timeout_s = connect_timeout_s;
  if (keyed) {
    options.job_key = kKey;
    options.job_key_size = sizeof kKey;
  }
  weir_session* session = nullptr;
  char error[256] = "";
  EXPECT_EQ(weir_session_create(&options, &session, error, sizeof error), WEIR_OK) << error;
  return SessionPtr(session);
}

weir_status Connect(const SessionPtr& session, const std::string& rank0, const std::string& rank1) {
  const char* addresses[] = {rank0.c_str(), rank1.c_str()};
  return weir_session_connect(session.get(), addresses, 2);
}

// One step, to which rank r contributes r + 1 everywhere, so that 3 is delivered.
weir_status Step(weir_session* session, int rank, std::vector<float>* data) {
  const weir_parameter parameter = {"p", kElements, 0};
  uint64_t key = 0;
  weir_status status = weir_define_bucket(session, &parameter, 1, WEIR_FLOAT32, &key);
  if (status != WEIR_OK) return status;
  data->assign(kElements, static_cast<float>(rank + 1));
  status = weir_step_begin(session);
  if (status != WEIR_OK) return status;
  status = weir_all_reduce(session, key, data->data(), 1, nullptr, nullptr, nullptr);
  if (status != WEIR_OK) return status;
  return weir_step_end(session, nullptr);
}

struct Outcome {
  weir_status statuses[2];
  std::string errors[2];
  std::vector<float> sums[2];
  bool Good() const {
    const std::vector<float> expected(kElements, 3.0f);
    return statuses[0] == WEIR_OK && statuses[1] == WEIR_OK && sums[0] == expected &&
           sums[1] == expected;
  }
};

Outcome TrainThrough(bool keyed, const ManInTheMiddle::Meddle& meddle) {
  SessionPtr sessions[] = {NewSession(0, keyed), NewSession(1, keyed)};
  const std::string own[] = {weir_session_address(sessions[0].get()),
                             weir_session_address(sessions[1].get())};
  ManInTheMiddle middle(own[0], keyed, meddle);
  Outcome outcome;
  RunRanks(2, [&](int r) {
    outcome.statuses[r] = Connect(sessions[r], middle.address(), own[1]);
    if (outcome.statuses[r] == WEIR_OK) {
      outcome.statuses[r] = Step(sessions[r].get(), r, &outcome.sums[r]);
    }
    outcome.errors[r] = weir_last_error(sessions[r].get());
    sessions[r].reset();  // waits for a call in progress
  });
  return outcome;
}

bool IsGradients(const Bytes& frame) { return frame.size() > kFrameHeaderBytes + kElements; }

// `frame` with its payload times -3 and, without a key, checksums that are right again.
Bytes Scaled(Bytes frame, bool keyed) {
  const std::span<std::byte> all(frame);
  FrameHeader header = *DecodeFrameHeader(all.first<kFrameHeaderBytes>(),
                                          keyed ? FrameCheck::kTag : FrameCheck::kChecksums);
  const auto payload = all.subspan(kFrameHeaderBytes, header.payload_bytes);
  for (size_t at = 0; at + sizeof(float) <= payload.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, &payload[at], sizeof value);
    value *= -3;
    std::memcpy(&payload[at], &value, sizeof value);
  }
  header.payload_checksum = Checksum(payload);
  EncodeFrameHeader(header, all.first<kFrameHeaderBytes>(),
                    keyed ? FrameCheck::kTag : FrameCheck::kChecksums);
  return frame;
}

TEST(AttackTest, ARelayThatChangesNothingIsHarmless) {
  for (const bool keyed : {false, true}) {
    const Outcome outcome = TrainThrough(keyed, ManInTheMiddle::PassOn);
    EXPECT_TRUE(outcome.Good()) << outcome.errors[0] << outcome.errors[1];
  }
}

TEST(AttackTest, OnlyWithAKeyAreScaledGradientsRefused) {
  for (const bool keyed : {false, true}) {
    const Outcome outcome = TrainThrough(keyed, [keyed](size_t, const Bytes& frame) {
      return std::vector<Bytes>{IsGradients(frame) ? Scaled(frame, keyed) : frame};
    });
    EXPECT_FALSE(outcome.Good());
    if (!keyed) {  // nobody notices
      EXPECT_EQ(outcome.statuses[0], WEIR_OK) << outcome.errors[0];
      EXPECT_EQ(outcome.statuses[1], WEIR_OK) << outcome.errors[1];
      continue;
    }
    EXPECT_EQ(outcome.statuses[0], WEIR_DATA_LOSS) << outcome.errors[0];
    EXPECT_THAT(outcome.errors[0],
                AllOf(HasSubstr("rank 1 ("), HasSubstr("a frame that does not verify")));
    EXPECT_NE(outcome.statuses[1], WEIR_OK);
    EXPECT_THAT(outcome.errors[1], HasSubstr("rank 0"));
  }
}

TEST(AttackTest, RepeatedExchangedAndMissingFramesEndTheJobByName) {
  const std::vector<std::pair<const char*, std::function<std::vector<Bytes>(const Bytes&)>>>
      attacks = {{"repeats",
                  [](const Bytes& frame) {
                    return std::vector<Bytes>{frame, frame};
                  }},
                 {"leaves out", [](const Bytes&) { return std::vector<Bytes>{}; }},
                 {"cuts", [](const Bytes& frame) {
                    return std::vector<Bytes>{Bytes(frame.begin(), frame.end() - 17)};
                  }}};
  for (const auto& [name, attack] : attacks) {
    SCOPED_TRACE(name);
    const Outcome outcome =
        TrainThrough(true, [&attack = attack](size_t number, const Bytes& frame) {
          return number >= 2 && IsGradients(frame) ? attack(frame) : std::vector<Bytes>{frame};
        });
    EXPECT_FALSE(outcome.Good());
    EXPECT_THAT(outcome.errors[0], HasSubstr("rank 1"));
    for (const auto& sum : outcome.sums) {
      EXPECT_TRUE(std::all_of(sum.begin(), sum.end(), [](float value) {
        return value == 1 || value == 2 || value == 3;  // own, or the sum
      }));
    }
  }
}

TEST(AttackTest, OnlyWithoutAKeyCanAnIntruderTakeARanksPlace) {
  SetLogSink([](LogLevel, std::string_view, std::string_view) {});
  for (const bool keyed : {false, true}) {
    const SessionPtr rank0 = NewSession(0, keyed, 5), rank1 = NewSession(1, keyed, 5);
    const std::string own[] = {weir_session_address(rank0.get()),
                               weir_session_address(rank1.get())};
    weir_status statuses[2];
    std::thread connecting([&] { statuses[0] = Connect(rank0, own[0], own[1]); });
    RawPeer rogue(own[0]);
    std::string text;
    const auto answer = rogue.Introduce(
        {.job = XXH3_64bits(kJob, sizeof kJob - 1), .rank = 1, .world = 2, .expected_peer = 0},
        &text);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->type, keyed ? FrameType::kAbort : FrameType::kHello);
    EXPECT_THAT(text, keyed ? HasSubstr("job key: rank 0 has one, rank 1 none") : HasSubstr(""));
    statuses[1] = Connect(rank1, own[0], own[1]);
    rogue.Close();
    connecting.join();
    EXPECT_EQ(statuses[0] == WEIR_OK, keyed) << weir_last_error(rank0.get());
    EXPECT_EQ(statuses[1] == WEIR_OK, keyed) << weir_last_error(rank1.get());
    if (!keyed) continue;
    std::vector<float> sums[2];
    RunRanks(2, [&](int r) { statuses[r] = Step((r == 0 ? rank0 : rank1).get(), r, &sums[r]); });
    EXPECT_EQ(statuses[0], WEIR_OK);
    EXPECT_EQ(sums[0], std::vector<float>(kElements, 3.0f));
    EXPECT_EQ(sums[1], sums[0]);
  }
  SetLogSink({});
}

}  // namespace
}  // namespace weir::testing
