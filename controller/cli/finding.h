// SPDX-License-Identifier: Apache-2.0
#pragma once
// The result of one of doctor's checks, and its remedy.

#include <string>

namespace weir::cli {

enum class Verdict { kOk, kWarn, kFail };

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string text;
  std::string fix = {};  // a sentence or a command; empty where nothing is wrong
};

}  // namespace weir::cli
