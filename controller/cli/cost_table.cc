// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/cost_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace weir::cli {
namespace {

constexpr std::array kRatios = {0.1, 0.01, 0.001};
constexpr int kPublishedWorld = 8;

// Table VI, 1 ms, milliseconds: by model and rate, for ratios 0.1, 0.01 and 0.001 each all-gather,
// AR-Topk over a ring, AR-Topk over a tree. Sizes are those of the torchvision models, except that
// the published times of ViT fit 533 MB and not its 304 M parameters.
struct TableSixRow {
  const char* model;
  double parameters;
  double gigabits_per_s;
  std::array<double, 9> published_ms;
};
constexpr std::array<TableSixRow, 12> kTableSix = {{
    {"ResNet18", 11.69e6, 10, {54, 35, 43.2, 7.66, 18.1, 12.2, 3.28, 16.7, 9}},
    {"ResNet18", 11.69e6, 5, {107.76, 52.5, 76.3, 13.83, 20.8, 16.1, 4.25, 17.9, 10.1}},
    {"ResNet18", 11.69e6, 1, {526.3, 194.7, 345.6, 51.93, 34.1, 41.9, 8.86, 19.5, 12.8}},
    {"ResNet50", 25.56e6, 10, {115.1, 52.9, 83.4, 14.35, 20.3, 15.9, 4.65, 18.1, 10}},
    {"ResNet50", 25.56e6, 5, {232, 94.7, 156.2, 28.1, 26.1, 24.2, 5.3, 17.8, 10.5}},
    {"ResNet50", 25.56e6, 1, {1148, 405.5, 745, 126.5, 58.8, 83.7, 14.35, 21, 16.1}},
    {"AlexNet", 61.1e6, 10, {271.8, 106.8, 180.4, 32.73, 25.2, 25.8, 6, 18.6, 11.1}},
    {"AlexNet", 61.1e6, 5, {544.5, 200.4, 354.8, 61.75, 34.8, 42.6, 8.92, 19.3, 13.1}},
    {"AlexNet", 61.1e6, 1, {2718.7, 964.4, 1778, 282.7, 111.8, 186.8, 31.33, 27, 27.3}},
    {"ViT", 533e6 / 4, 10, {592.77, 238.6, 401.2, 68.48, 36.2, 46.2, 9.15, 19.2, 12.9}},
    {"ViT", 533e6 / 4, 5, {1206, 424.3, 779.1, 127.45, 58, 86.2, 15.3, 21.4, 16.9}},
    {"ViT", 533e6 / 4, 1, {5973, 2047, 3852, 601.8, 222.8, 385.2, 59.68, 36.7, 44.4}},
}};
constexpr std::array kTableSixSchedules = {"sparse all-gather", "AR-Topk, ring", "AR-Topk, tree"};

// Table II, milliseconds: all-gather at 0.1 and at 0.001, dense ring. The times hold that of the
// codec, which a constant describes: 36 and 410 ms.
struct TableTwoRow {
  double parameters, latency_ms, gigabits_per_s, gather_ms, gather_sparse_ms, ring_ms;
};
constexpr std::array<TableTwoRow, 12> kTableTwo = {{
    {1e8, 10, 10, 525, 70, 716},
    {1e8, 10, 5, 976, 74, 1271},
    {1e8, 10, 1, 4568, 111, 5773},
    {1e8, 100, 10, 798, 340, 1975},
    {1e8, 100, 5, 1248, 345, 2530},
    {1e8, 100, 1, 4830, 380, 7028},
    {1e9, 10, 10, 5010, 482, 5774},
    {1e9, 10, 5, 9507, 534, 11380},
    {1e9, 10, 1, 45355, 898, 56190},
    {1e9, 100, 10, 5280, 745, 7024},
    {1e9, 100, 5, 9805, 791, 12621},
    {1e9, 100, 1, 45645, 1154, 57442},
}};

std::string Milliseconds(double ms) { return OrDash(ms * 1e-3, SecondsText); }

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", 100 * share);
  return text;
}

std::string Count(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g M", value / 1e6);
  return text;
}

double Error(const PublishedTime& entry) {
  return FormulaMilliseconds(entry) / entry.published_ms - 1;
}

const std::array<std::pair<Crossover, const char*>, 3> kCrossovers = {{
    {Crossover::kRingOverTree, "ring over tree (5a)"},
    {Crossover::kRingOverAllGather, "ring over all-gather (5b)"},
    {Crossover::kTreeOverAllGather, "tree over all-gather (5c)"},
}};
constexpr std::array kWorlds = {2, 4, 8, 16, 64};

nlohmann::ordered_json AsJson(const TextbookSetting& setting) {
  nlohmann::ordered_json document;
  for (const TextbookCost& cost : TextbookCosts()) {
    for (const double ratio : kRatios) {
      TextbookSetting at = setting;
      at.ratio = ratio;
      nlohmann::ordered_json row = {
          {"schedule", cost.name}, {"formula", cost.formula}, {"seconds", cost.seconds(at)}};
      if (cost.compressed) row["ratio"] = ratio;
      document["costs"].push_back(row);
      if (!cost.compressed) break;
    }
  }
  for (const auto& [crossover, name] : kCrossovers) {
    for (const int world : kWorlds) {
      const auto coefficient = CrossoverCoefficient(crossover, world);
      document["crossovers"].push_back(
          {{"choice", name},
           {"world", world},
           {"coefficient", coefficient ? nlohmann::ordered_json(*coefficient) : nullptr}});
    }
  }
  for (const PublishedTime& entry : PublishedTimes()) {
    document["published"].push_back({{"table", entry.table},
                                     {"model", entry.model},
                                     {"schedule", entry.schedule},
                                     {"latency_ms", entry.latency_ms},
                                     {"gigabits_per_s", entry.gigabits_per_s},
                                     {"ratio", entry.ratio},
                                     {"published_ms", entry.published_ms},
                                     {"formula_ms", FormulaMilliseconds(entry)}});
  }
  return document;
}

