// SPDX-License-Identifier: Apache-2.0
// Promises of exchange forms as data: which codecs they carry, and that every collective serves
// one.

#include "datapath/exchange/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weir {
namespace {

const ExchangeTraits& FormNamed(const std::string& name) {
  return (*ExchangeForms().Find(name))->Traits();
}

std::vector<std::string> CodecsOf(const std::string& form) {
  std::vector<std::string> names;
  for (const Codec* codec : Codecs().All()) {
    if (Carries(FormNamed(form), codec->Traits())) names.push_back(codec->Traits().name);
  }
  return names;
}

TEST(ExchangeFormTest, EveryCollectiveServesAFormAndEveryFormHasACollective) {
  std::set<std::string> served;
  for (const Collective* collective : Collectives().All()) {
    const ExchangeForm& form = FormOf(*collective);
    EXPECT_EQ(form.Traits().name, collective->Traits().form);
    served.insert(form.Traits().name);
  }
  for (const ExchangeForm* form : ExchangeForms().All()) {
    EXPECT_TRUE(served.contains(form->Traits().name)) << form->Traits().name;
  }
}

TEST(ExchangeFormTest, EveryCodecIsCarriedByAFormOfItsPayload) {
  for (const Codec* codec : Codecs().All()) {
    int forms = 0;
    for (const ExchangeForm* form : ExchangeForms().All()) {
      if (!Carries(form->Traits(), codec->Traits())) continue;
      EXPECT_EQ(form->Traits().payload, codec->Traits().form);
      ++forms;
    }
    EXPECT_GE(forms, 1) << codec->Traits().name;
  }
}

TEST(ExchangeFormTest, FloatLanesAreThoseOfIdentityAndTablesThoseOfThc) {
  EXPECT_THAT(CodecsOf("float_lanes"), ::testing::ElementsAre("identity"));
  EXPECT_THAT(CodecsOf("table_lanes"), ::testing::ElementsAre("thc"));
}

TEST(ExchangeFormTest, SumsOfRanksAreOfCodecsWithoutMemoryOfTheBucket) {
  for (const char* name : {"regions", "node_sums", "node_shards"}) {
    const std::vector<std::string> codecs = CodecsOf(name);
    EXPECT_THAT(codecs, ::testing::Contains("top_k")) << name;
    for (const std::string& codec : codecs) {
      const CodecTraits& traits = (*Codecs().Find(codec))->Traits();
      EXPECT_EQ(traits.form, PayloadForm::kOpaque) << codec;
      EXPECT_FALSE(traits.needs_momentum || traits.ef21) << codec;
      EXPECT_EQ(traits.shared_metadata, SharedMetadata::kNone) << codec;
    }
  }
}

TEST(ExchangeFormTest, MemoryFollowsTheFormOfTheCollective) {
  constexpr uint64_t kElements = 1000;
  EncodeContext context;
  context.world = 4;
  const auto payload_bytes = [&](const std::string& form, const std::string& codec) {
    const Codec& used = **Codecs().Find(codec);
    context.params.ratio = used.Traits().uses_ratio ? 0.1 : 1;
    return (*ExchangeForms().Find(form))->MemoryOf(used, kElements, context).payload_bytes;
  };
  EXPECT_EQ(payload_bytes("lanes", "identity"), 0u) << "the caller's buffer";
  EXPECT_EQ(payload_bytes("float_lanes", "identity"), 4 * kElements) << "the sum made elsewhere";
  EXPECT_EQ(payload_bytes("table_lanes", "thc"), 2 * payload_bytes("lanes", "thc"));
  context.params.ratio = 0.1;
  const uint64_t own = (*Codecs().Find("top_k"))->MaxEncodedBytes(kElements, context);
  EXPECT_EQ(payload_bytes("opaque", "top_k"), 5 * own);
  EXPECT_EQ(payload_bytes("node_sums", "top_k"), 5 * own);
}

// A collective whose traits name a form of another operand cannot be run by mistake.
TEST(ExchangeFormTest, OperandsAreThoseOfTheFormsCollectives) {
  for (const Collective* collective : Collectives().All()) {
    const std::string& form = collective->Traits().form;
    const bool lanes = form == "lanes" || form == "float_lanes" || form == "table_lanes";
    EXPECT_EQ(dynamic_cast<const CollectiveOn<Lanes>*>(collective) != nullptr, lanes) << form;
    EXPECT_EQ(dynamic_cast<const CollectiveOn<GatherOperand>*>(collective) != nullptr,
              form == "opaque");
    EXPECT_EQ(dynamic_cast<const CollectiveOn<SparseSumOperand>*>(collective) != nullptr,
              form == "own_selections");
  }
}

}  // namespace
}  // namespace weir
