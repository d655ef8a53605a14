// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/tuner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace weir::nccl::plugin {
namespace {

class TunerTest : public ::testing::Test {
 protected:
  TunerTest()
      : directory_(::testing::TempDir() + "/weir-tuner-" + std::to_string(getpid()) + "-" +
                   std::to_string(counter_++)) {
    std::filesystem::create_directory(directory_);
    options_.communicator = 5;
    options_.ranks = 2;
    options_.shared_directory = directory_;
    options_.first = std::make_shared<const Table>();
  }
  ~TunerTest() override { std::filesystem::remove_all(directory_); }

  bool HasFile() const { return !std::filesystem::is_empty(directory_); }

  static inline int counter_ = 0;
  const std::string directory_;
  TunerOptions options_;
};

TEST_F(TunerTest, TheFileHasNoNameOnceAllRanksHaveIt) {
  Tuner first(options_);
  first.Tick();
  EXPECT_TRUE(HasFile());
  EXPECT_EQ(first.State().obstacle, "not all ranks share memory");
  Tuner second(options_);
  EXPECT_FALSE(HasFile());
  EXPECT_EQ(first.State().obstacle, "");
}

TEST_F(TunerTest, NoFileStaysWhereRanksAreOnOtherMachines) {
  options_.join_timeout = Duration(0);
  Tuner first(options_);
  EXPECT_TRUE(HasFile());
  first.Tick();
  EXPECT_FALSE(HasFile());
}

TEST_F(TunerTest, WhatPreventsSwitchingIsTold) {
  options_.communicator = 0;
  EXPECT_NE(Tuner(options_).State().obstacle.find("id"), std::string::npos);
  options_.communicator = 5;
  options_.ranks = 100000;
  EXPECT_NE(Tuner(options_).State().obstacle.find("1 to 1024"), std::string::npos);
  options_.ranks = 1;
  options_.shared_directory = directory_ + "/absent";
  EXPECT_NE(Tuner(options_).State().obstacle.find("open"), std::string::npos);
  float costs[21] = {};
  int channels = 0;
  Tuner tuner(options_);
  tuner.Choose(4, 8, 1, costs, 7, 3, &channels);
  tuner.Tick();
  EXPECT_EQ(tuner.State().calls, 1u);
}

}  // namespace
}  // namespace weir::nccl::plugin
