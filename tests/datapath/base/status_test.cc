// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace weir {
namespace {

TEST(StatusTest, EachMakerHasItsCodeAndKeepsItsMessage) {
  const std::vector<std::pair<Status, StatusCode>> cases = {
      {InvalidArgument("m"), StatusCode::kInvalidArgument},
      {NotFound("m"), StatusCode::kNotFound},
      {FailedPrecondition("m"), StatusCode::kFailedPrecondition},
      {DataLoss("m"), StatusCode::kDataLoss},
      {Unavailable("m"), StatusCode::kUnavailable},
      {DeadlineExceeded("m"), StatusCode::kDeadlineExceeded},
      {ResourceExhausted("m"), StatusCode::kResourceExhausted},
      {Unimplemented("m"), StatusCode::kUnimplemented},
      {Internal("m"), StatusCode::kInternal},
      {Aborted("m"), StatusCode::kAborted},
  };
  for (const auto& [status, code] : cases) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(Message(status), "m");
  }
  EXPECT_TRUE(OkStatus().ok());
}

TEST(StatusTest, StrCatPrintsWhatStreamsPrint) {
  EXPECT_EQ(StrCat("rank ", 3, " of ", size_t{4}, ' ', 0.5, std::string(" x")),
            "rank 3 of 4 0.5 x");
}

TEST(StatusTest, AnnotatePrefixesErrorsOnly) {
  const Status status = Annotate(DataLoss("bad magic"), "rank 2");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(Message(status), "rank 2: bad magic");
  EXPECT_EQ(ToString(status), "DATA_LOSS: rank 2: bad magic");
  EXPECT_TRUE(Annotate(OkStatus(), "rank 2").ok());
}

StatusOr<std::unique_ptr<int>> Make(bool good) {
  if (!good) return NotFound("none");
  return std::make_unique<int>(7);
}

Status Use(bool first, bool second, int* out) {
  WEIR_RETURN_IF_ERROR(first ? OkStatus() : Aborted("first"));
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, Make(second));
  *out = *value;
  return OkStatus();
}

TEST(StatusTest, MacrosReturnTheFirstError) {
  int out = 0;
  EXPECT_EQ(Use(false, true, &out).code(), StatusCode::kAborted);
  EXPECT_EQ(Use(true, false, &out).code(), StatusCode::kNotFound);
  EXPECT_EQ(out, 0);
  EXPECT_TRUE(Use(true, true, &out).ok());
  EXPECT_EQ(out, 7);
}

}  // namespace
}  // namespace weir
