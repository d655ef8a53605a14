// SPDX-License-Identifier: Apache-2.0
#include "agent/nccl_bridge.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "agent/rank_json.h"
#include "datapath/base/log.h"

namespace weir::agent {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr size_t kCommunicatorsMax = 64;
constexpr size_t kTableBytesMax = 256 << 10;

size_t FunctionIndex(const std::string& name) {
  const auto* const found = std::find(kNcclFunctions.begin(), kNcclFunctions.end(), name);
  return std::min<size_t>(found - kNcclFunctions.begin(), kNcclFunctions.size() - 1);
}

size_t SizeIndex(uint32_t size_class) {
  if (size_class < 16) return 0;
  if (size_class < 20) return 1;
  return size_class < 24 ? 2 : 3;
}

uint64_t Grown(uint64_t before, uint64_t now) { return now > before ? now - before : 0; }

double Grown(double before, double now) {
  return std::isfinite(now) && std::isfinite(before) && now > before ? now - before : 0;
}

void AddWaits(NcclTotals& totals, const v1::NcclTransfers& before, const v1::NcclTransfers& now) {
  totals.wait_s[0] += Grown(before.own_gpu_s(), now.own_gpu_s());
  totals.wait_s[1] += Grown(before.peer_s(), now.peer_s());
  totals.wait_s[2] += Grown(before.wire_s(), now.wire_s());
  totals.wait_s[3] += Grown(before.arrival_s(), now.arrival_s());
}

}  // namespace

bool NcclBridge::OnReport(ConnectionId connection, const v1::NcclReport& report) {
  const auto [place, is_first] = processes_.try_emplace(connection);
  Process& process = place->second;
  if (report.has_profile()) {
    AddProfile(process, report.profile());
    return is_first;
  }
  const bool was_steered = std::exchange(process.agent_steers, report.agent_steers());
  AddTuners(process, report);
  return is_first || (!was_steered && process.agent_steers);
}

void NcclBridge::AddTuners(Process& process, const v1::NcclReport& report) {
  std::map<std::string, v1::NcclTuner> tuners;
  std::map<std::string, int> ranks_of;  // one process may be several ranks of a communicator
  for (const v1::NcclTuner& tuner : report.tuners()) {
    if (tuners.size() == kCommunicatorsMax) break;
    const std::string key = StrCat(tuner.communicator(), " ", ranks_of[tuner.communicator()]++);
    const v1::NcclTuner& before = process.tuners[key];
    sums_.calls += Grown(before.calls(), tuner.calls());
    sums_.steered_calls += Grown(before.steered(), tuner.steered());
    sums_.refused_calls += Grown(before.refused(), tuner.refused());
    tuners[key] = tuner;
  }
  process.tuners = std::move(tuners);
  process.refuses_table = !report.table_error().empty();
}

void NcclBridge::AddProfile(Process& process, const v1::NcclProfile& profile) {
  const std::string key = StrCat(profile.communicator(), " ", profile.rank());
  if (!process.profiles.contains(key) && process.profiles.size() == kCommunicatorsMax) {
    process.profiles.erase(process.profiles.begin());
  }
  v1::NcclProfile& last = process.profiles[key];
  std::map<std::pair<std::string, uint32_t>, const v1::NcclSums*> former;
  for (const v1::NcclSums& sums : last.sums()) former[{sums.function(), sums.size_class()}] = &sums;
  for (const v1::NcclSums& sums : profile.sums()) {
    const auto found = former.find({sums.function(), sums.size_class()});
    const v1::NcclSums& before =
        found == former.end() ? v1::NcclSums::default_instance() : *found->second;
    NcclTotals& totals =
        sums_.totals[{FunctionIndex(sums.function()), SizeIndex(sums.size_class())}];
    totals.operations += Grown(before.operations(), sums.operations());
    totals.sent_bytes += Grown(before.sent().bytes(), sums.sent().bytes());
    AddWaits(totals, before.sent(), sums.sent());
    AddWaits(totals, before.received(), sums.received());
  }
  last = profile;
}

