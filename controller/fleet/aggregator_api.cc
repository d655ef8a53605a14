// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/aggregator_api.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace weir {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameMax = 63, kHostMax = 253, kTextMax = 160;
constexpr size_t kLeasesMax = 4096, kWorkersMax = 64;

bool Plain(unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; }

StatusOr<Json> Parse(std::string_view text) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return DataLoss(StrCat("expected a JSON object, found '", text.substr(0, 60), "'"));
  }
  return json;
}

uint32_t Number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(found->get<uint64_t>(), UINT32_MAX));
}

double Real(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return 0;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::max(value, 0.0) : 0;
}

// Control characters are removed, because texts from aggregators are shown to people and logged.
std::string Text(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return "";
  std::string text = found->get_ref<const std::string&>().substr(0, kTextMax);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

void ReadWaiting(const Json& waiting, ReportedLease* lease) {
  if (!waiting.is_object()) return;
  lease->waiting_s = Real(waiting, "age_s");
  lease->waiting_slot = Number(waiting, "slot");
  const auto missing = waiting.find("missing");
  if (missing == waiting.end() || !missing->is_array()) return;
  for (const Json& worker : *missing) {
    if (!worker.is_object() || lease->missing.size() >= kWorkersMax) continue;
    lease->missing.push_back(StrCat(Number(worker, "worker"), " (", Text(worker, "address"), ")"));
  }
}

}  // namespace

StatusOr<AggregatorAddress> ParseAggregator(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return InvalidArgument(StrCat("aggregator '", text.substr(0, kTextMax), "': ", what,
                                  "; expected NAME=http(s)://HOST:PORT"));
  };
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return wrong("found no '='");
  const std::string_view name = text.substr(0, equals);
  if (name.empty() || name.size() > kNameMax || !std::all_of(name.begin(), name.end(), Plain)) {
    return wrong("the name has to be 1 to 63 letters, digits, '.', '_' or '-'");
  }
  const std::string_view url = text.substr(equals + 1);
  const size_t scheme = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : 0;
  if (scheme == 0) return wrong("found neither http:// nor https://");
  const std::string_view address = url.substr(scheme);
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return wrong("found no port");
  std::string_view host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    const bool numeric = std::all_of(host.begin(), host.end(), [](unsigned char c) {
      return std::isxdigit(c) != 0 || c == ':' || c == '.';
    });
    if (!numeric) return wrong("found no IPv6 address in the brackets");
  } else if (host.empty() || host.size() > kHostMax ||
             !std::all_of(host.begin(), host.end(), Plain)) {
    return wrong("found no host");
  }
  const std::string_view port = address.substr(colon + 1);
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0) {
    return wrong("found no port of 1 to 65535");
  }
  return AggregatorAddress{std::string(name), std::string(url)};
}

