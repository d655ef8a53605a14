// SPDX-License-Identifier: Apache-2.0
#include "controller/server/rest/compression.h"

#include <zlib.h>

#include <algorithm>
#include <cstdlib>

#include "datapath/base/check.h"

namespace weir {
namespace {

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// The quality that "gzip;q=0.5" states; 1 without.
double QualityOf(std::string_view parameters) {
  const size_t at = parameters.find("q=");
  if (at == std::string_view::npos) return 1;
  return std::strtod(std::string(parameters.substr(at + 2)).c_str(), nullptr);
}

}  // namespace

bool AcceptsGzip(std::string_view accept_encoding) {
  bool any = false;
  for (size_t begin = 0; begin < accept_encoding.size();) {
    const size_t end = std::min(accept_encoding.find(',', begin), accept_encoding.size());
    const std::string_view entry = Trimmed(accept_encoding.substr(begin, end - begin));
    const size_t semicolon = std::min(entry.find(';'), entry.size());
    const std::string_view name = Trimmed(entry.substr(0, semicolon));
    const bool wanted = QualityOf(entry.substr(semicolon)) > 0;
    if (name == "gzip" || name == "x-gzip") return wanted;
    if (name == "*") any = wanted;
    begin = end + 1;
  }
  return any;
}

std::string Gzip(std::string_view bytes, int level) {
  constexpr int kGzipWindow = 15 + 16, kMemory = 8;
  z_stream stream{};
  WEIR_CHECK(deflateInit2(&stream, level, Z_DEFLATED, kGzipWindow, kMemory, Z_DEFAULT_STRATEGY) ==
             Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  WEIR_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);  // the bound leaves room for all of it
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace weir
