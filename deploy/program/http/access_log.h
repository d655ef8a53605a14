// SPDX-License-Identifier: Apache-2.0
#pragma once
// One line for every answered request, and the ids by which a request is found again in the answer,
// the log and the audit trail.

#include <cstdint>
#include <string>
#include <string_view>

#include "datapath/base/clock.h"
#include "datapath/base/log_limit.h"

namespace weir {

/// `given` if it is an id: 1 to 64 letters, digits, '.', '_' or '-'. Otherwise a new one, 32
/// hexadecimal digits. Thread-safe.
std::string TakeRequestId(std::string_view given);

/// An answered request.
struct AccessRecord {
  std::string_view protocol = {};  // "http" or "grpc"
  std::string_view method = {};    // "GET"; of gRPC the method's name, "Pin"
  std::string_view target = {};  // path and query; of gRPC what the request is about, may be empty
  std::string_view peer = {};    // address without port
  std::string_view principal = {};  // empty: nobody known
  std::string_view request_id = {};
  std::string outcome = {};  // "200"; of gRPC "OK"
  uint64_t bytes = 0;        // of the answer; 0 where they are not counted
  Duration duration{};       // from the first byte of the request to the last of the answer
};

/// Thread-safe.
class AccessLog {
 public:
  /// Lines in a window of LogLimit. Beyond, they are counted, so that requests cannot fill a disk.
  static constexpr int kLinesMax = 2000;
  static constexpr size_t kTargetBytesMax = 300;  // of a target; the rest is cut off

  explicit AccessLog(const Clock& clock = RealClock()) : lines_(clock, kLinesMax) {}

  void Add(const AccessRecord& record);

 private:
  LogLimit lines_;
};

}  // namespace weir
