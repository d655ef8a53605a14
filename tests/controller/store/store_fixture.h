// SPDX-License-Identifier: Apache-2.0
#pragma once
// A state file in a directory of its own.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "controller/store/store.h"

namespace weir {

class SqliteStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/weir-store-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    path_ = directory_ / "state.db";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Store> Open(StoreLimits limits = {}) {
    auto store = OpenSqliteStore(path_, limits);
    EXPECT_TRUE(store.ok()) << ToString(store.status());
    return store.ok() ? std::move(*store) : nullptr;
  }

  static StoredDecision MakeDecision(std::string job, uint64_t step) {
    return {0,           std::move(job), step, 1.5, StrCat("{\"step\":", step, "}"),
            "{\"s\":1}", "policy text"};
  }

  /// Runs a Python script; its arguments are the path of the state file and `argument`. Returns its
  /// exit status.
  int RunScript(const std::string& text, const std::string& argument = "") const {
    const std::filesystem::path script = directory_ / "script.py";
    std::ofstream(script) << text;
    return std::system(
        StrCat("python3 ", script.string(), " ", path_.string(), " ", argument).c_str());
  }

  std::filesystem::path directory_, path_;
};

}  // namespace weir
