// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/simulate.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "controller/cli/client.h"
#include "controller/messages/builtin_capabilities.h"
#include "controller/messages/mapping.h"
#include "controller/messages/simulation.h"
#include "controller/objective/objective.h"

namespace weir::cli {
namespace {

using Units = std::vector<std::pair<std::string, double>>;

// A non-negative number followed by one of the units.
StatusOr<double> ParseQuantity(const std::string& text, const Units& units) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  std::string valid;
  if (end != text.c_str() && std::isfinite(value) && value >= 0) {
    for (const auto& [unit, factor] : units) {
      if (unit == end) return value * factor;
    }
  }
  for (const auto& [unit, factor] : units) {
    if (!unit.empty()) valid += (valid.empty() ? "" : ", ") + unit;
  }
  return InvalidArgument(
      StrCat("'", text, "': expected a number, optionally followed by one of ", valid));
}

}  // namespace

StatusOr<double> ParseRate(const std::string& text) {
  return ParseQuantity(text, {{"", 1},
                              {"kb/s", 125},
                              {"Mb/s", 125e3},
                              {"Gb/s", 125e6},
                              {"kB/s", 1e3},
                              {"MB/s", 1e6},
                              {"GB/s", 1e9},
                              {"B/s", 1},
                              {"mbit", 125e3},
                              {"gbit", 125e6}});
}

StatusOr<v1::LinkRate> ParseLink(const std::string& text) {
  unsigned from = 0, to = 0;
  int used = -1;
  if (std::sscanf(text.c_str(), "%6u-%6u=%n", &from, &to, &used) != 2 || used < 0) {
    return InvalidArgument(
        StrCat("'", text, "': expected two ranks and the rate between them, as 1-2=10Mb/s"));
  }
  v1::LinkRate link;
  link.set_source_rank(from);
  link.set_target_rank(to);
  WEIR_ASSIGN_OR_RETURN(const double rate, ParseRate(text.substr(static_cast<size_t>(used))));
  link.set_bandwidth_bytes_per_s(rate);
  return link;
}

StatusOr<double> ParseSeconds(const std::string& text) {
  return ParseQuantity(text, {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}});
}

StatusOr<double> ParseCount(const std::string& text) {
  return ParseQuantity(text, {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}});
}

std::vector<std::string> BuiltinNames(const std::string& kind) {
  const PolicyNames names = NamesOf(BuiltinDeviceCapabilities());
  if (kind == "codec") {
    std::vector<std::string> codecs(names.codecs.begin(), names.codecs.end());
    std::erase(codecs, "identity");  // dense, for people
    return codecs;
  }
  if (kind == "collective") return {names.collectives.begin(), names.collectives.end()};
  return {};
}

Status SimulateOffline(const v1::SimulateRequest& request, const std::string& policy_file,
                       Output output) {
  v1::SimulateRequest complete = request;
  if (!policy_file.empty()) {
    WEIR_ASSIGN_OR_RETURN(*complete.mutable_policy_source(), ReadFile(policy_file));
    // Parsed here too, so that an error names the file.
    const PolicyNames names = NamesOf(BuiltinDeviceCapabilities());
    WEIR_RETURN_IF_ERROR(ReadPolicy(complete.policy_source(), policy_file, &names).status());
  }
  WEIR_ASSIGN_OR_RETURN(const v1::SimulateResponse response,
                        Simulate(complete, BuiltinDeviceCapabilities()));
  if (output != Output::kTable) {
    std::fputs(Render(response, output).c_str(), stdout);
    return OkStatus();
  }
  Table table{{"", "CANDIDATE", "STEP", "COMMUNICATION", "GAIN", "OBJECTIVE", "NOTE"}, {}};
  for (const v1::Candidate& candidate : response.candidates()) {
    table.rows.push_back(
        {candidate.chosen() ? "*" : " ", candidate.label(), OrDash(candidate.step_s(), SecondsText),
         OrDash(candidate.communication_s(), SecondsText), OrDash(candidate.gain(), NumberText),
         OrDash(candidate.objective(), NumberText),
         candidate.dense() ? "dense" : candidate.excluded_by()});
  }
  std::fputs((Render(table) + "\n" + response.reason() + "\n").c_str(), stdout);
  return OkStatus();
}

}  // namespace weir::cli