std::string HostOf(const AggregatorAddress& address) {
  const size_t begin = address.url.find("://") + 3;
  const std::string host = address.url.substr(begin, address.url.rfind(':') - begin);
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

std::string LeaseAskJson(const LeaseAsk& ask, const std::string& owner) {
  Json json{{"job", LeaseJobName(LeaseOwner(ask.job, ask.mode))},
            {"mode", ask.mode},
            {"slots", ask.slots},
            {"lanes", ask.lanes},
            {"workers", ask.workers}};
  if (ask.columns > 0) json["columns"] = ask.columns;
  if (ask.table.sum_bits > 0) {
    json["sum_bits"] = ask.table.sum_bits;
    json["levels"] = ask.table.levels;
  }
  if (ask.wish.quorum > 0) {
    json["quorum"] = ask.wish.quorum;
    json["cutoff_ms"] = ask.wish.cutoff_ms;
  }
  if (!ask.wish.checked) json["checked"] = false;
  if (!owner.empty()) json["owner"] = owner;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status ReadCapacity(std::string_view text, AggregatorReport* out) {
  WEIR_ASSIGN_OR_RETURN(const Json json, Parse(text));
  out->shards = Number(json, "shards");
  out->slots = Number(json, "slots");
  out->slots_free = Number(json, "slots_free");
  out->slots_free_of_shard = Number(json, "slots_free_of_shard");
  out->slots_per_job = Number(json, "slots_per_job");
  out->leases_free = Number(json, "leases_free");
  out->lanes_max = Number(json, "lanes_max");
  out->workers_max = Number(json, "workers_max");
  out->goodput_bits_per_s = Real(json, "goodput_bits_per_s");
  if (out->shards == 0 || out->slots_per_job == 0 || out->lanes_max == 0) {
    return DataLoss("capacity: expected shards, slots_per_job and lanes_max above 0");
  }
  return OkStatus();
}

Status ReadLeases(std::string_view text, AggregatorReport* out) {
  WEIR_ASSIGN_OR_RETURN(const Json json, Parse(text));
  const auto leases = json.find("leases");
  if (leases == json.end() || !leases->is_array()) return DataLoss("leases: expected a list");
  for (const Json& one : *leases) {
    if (!one.is_object()) return DataLoss("leases: expected objects in the list");
    if (out->leases.size() >= kLeasesMax) break;
    ReportedLease* lease = &out->leases.emplace_back();
    lease->job = Text(one, "job");
    lease->mode = Text(one, "mode");
    lease->address = Text(one, "address");
    lease->plane = Text(one, "plane");
    lease->epoch = Number(one, "epoch");
    lease->slots = Number(one, "slots");
    lease->lanes = Number(one, "lanes");
    lease->idle_s = Real(one, "idle_s");
    const auto workers = one.find("workers");
    if (workers != one.end() && workers->is_array()) {
      for (const Json& worker : *workers) {
        if (lease->workers.size() >= kWorkersMax) break;
        lease->workers.push_back(Text(Json{{"address", worker}}, "address"));
      }
    }
    if (const auto waiting = one.find("waiting"); waiting != one.end())
      ReadWaiting(*waiting, lease);
  }
  return OkStatus();
}

StatusOr<SlotGrant> ReadGrant(std::string_view text, const LeaseAsk& ask) {
  WEIR_ASSIGN_OR_RETURN(const Json json, Parse(text));
  SlotGrant lease;
  lease.collective = ask.collective;
  lease.aggregator = ask.aggregator;
  lease.address = Text(json, "address");
  lease.mode = Text(json, "mode");
  lease.id = Number(json, "lease");
  lease.epoch = Number(json, "epoch");
  lease.cookie = Text(json, "cookie");
  lease.slots = Number(json, "slots");
  lease.lanes = Number(json, "lanes");
  lease.columns = Number(json, "columns");
  lease.sum_bits = ask.table.sum_bits;
  lease.levels = ask.table.levels;
  // If the ranks' levels differed from the aggregator's, all ranks would get the same wrong sum.
  const auto levels = json.find("levels");
  const Json asked = ask.table.levels;
  if (ask.table.sum_bits > 0 && (Number(json, "sum_bits") != ask.table.sum_bits ||
                                 levels == json.end() || *levels != asked)) {
    return DataLoss(StrCat("grant: expected ", ask.table.sum_bits, " bits and levels ",
                           asked.dump(), ", found others"));
  }
  // An aggregator that waits for all ranks would still compute correct sums, but not by the
  // operator's policy.
  lease.quorum = ask.wish.quorum;
  lease.cutoff_us = ask.wish.cutoff_ms * 1000;
  if (ask.wish.quorum > 0 && (Number(json, "quorum") != ask.wish.quorum ||
                              Number(json, "cutoff_ms") != ask.wish.cutoff_ms)) {
    return DataLoss(StrCat("grant: expected a quorum of ", ask.wish.quorum, " after ",
                           ask.wish.cutoff_ms, " ms, found ", Number(json, "quorum"), " after ",
                           Number(json, "cutoff_ms"), " ms"));
  }
  // If the aggregator expects checksums, it drops all packets without one.
  lease.unchecked = !ask.wish.checked;
  if (const Json checked = json.value("checked", Json(true)); checked != ask.wish.checked) {
    return DataLoss(StrCat("grant: expected \"checked\": ", Json(ask.wish.checked).dump(),
                           ", found ",
                           checked.dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  const auto hexadecimal = [](unsigned char c) { return std::isxdigit(c) != 0; };
  const std::string& cookie = lease.cookie;
  if (cookie.size() != 16 || !std::all_of(cookie.begin(), cookie.end(), hexadecimal)) {
    // The message does not show the cookie, because it is a secret.
    return DataLoss("grant: expected a cookie of 16 hexadecimal digits");
  }
  if (lease.mode != ask.mode || lease.id == 0 || lease.id > UINT16_MAX || lease.epoch == 0 ||
      lease.slots == 0 || lease.lanes == 0 || lease.columns != ask.columns ||
      lease.address.empty()) {
    return DataLoss(StrCat("grant: expected mode ", ask.mode, " in ", ask.columns,
                           " columns and lease, epoch, slots, lanes and an address; found mode ",
                           lease.mode, ", lease ", lease.id, ", epoch ", lease.epoch, ", ",
                           lease.slots, " slots of ", lease.lanes, " lanes in ", lease.columns,
                           " columns at '", lease.address, "'"));
  }
  return lease;
}

std::string ReadRefusal(std::string_view text) {
  const auto json = Parse(text);
  if (json.ok()) {
    if (const std::string message = Text(*json, "message"); !message.empty()) return message;
  }
  return Text(Json{{"text", std::string(text.substr(0, kTextMax))}}, "text");
}

}  // namespace weir
