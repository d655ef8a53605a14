// SPDX-License-Identifier: Apache-2.0
// weirctl top: successive tables while a job trains.

#include <iterator>
#include <sstream>

#include "tests/controller/cli/weirctl_world.h"

namespace weir::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Cells of the rows that begin with `first`, in order.
std::vector<std::vector<std::string>> Rows(const std::string& text, const std::string& first) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::vector<std::string> row{std::istream_iterator<std::string>(cells), {}};
    if (!row.empty() && row[0] == first) rows.push_back(row);
  }
  return rows;
}

TEST_F(WeirctlTest, TopFollowsTheStepsOfAJob) {
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const Ran top = Run({"top", "--iterations", "3", "--interval", "0.2"});
  ASSERT_EQ(top.code, kOk) << top.error;
  const auto headers = Rows(top.output, "JOB");
  const auto jobs = Rows(top.output, "wire");
  ASSERT_EQ(headers.size(), 3u) << top.output;
  ASSERT_EQ(jobs.size(), 3u) << top.output;
  EXPECT_EQ(headers[0][2], "STEP");
  EXPECT_EQ(jobs[0][1], "running");
  EXPECT_LT(std::stoul(jobs[0][2]), std::stoul(jobs[1][2])) << top.output;
  EXPECT_LT(std::stoul(jobs[1][2]), std::stoul(jobs[2][2])) << top.output;
  EXPECT_THAT(top.output, Not(HasSubstr("\033")));  // not a terminal
  // The last step has a choice and a duration.
  EXPECT_NE(jobs[2][4], "-") << top.output;
  EXPECT_THAT(top.output, HasSubstr("ms"));
}

TEST_F(WeirctlTest, TopShowsOneJobAndSaysWhatIsWrong) {
  const Ran none = Run({"top", "--iterations", "1"});
  EXPECT_EQ(none.code, kOk) << none.error;
  EXPECT_THAT(none.output, HasSubstr("no job is attached"));
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  const Ran one = Run({"top", "wire", "--iterations", "1"});
  EXPECT_EQ(Rows(one.output, "wire").size(), 1u) << one.output << one.error;
  const Ran unknown = Run({"top", "nobody", "--iterations", "1"});
  EXPECT_EQ(unknown.code, kNotFoundExit);
  EXPECT_THAT(unknown.error, HasSubstr("nobody"));
  const Ran hurried = Run({"top", "--interval", "0"});
  EXPECT_NE(hurried.code, kOk);
  EXPECT_THAT(hurried.error, HasSubstr("0.1 to 3600"));
  const Ran json = Run({"top", "-o", "json"});
  EXPECT_NE(json.code, kOk);
  EXPECT_THAT(json.error, HasSubstr("tables only"));
}

}  // namespace
}  // namespace weir::cli
