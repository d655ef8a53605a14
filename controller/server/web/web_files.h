// SPDX-License-Identifier: Apache-2.0
#pragma once
// The web page's files, compiled into the binary, so that the controller needs no other files and
// no other network.

#include <span>
#include <string_view>

namespace weir {

struct WebFile {
  std::string_view path;  // "/index.html"
  std::string_view mime_type;
  std::string_view etag;  // quoted, of the bytes
  std::span<const unsigned char> bytes;
};

/// Everything below dashboards/web/dist at build time.
std::span<const WebFile> WebFiles();

}  // namespace weir
