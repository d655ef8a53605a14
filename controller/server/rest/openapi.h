// SPDX-License-Identifier: Apache-2.0
#pragma once
// The OpenAPI 3 document, made from the table of routes and the messages' own descriptors.

#include <string>

namespace weir {

/// JSON. Deterministic.
std::string OpenApiDocument(const std::string& version);

}  // namespace weir