Table CostsTable(const TextbookSetting& setting) {
  Table table{{"SCHEDULE", "TIME", "0.1", "0.01", "0.001"}, {}};
  for (const TextbookCost& cost : TextbookCosts()) {
    std::vector<std::string> row = {cost.name, cost.formula};
    for (const double ratio : kRatios) {
      TextbookSetting at = setting;
      at.ratio = ratio;
      row.push_back(OrDash(cost.seconds(at), SecondsText));
    }
    table.rows.push_back(row);
  }
  return table;
}

Table CrossoverTable() {
  Table table{{"FASTER WHERE BANDWIDTH X LATENCY < COEFFICIENT X KEPT BYTES"}, {}};
  for (const int world : kWorlds) table.header.push_back(StrCat("N=", world));
  for (const auto& [crossover, name] : kCrossovers) {
    std::vector<std::string> row = {name};
    for (const int world : kWorlds) {
      const auto coefficient = CrossoverCoefficient(crossover, world);
      row.push_back(!coefficient        ? "always"
                    : *coefficient <= 0 ? "never"
                                        : OrDash(*coefficient, NumberText));
    }
    table.rows.push_back(row);
  }
  return table;
}

Table PublishedTable(std::string_view name) {
  Table table{{"MODEL", "LATENCY", "RATE", "RATIO", "SCHEDULE", "PUBLISHED", "FORMULA", "ERROR"},
              {}};
  for (const PublishedTime& entry : PublishedTimes()) {
    if (name != entry.table) continue;
    table.rows.push_back({entry.model, Milliseconds(entry.latency_ms),
                          StrCat(OrDash(entry.gigabits_per_s, NumberText), " Gb/s"),
                          entry.ratio < 1 ? OrDash(entry.ratio, NumberText) : "dense",
                          entry.schedule, Milliseconds(entry.published_ms),
                          Milliseconds(FormulaMilliseconds(entry)), Percent(Error(entry))});
  }
  return table;
}

std::string Summary(std::string_view name) {
  std::vector<double> errors;
  for (const PublishedTime& entry : PublishedTimes()) {
    if (name == entry.table) errors.push_back(std::abs(Error(entry)));
  }
  std::sort(errors.begin(), errors.end());
  return StrCat("median error ", Percent(errors[errors.size() / 2]).substr(1), ", largest ",
                Percent(errors.back()).substr(1));
}

}  // namespace

const std::vector<PublishedTime>& PublishedTimes() {
  static const std::vector<PublishedTime> entries = [] {
    std::vector<PublishedTime> all;
    for (const TableSixRow& row : kTableSix) {
      for (size_t i = 0; i < row.published_ms.size(); ++i) {
        all.push_back({"VI", row.model, row.parameters, kTableSixSchedules[i % 3], 1,
                       row.gigabits_per_s, kRatios[i / 3], row.published_ms[i], 0});
      }
    }
    for (const TableTwoRow& row : kTableTwo) {
      const double codec_ms = row.parameters > 5e8 ? 410 : 36;
      const char* model = row.parameters > 5e8 ? "1e9 parameters" : "1e8 parameters";
      const auto add = [&](const char* schedule, double ratio, double published_ms, double extra) {
        all.push_back({"II", model, row.parameters, schedule, row.latency_ms, row.gigabits_per_s,
                       ratio, published_ms, extra});
      };
      add("sparse all-gather", 0.1, row.gather_ms, codec_ms);
      add("sparse all-gather", 0.001, row.gather_sparse_ms, codec_ms);
      add("ring", 1, row.ring_ms, 0);
    }
    return all;
  }();
  return entries;
}

double FormulaMilliseconds(const PublishedTime& entry) {
  const TextbookSetting setting{.world = kPublishedWorld,
                                .latency_s = entry.latency_ms * 1e-3,
                                .bytes_per_s = entry.gigabits_per_s * 1e9 / 8,
                                .bytes = 4 * entry.parameters,
                                .ratio = entry.ratio};
  return 1e3 * TextbookSeconds(entry.schedule, setting) + entry.codec_ms;
}

Status PrintCostTable(const TextbookSetting& setting, Output output) {
  if (setting.world < 2 || !(setting.bytes_per_s > 0)) {
    return InvalidArgument(
        StrCat("--table: expected at least 2 ranks and a bandwidth above 0, found ", setting.world,
               " and ", setting.bytes_per_s));
  }
  if (output != Output::kTable) {
    // JSON is YAML, too.
    std::puts(AsJson(setting).dump(2).c_str());
    return OkStatus();
  }
  std::printf(
      "%d ranks, %s one way, %s per node, %s float32: time of one all-reduce by kept ratio\n",
      setting.world, OrDash(setting.latency_s, SecondsText).c_str(),
      OrDash(setting.bytes_per_s, BandwidthText).c_str(), Count(setting.bytes / 4).c_str());
  std::puts(
      "a: latency, b: seconds per byte, N: ranks, L: ceil(log2 N), M: dense bytes, c: ratio\n");
  std::fputs(Render(CostsTable(setting)).c_str(), stdout);
  std::printf("\n%s", Render(CrossoverTable()).c_str());
  for (const char* name : {"VI", "II"}) {
    std::printf("\nTable %s of Tyagi and Swany 2023, %d ranks: %s\n%s", name, kPublishedWorld,
                Summary(name).c_str(), Render(PublishedTable(name)).c_str());
  }
  return OkStatus();
}

}  // namespace weir::cli
