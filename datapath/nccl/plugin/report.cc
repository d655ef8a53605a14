// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/plugin/report.h"

#include "datapath/base/json.h"

namespace weir::nccl::plugin {
namespace {

using nlohmann::json;

json ToJson(const TransferSums& sums) {
  json result = {{"transfers", JsonUint64(sums.transfers)}, {"bytes", JsonUint64(sums.bytes)}};
  for (size_t i = 0; i < kWaits; ++i) {
    result[std::string(Name(static_cast<Wait>(i))) + "_s"] = JsonDouble(sums.wait_s[i]);
  }
  return result;
}

}  // namespace

std::string EncodeTuners(const std::vector<TunerState>& tuners, const std::string& table_error,
                         bool agent_steers) {
  json list = json::array();
  for (const TunerState& tuner : tuners) {
    list.push_back({{"communicator", Hex64(tuner.communicator)},
                    {"ranks", tuner.ranks},
                    {"nodes", tuner.nodes},
                    {"calls", JsonUint64(tuner.calls)},
                    {"steered", JsonUint64(tuner.steered)},
                    {"refused", JsonUint64(tuner.refused)},
                    {"table", Hex64(tuner.active)},
                    {"obstacle", tuner.obstacle}});
  }
  return DumpJson({{"nccl",
                    {{"tuners", std::move(list)},
                     {"table_error", table_error},
                     {"agent_steers", agent_steers}}}});
}

std::string EncodeProfile(const Profile& profile) {
  json sums = json::array();
  for (const OperationSums& entry : profile.Sums()) {
    sums.push_back({{"function", Name(entry.function)},
                    {"size_class", entry.size_class},
                    {"operations", JsonUint64(entry.operations)},
                    {"sent", ToJson(entry.sent)},
                    {"received", ToJson(entry.received)}});
  }
  const ProfileOptions& options = profile.options();
  json body = {{"communicator", Hex64(options.communicator)},
               {"name", options.name},
               {"ranks", options.ranks},
               {"nodes", options.nodes},
               {"rank", options.rank},
               {"operations", JsonUint64(profile.operations())},
               {"dropped", JsonUint64(profile.dropped())},
               {"sample_every", options.sample_every},
               {"sums", std::move(sums)}};
  return DumpJson({{"nccl", {{"profile", std::move(body)}}}});
}

}  // namespace weir::nccl::plugin
