// SPDX-License-Identifier: Apache-2.0
#pragma once
// weirctl and weir-controller as separate programs, and scripted agents that train.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "controller/cli/client.h"
#include "datapath/base/clock.h"
#include "tests/controller/server/wire_agent.h"
#include "tests/support/program.h"

namespace weir::cli {

struct Ran {
  int code = -1;
  std::string output, error;
};

/// A controller on loopback, and weirctl asking it.
class WeirctlTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weirctl-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    StartController({});
  }
  void StartController(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {WEIR_CONTROLLER_PROGRAM, "--listen-grpc", "127.0.0.1:0",
                                          "--listen-http",         "127.0.0.1:0",   "--state",
                                          directory_ / "state.db"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    server_ = std::make_unique<Program>(arguments);
    ASSERT_TRUE(server_->ReadUntil([&] { return server_->error.find(", HTTP on") != npos; }))
        << server_->error;
    const std::string before = "gRPC on ";
    const size_t at = server_->error.find(before) + before.size();
    target_ = server_->error.substr(at, server_->error.find(',', at) - at);
  }
  void TearDown() override {
    EndTraining();
    EndController();
    std::filesystem::remove_all(directory_);
  }

  void EndController() {
    if (server_ == nullptr) return;
    server_->Signal(SIGTERM);
    server_->ReadUntil([] { return false; });
    EXPECT_EQ(server_->Wait(), 0) << server_->error;
    server_.reset();
  }

  void StartTraining() {
    for (int rank = 0; rank < 2; ++rank) {
      agents_.push_back(std::make_unique<WireAgent>(target_, rank, 2));
    }
    training_ = std::thread([this] {
      for (uint64_t step = 1; !stop_; ++step) {
        const uint64_t before = agents_[0]->active();
        for (auto& agent : agents_) agent->Step(step);
        if (agents_[0]->active() != before) agents_[1]->Activate(agents_[0]->active());
        if (step % 10 == 0) agents_[0]->Measure("w1");
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    ASSERT_TRUE(Eventually([&] { return Run({"get", "decisions", "1"}).code == kOk; }));
    ASSERT_TRUE(Eventually([&] { return !Json({"get", "links"})["links"].empty(); }));
  }
  void EndTraining() {
    stop_ = true;
    if (training_.joinable()) training_.join();
    agents_.clear();
  }

  std::vector<std::string> CommandLine(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {WEIRCTL_PROGRAM, "--controller", target_};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  Ran Run(const std::vector<std::string>& arguments) const {
    Program program(CommandLine(arguments));
    EXPECT_FALSE(program.ReadUntil([] { return false; }));
    return {program.Wait(), program.output, program.error};
  }
  /// As Run(), without saying which controller.
  static Ran RunAlone(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {WEIRCTL_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    Program program(all);
    EXPECT_FALSE(program.ReadUntil([] { return false; }));
    return {program.Wait(), program.output, program.error};
  }
  /// Runs a command that must succeed and print JSON.
  nlohmann::json Json(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-o", "json"});
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.code, kOk) << arguments[0] << ": " << ran.error;
    const auto json = nlohmann::json::parse(ran.output, nullptr, false);
    EXPECT_TRUE(json.is_object()) << ran.output;
    return json.is_object() ? json : nlohmann::json::object();
  }
  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
    return directory_ / name;
  }
  template <typename Condition>
  static bool Eventually(Condition condition) {
    const TimePoint deadline = RealClock().Now() + FromSeconds(kPatienceS);
    while (!condition()) {
      if (RealClock().Now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }

  static constexpr size_t npos = std::string::npos;
  std::filesystem::path directory_;
  std::unique_ptr<Program> server_;
  std::string target_;
  std::vector<std::unique_ptr<WireAgent>> agents_;
  std::thread training_;
  std::atomic<bool> stop_{false};
};

}  // namespace weir::cli
