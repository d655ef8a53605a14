// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "controller/fleet/fleet.h"
#include "deploy/program/tls/tls_files.h"

namespace weir {

/// Prometheus text exposition of all metrics, which the README lists. `watchers`: open event
/// streams; `tls`: the state of the listeners' certificate, if there is one.
std::string MetricsText(const Fleet& fleet, size_t watchers, const std::optional<TlsHealth>& tls);

}  // namespace weir
