// SPDX-License-Identifier: Apache-2.0
#include "controller/model/textbook_costs.h"

#include <array>
#include <bit>

#include "datapath/base/check.h"

namespace weir {
namespace {

double Beta(const TextbookSetting& s) { return 1 / s.bytes_per_s; }
double N(const TextbookSetting& s) { return s.world; }
double CeilLog2(int world) { return std::bit_width(static_cast<unsigned>(world - 1)); }
double L(const TextbookSetting& s) { return CeilLog2(s.world); }
// Seconds that M and M*c take on a link.
double Dense(const TextbookSetting& s) { return s.bytes * Beta(s); }
double Kept(const TextbookSetting& s) { return s.bytes * s.ratio * Beta(s); }

const std::array<TextbookCost, 10> kCosts = {{
    {"parameter_server", "2a + 2(N-1)Mb", false,
     [](const TextbookSetting& s) { return 2 * s.latency_s + 2 * (N(s) - 1) * Dense(s); }},
    {"ring", "2(N-1)a + 2(N-1)/N Mb", false,
     [](const TextbookSetting& s) {
       return 2 * (N(s) - 1) * s.latency_s + 2 * (N(s) - 1) / N(s) * Dense(s);
     }},
    {"tree, not pipelined", "2La + 2LMb", false,
     [](const TextbookSetting& s) { return 2 * L(s) * (s.latency_s + Dense(s)); }},
    {"double tree, pipelined", "2La + 2Mb", false,
     [](const TextbookSetting& s) { return 2 * L(s) * s.latency_s + 2 * Dense(s); }},
    {"recursive doubling", "L(a + Mb)", false,
     [](const TextbookSetting& s) { return L(s) * (s.latency_s + Dense(s)); }},
    {"halving and doubling", "2La + 2(N-1)/N Mb", false,
     [](const TextbookSetting& s) {
       return 2 * L(s) * s.latency_s + 2 * (N(s) - 1) / N(s) * Dense(s);
     }},
    {"sparse all-gather", "La + 2(N-1)Mcb", true,
     [](const TextbookSetting& s) { return L(s) * s.latency_s + 2 * (N(s) - 1) * Kept(s); }},
    {"ring all-gather", "(N-1)(a + 2Mcb)", true,
     [](const TextbookSetting& s) { return (N(s) - 1) * (s.latency_s + 2 * Kept(s)); }},
    {"AR-Topk, ring", "(2(N-1)+L)a + (2(N-1)/N+L)Mcb", true,
     [](const TextbookSetting& s) {
       return (2 * (N(s) - 1) + L(s)) * s.latency_s + (2 * (N(s) - 1) / N(s) + L(s)) * Kept(s);
     }},
    {"AR-Topk, tree", "3La + 3LMcb", true,
     [](const TextbookSetting& s) { return 3 * L(s) * (s.latency_s + Kept(s)); }},
}};

}  // namespace

std::span<const TextbookCost> TextbookCosts() { return kCosts; }

double TextbookSeconds(const std::string& name, const TextbookSetting& setting) {
  for (const TextbookCost& cost : kCosts) {
    if (cost.name == name) return cost.seconds(setting);
  }
  WEIR_CHECK(false);
  return 0;
}

std::optional<double> CrossoverCoefficient(Crossover crossover, int world) {
  const double n = world, levels = CeilLog2(world);
  switch (crossover) {
    case Crossover::kRingOverTree:
      if (n - 1 <= levels) return std::nullopt;
      return (levels - (n - 1) / n) / (n - 1 - levels);
    case Crossover::kRingOverAllGather:
      return 1 - 1 / n - levels / (2 * (n - 1));
    case Crossover::kTreeOverAllGather:
      return (n - 1) / levels - 1.5;
  }
  return std::nullopt;
}

}  // namespace weir
