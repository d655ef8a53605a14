// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace weir {
namespace {

struct Program {
  std::string listen = "127.0.0.1:1";
  std::vector<std::string> aggregators;
  bool insecure = false;
  int port = 0;
  std::string error;
};

Program Started(const std::string& config, std::vector<std::string> arguments) {
  const std::string file = testing::TempDir() + "/" + std::to_string(getpid()) + "-program.toml";
  std::ofstream(file) << config;
  Program program;
  CLI::App app("a program");
  app.add_option("--listen-http", program.listen);
  app.add_option("--aggregator", program.aggregators);
  app.add_option("--port", program.port);
  app.add_flag("--insecure", program.insecure);
  AddConfigFile(app);
  arguments.insert(arguments.end(), {"--config", file});
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    program.error = error.what();
  }
  std::filesystem::remove(file);
  return program;
}

constexpr char kWhole[] =
    "# a comment\nlisten-http = \"0.0.0.0:80\"\naggregator = [\"a=http://h:1\", \"b=http://h:2\"]\n"
    "insecure = true\nport = 7\n";

TEST(ConfigFileTest, KeysAreTheNamesOfTheFlags) {
  const Program program = Started(kWhole, {});
  EXPECT_EQ(program.error, "");
  EXPECT_EQ(program.listen, "0.0.0.0:80");
  EXPECT_THAT(program.aggregators, testing::ElementsAre("a=http://h:1", "b=http://h:2"));
  EXPECT_TRUE(program.insecure);
  EXPECT_EQ(program.port, 7);
}

TEST(ConfigFileTest, TheCommandLineIsStronger) {
  const Program program = Started(kWhole, {"--port", "9", "--aggregator", "c=http://h:3"});
  EXPECT_EQ(program.port, 9);
  EXPECT_THAT(program.aggregators, testing::ElementsAre("c=http://h:3"));
  EXPECT_EQ(program.listen, "0.0.0.0:80");
}

TEST(ConfigFileTest, WhatIsNoFlagIsAnError) {
  EXPECT_THAT(Started("listen-htp = \"x\"\n", {}).error, testing::HasSubstr("listen-htp"));
  EXPECT_THAT(Started("[server]\nport = 1\n", {}).error, testing::HasSubstr("server"));
  EXPECT_THAT(Started("port = many\n", {}).error, testing::HasSubstr("port"));
  CLI::App app("a program");
  AddConfigFile(app);
  EXPECT_THROW(app.parse(std::vector<std::string>{"/does/not/exist", "--config"}), CLI::FileError);
}

}  // namespace
}  // namespace weir
