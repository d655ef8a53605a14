// SPDX-License-Identifier: Apache-2.0
// The texts of numbers, by the cases that the page's formatter must meet, too.

#include "controller/model/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace weir {
namespace {

double ValueOf(const nlohmann::json& value) {
  return value.is_null() ? std::nan("") : value.get<double>();
}

TEST(FormatTest, CasesThatTerminalAndPageShare) {
  std::ifstream file(WEIR_TEST_SOURCE_DIR "/data/units.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  const std::pair<const char*, std::string (*)(double)> kFormats[] = {
      {"seconds", SecondsText}, {"bandwidth", BandwidthText}, {"bytes", BytesText},
      {"percent", PercentText}, {"number", NumberText},       {"age", AgeText}};
  for (const auto& [name, format] : kFormats) {
    ASSERT_GT(cases.at(name).size(), 5u) << name;
    for (const auto& entry : cases.at(name)) {
      EXPECT_EQ(format(ValueOf(entry.at(0))), entry.at(1).get<std::string>())
          << name << " of " << entry.at(0);
    }
  }
  for (const auto& entry : cases.at("deviation")) {
    const double value = entry.at(0), deviation = entry.at(1);
    EXPECT_EQ(WithDeviation(BandwidthText(value), value, deviation),
              entry.at(2).get<std::string>());
  }
}

TEST(FormatTest, OperatorsKnowTheCodecThatSendsEverythingAsDense) {
  EXPECT_EQ(CodecText("identity"), "dense");
  EXPECT_EQ(CodecText("top_k"), "top_k");
  EXPECT_EQ(CodecNamed("dense"), "identity");
  EXPECT_EQ(CodecNamed("identity"), "identity");
}

}  // namespace
}  // namespace weir
