// SPDX-License-Identifier: Apache-2.0
#pragma once
// The OpenAPI 3 document, made from the table of routes, the messages' own descriptors and the
// comments of their files.

#include <optional>
#include <string>

#include "controller/server/auth/principals.h"

namespace weir {

struct OpenApiOptions {
  std::string version = "0";
  int port = 0;                    // of the listener, which the name of its cookie has
  std::optional<Role> local = {};  // what the listener grants to callers that show nothing
};

/// JSON. Deterministic.
std::string OpenApiDocument(const OpenApiOptions& options);

}  // namespace weir
