// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/api_comments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weir/v1/admin.pb.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ApiCommentsTest, CommentsAreThoseOfTheFiles) {
  const auto* job = v1::Job::descriptor();
  EXPECT_THAT(CommentOf(job->FindFieldByName("key_id")), HasSubstr("first 16 digits"));
  EXPECT_THAT(CommentOf(v1::AuditRecord::descriptor()), IsEmpty());
  EXPECT_THAT(CommentOf(v1::Benefit::descriptor()), HasSubstr("g^exponent dense steps"));
  EXPECT_THAT(CommentOf(v1::BenefitVerdict_descriptor()->FindValueByName("BENEFIT_VERDICT_COSTS")),
              HasSubstr("below 0"));
}

TEST(ApiCommentsTest, OnlyAPlainListIsTakenForTheValues) {
  EXPECT_THAT(ListedValues("\"a\", \"b_1\" or \"c\""), ElementsAre("a", "b_1", "c"));
  EXPECT_THAT(ListedValues("\"a\", \"b\"; empty: none"), ElementsAre("a", "b"));
  for (const char* comment : {"", "\"a\"", "\"a\", or \"b\" if", "\"a\" (x), \"b\"", "\"a, b",
                              "\"a\", ..., \"b\"", "\"saves 3 %\", \"b\"", "says \"a\", \"b\""}) {
    EXPECT_THAT(ListedValues(comment), IsEmpty()) << comment;
  }
}

}  // namespace
}  // namespace weir
