// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/options.h"

#include <array>
#include <charconv>
#include <limits>
#include <set>
#include <string>

namespace weir {
namespace {

// An integer and the unit that follows it.
struct Quantity {
  uint64_t number = 0;
  std::string_view unit;
};

std::optional<Quantity> ParseQuantity(std::string_view text) {
  Quantity quantity;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, quantity.number);
  if (error != std::errc()) return std::nullopt;
  quantity.unit = text.substr(static_cast<size_t>(rest - text.data()));
  return quantity;
}

std::string ValidKeys(const TransportTraits& traits) {
  std::string valid;
  for (const TransportOption& option : traits.options) {
    valid += StrCat(valid.empty() ? "" : ", ", option.key);
  }
  return valid.empty() ? "none" : valid;
}

const TransportOption* Find(const TransportTraits& traits, std::string_view key) {
  for (const TransportOption& option : traits.options) {
    if (option.key == key) return &option;
  }
  return nullptr;
}

Status ParseOption(const TransportTraits& traits, std::string_view setting,
                   std::set<std::string_view>* seen, TransportOptions* options) {
  const size_t equals = setting.find('=');
  if (equals == std::string_view::npos) {
    return InvalidArgument(StrCat("transport ", traits.name, ": expected KEY=VALUE, found '",
                                  setting, "'; valid: ", ValidKeys(traits)));
  }
  const std::string_view key = setting.substr(0, equals), value = setting.substr(equals + 1);
  const TransportOption* const option = Find(traits, key);
  if (option == nullptr) {
    return NotFound(StrCat("transport ", traits.name, ": unknown option '", key,
                           "'; valid: ", ValidKeys(traits)));
  }
  if (!seen->insert(key).second) {
    return InvalidArgument(StrCat("transport ", traits.name, ": ", key, ": given twice"));
  }
  if (option->parse(value, options)) return OkStatus();
  return InvalidArgument(StrCat("transport ", traits.name, ": ", key, ": expected ",
                                option->expected, ", found '", value,
                                "'; valid: ", ValidKeys(traits)));
}

}  // namespace

StatusOr<const TransportFactory*> ParseTransport(std::string_view text, TransportOptions* options) {
  const size_t colon = text.find(':');
  WEIR_ASSIGN_OR_RETURN(const TransportFactory* const factory,
                        Transports().Find(text.substr(0, colon)));
  if (colon == std::string_view::npos) return factory;
  TransportOptions parsed = *options;
  std::set<std::string_view> seen;
  for (std::string_view rest = text.substr(colon + 1);;) {
    const size_t comma = rest.find(',');
    WEIR_RETURN_IF_ERROR(ParseOption(factory->Traits(), rest.substr(0, comma), &seen, &parsed));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  *options = std::move(parsed);
  return factory;
}

std::optional<uint64_t> ParseCount(std::string_view text, uint64_t min, uint64_t max) {
  const std::optional<Quantity> found = ParseQuantity(text);
  if (!found || !found->unit.empty() || found->number < min || found->number > max) {
    return std::nullopt;
  }
  return found->number;
}

std::optional<uint64_t> ParseBytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    uint64_t bytes;
  };
  constexpr std::array<Unit, 7> kUnits = {{{"", 1},
                                           {"K", 1000},
                                           {"M", 1000 * 1000},
                                           {"G", 1000 * 1000 * 1000},
                                           {"Ki", 1 << 10},
                                           {"Mi", 1 << 20},
                                           {"Gi", 1 << 30}}};
  const std::optional<Quantity> found = ParseQuantity(text);
  if (!found) return std::nullopt;
  for (const Unit& unit : kUnits) {
    if (unit.name != found->unit) continue;
    if (found->number > std::numeric_limits<uint64_t>::max() / unit.bytes) return std::nullopt;
    return found->number * unit.bytes;
  }
  return std::nullopt;
}

std::optional<Duration> ParseDuration(std::string_view text) {
  constexpr uint64_t kMax = 60'000'000;  // microseconds
  const std::optional<Quantity> found = ParseQuantity(text);
  if (!found) return std::nullopt;
  const uint64_t unit_us = found->unit == "us"                         ? 1
                           : found->unit == "ms"                       ? 1000
                           : found->unit == "s"                        ? 1'000'000
                           : found->unit.empty() && found->number == 0 ? 1
                                                                       : 0;
  if (unit_us == 0 || found->number > kMax / unit_us) return std::nullopt;
  return std::chrono::microseconds(found->number * unit_us);
}

constinit const TransportOption kBusyPollOption = {
    .key = "busy_poll",
    .expected = "0..60s with unit us, ms or s",
    .meaning = "how long a wait looks again and again before it sleeps",
    .parse = [](std::string_view value, TransportOptions* options) {
      const auto time = ParseDuration(value);
      if (time) options->busy_poll = *time;
      return time.has_value();
    }};

constinit const TransportOption kNcclOption = {
    .key = "nccl",
    .expected = "on or off",
    .meaning = "ranks of a node move what is in the memory of their devices by NCCL",
    .parse = [](std::string_view value, TransportOptions* options) {
      options->nccl = value == "on";
      return options->nccl || value == "off";
    }};

}  // namespace weir
