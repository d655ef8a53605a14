// SPDX-License-Identifier: Apache-2.0
// The names and limits of rules for NCCL in policies are those of libnccl-weir.so.

#include <gtest/gtest.h>

#include "controller/policy/policy.h"
#include "datapath/nccl/plugin/table.h"

namespace weir {
namespace {

using nccl::plugin::kAlgorithmNames;
using nccl::plugin::kFunctionNames;
using nccl::plugin::kProtocolNames;

// Whether policies and the library read this rule, which is the same text for both.
void ExpectBothTo(bool accept, const std::string& rule) {
  EXPECT_EQ(ParsePolicy("{\"nccl\": {\"rules\": [" + rule + "]}}", "p").ok(), accept) << rule;
  EXPECT_EQ(nccl::plugin::Table::Parse("{\"rules\": [" + rule + "]}").ok(), accept) << rule;
}

std::string RuleOf(std::string_view function, std::string_view algorithm, std::string_view protocol,
                   const std::string& more = "") {
  return StrCat("{\"function\": \"", function, "\", \"algorithm\": \"", algorithm,
                "\", \"protocol\": \"", protocol, "\"", more, "}");
}

TEST(NcclNamesTest, PoliciesAndTheLibraryReadTheSameRules) {
  for (const auto function : kFunctionNames) ExpectBothTo(true, RuleOf(function, "ring", "ll"));
  for (const auto name : kAlgorithmNames) ExpectBothTo(true, RuleOf("reduce", name, "ll"));
  for (const auto name : kProtocolNames) ExpectBothTo(true, RuleOf("reduce", "ring", name));
  ExpectBothTo(false, RuleOf("point_to_point", "ring", "ll"));
  ExpectBothTo(false, RuleOf("reduce", "rings", "ll"));
  ExpectBothTo(false, RuleOf("reduce", "ring", "ll64"));
  const auto with = [](const char* key, uint64_t value) {
    return RuleOf("reduce", "ring", "ll", StrCat(", \"", key, "\": ", value));
  };
  ExpectBothTo(true, with("channels", nccl::plugin::kChannelsMax));
  ExpectBothTo(false, with("channels", nccl::plugin::kChannelsMax + 1));
  ExpectBothTo(true, with("chunk_bytes", nccl::plugin::kChunkBytesMax));
  ExpectBothTo(false,
               with("chunk_bytes", nccl::plugin::kChunkBytesMax + nccl::plugin::kChunkGrainBytes));
  ExpectBothTo(false, with("chunk_bytes", nccl::plugin::kChunkGrainBytes - 1));
  ExpectBothTo(true, with("ranks", 8));
  ExpectBothTo(true, with("bytes_min", 1 << 20));
  ExpectBothTo(true, with("bytes_end", 1 << 20));
}

}  // namespace
}  // namespace weir
