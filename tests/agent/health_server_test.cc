// SPDX-License-Identifier: Apache-2.0
#include "agent/health_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace weir::agent {
namespace {

constexpr char kServing[] = "\x08\x01", kNotServing[] = "\x08\x02";  // HealthCheckResponse

/// The octets of the answer to grpc.health.v1.Health/Check of the whole server, or what went wrong.
std::string Check(int port) {
  const auto channel =
      grpc::CreateChannel(StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  const grpc::ByteBuffer nothing(nullptr, 0);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", nothing, &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return status.error_message();
  grpc::Slice slice;
  if (!answer.DumpToSingleSlice(&slice).ok()) return "no answer";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

TEST(HealthServerTest, ServesWhileTheSupervisedThreadBeats) {
  auto server = HealthServer::Start("127.0.0.1:0", RealClock(), std::chrono::milliseconds(500));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Check((*server)->port()), kServing);
  std::string answer;
  for (int i = 0; i < 100 && answer != kNotServing; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    answer = Check((*server)->port());
  }
  EXPECT_EQ(answer, kNotServing);
  for (int i = 0; i < 100 && answer != kServing; ++i) {
    (*server)->Beat();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    answer = Check((*server)->port());
  }
  EXPECT_EQ(answer, kServing);
}

TEST(HealthServerTest, ATakenPortIsNamed) {
  auto first = HealthServer::Start("127.0.0.1:0", RealClock());
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = StrCat("127.0.0.1:", (*first)->port());
  EXPECT_THAT(Message(HealthServer::Start(address, RealClock()).status()),
              ::testing::HasSubstr(address));
}

}  // namespace
}  // namespace weir::agent
