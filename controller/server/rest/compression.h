// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers of the HTTP server in gzip: a level that costs little for answers that are made each
// time, the best one for files that are compressed once.

#include <string>
#include <string_view>

namespace weir {

inline constexpr int kGzipFast = 1, kGzipBest = 9;
/// Below this a body and its headers fit into a packet or two, and compression gains nothing.
inline constexpr size_t kGzipBytesMin = 1400;

/// Whether the value of an Accept-Encoding header allows gzip: named, or "*", with a quality above
/// 0. Thread-safe.
bool AcceptsGzip(std::string_view accept_encoding);

/// `bytes` in gzip's format (RFC 1952), the same bytes for the same input and release of zlib.
/// level: 1 to 9. Thread-safe. O(n).
std::string Gzip(std::string_view bytes, int level);

}  // namespace weir
