// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cases and the fixture of the suites over every codec of the registry.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "datapath/codec/codec.h"
#include "tests/datapath/codec/codec_test_support.h"

namespace weir::test {

/// One setting of one codec. Settings that differ in their world sizes only are one case.
struct Case {
  std::string name;
  int bits = 0;
};

inline std::string NameOf(const Case& one) {
  const std::string name = IdentifierOf(one.name);
  return one.bits == 0 ? name : name + "_" + std::to_string(one.bits);
}
inline void PrintTo(const Case& one, std::ostream* out) { *out << NameOf(one); }

/// Every check runs for every value width of every codec.
class CodecConformanceTest : public testing::TestWithParam<Case> {
 protected:
  const Codec& codec() const { return FindCodec(GetParam().name); }
  const CodecSetting& setting(int world) const {
    const CodecSetting* found = FindSetting(codec().Traits(), {.bits = GetParam().bits}, world);
    WEIR_CHECK(found != nullptr);
    return *found;
  }
  bool Allows(int world) const {
    return FindSetting(codec().Traits(), {.bits = GetParam().bits}, world) != nullptr;
  }
  bool OneLevel(int world) const {
    const double levels = setting(world).levels;
    return std::floor(codec().Traits().levels_divided_by_world ? levels / world : levels) == 1;
  }
  EncodeContext ContextFor(const Codec& codec, std::span<const float> x, int world = 1,
                           double ratio = 0.1) const {
    return test::ContextFor(codec, x, world, ratio, GetParam().bits);
  }
};

/// The cases of codecs whose traits are `wanted`.
inline std::vector<Case> CasesOf(const std::function<bool(const CodecTraits&)>& wanted) {
  std::vector<Case> cases;
  for (const Codec* codec : Codecs().All()) {
    if (!wanted(codec->Traits())) continue;
    for (const CodecSetting& setting : codec->Traits().settings) {
      if (!cases.empty() && cases.back().name == codec->Traits().name &&
          cases.back().bits == setting.bits) {
        continue;
      }
      cases.push_back({codec->Traits().name, setting.bits});
    }
  }
  return cases;
}

/// Names a case in INSTANTIATE_TEST_SUITE_P.
inline const auto kNameOfCase = [](const auto& info) { return NameOf(info.param); };

}  // namespace weir::test