bool NcclBridge::Reload() {
  if (table_file_.empty()) return false;
  std::ifstream file(table_file_, std::ios::binary);
  std::string text(kTableBytesMax + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text == table_text_ && table_.has_value() && table_error_.empty()) return false;
  StatusOr<v1::NcclTable> table =
      text.empty() ? NotFound("it is empty or cannot be read") : ParseNcclTable(text);
  if (!table.ok()) {
    if (std::exchange(table_error_, Message(table.status())) != table_error_) {
      Log(LogLevel::kError, "agent",
          StrCat("the NCCL table ", table_file_, " is not used: ", table_error_));
    }
    return false;
  }
  table_error_.clear();
  const bool is_new = text != table_text_ || !table_.has_value();
  table_text_ = std::move(text);
  table_ = *std::move(table);
  return is_new;
}

bool NcclBridge::OnControllerTable(const v1::NcclTable& table) {
  if (!table_file_.empty()) return false;
  if (table_.has_value() && MessageDifferencer::Equals(*table_, table)) return false;
  table_ = table;
  return true;
}

const v1::NcclTable* NcclBridge::TableFor(ConnectionId connection) const {
  const auto process = processes_.find(connection);
  if (!table_.has_value() || process == processes_.end()) return nullptr;
  return table_->rules_size() > 0 || process->second.agent_steers ? &*table_ : nullptr;
}

NcclSnapshot NcclBridge::Snapshot() const {
  NcclSnapshot snapshot = sums_;
  for (const auto& [connection, process] : processes_) {
    snapshot.communicators += process.tuners.size();
    for (const auto& [key, tuner] : process.tuners) {
      snapshot.obstructed += tuner.obstacle().empty() ? 0 : 1;
    }
    snapshot.refusing += process.refuses_table ? 1 : 0;
  }
  if (!table_file_.empty()) snapshot.table = table_.has_value() && table_error_.empty();
  if (table_.has_value() && table_->rules_size() > 0) {
    snapshot.table_source = table_file_.empty() ? "controller" : "file";
  }
  return snapshot;
}

std::optional<v1::NcclSummary> NcclBridge::Summary() const {
  const NcclSnapshot snapshot = Snapshot();
  if (processes_.empty() && snapshot.calls == 0 && snapshot.totals.empty()) return std::nullopt;
  NcclTotals sum;
  for (const auto& [place, totals] : snapshot.totals) {
    sum.operations += totals.operations;
    sum.sent_bytes += totals.sent_bytes;
    for (size_t i = 0; i < sum.wait_s.size(); ++i) sum.wait_s[i] += totals.wait_s[i];
  }
  v1::NcclSummary summary;
  summary.set_communicators(static_cast<uint32_t>(snapshot.communicators));
  summary.set_obstructed(static_cast<uint32_t>(snapshot.obstructed));
  summary.set_calls(snapshot.calls);
  summary.set_steered_calls(snapshot.steered_calls);
  summary.set_sampled_operations(sum.operations);
  summary.set_sampled_sent_bytes(sum.sent_bytes);
  summary.set_own_gpu_s(sum.wait_s[0]);
  summary.set_peer_s(sum.wait_s[1]);
  summary.set_wire_s(sum.wait_s[2]);
  summary.set_arrival_s(sum.wait_s[3]);
  summary.set_table_source(snapshot.table_source);
  summary.set_refusing(static_cast<uint32_t>(snapshot.refusing));
  return summary;
}

StatusOr<v1::NcclTable> ParseNcclTable(std::string_view json) {
  if (json.size() > kTableBytesMax) {
    return InvalidArgument(StrCat("expected at most ", kTableBytesMax, " bytes"));
  }
  WEIR_RETURN_IF_ERROR(CheckJsonDepth(json, kJsonDepthMax));
  v1::NcclTable table;
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), &table);
  if (!status.ok()) {
    return InvalidArgument(StrCat("not a table in JSON: ", status.message().ToString()));
  }
  return table;
}

}  // namespace weir::agent
