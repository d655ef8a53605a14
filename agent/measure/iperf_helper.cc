// SPDX-License-Identifier: Apache-2.0
#include "agent/measure/iperf_helper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>  // iperf_api.h uses uint64_t without including it
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

// Some versions warn of any compiler that does not call itself C11.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wcpp"
#include <iperf_api.h>
#pragma GCC diagnostic pop

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

namespace weir::agent {
namespace {

constexpr int kResultFd = 3;
constexpr size_t kRequestBytesMax = 4096;

bool WriteResult(const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(kResultFd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    written += static_cast<size_t>(n);
  }
  return true;
}

int Fail(const std::string& reason) {
  return WriteResult(nlohmann::json{{"error", reason}}.dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace))
             ? 0
             : 1;
}

// The request ends with a newline. The pipe stays open, as a sign that the parent is alive.
std::string ReadRequest() {
  std::string request;
  std::array<char, 512> chunk;
  while (request.size() <= kRequestBytesMax && request.find('\n') == std::string::npos) {
    const ssize_t n = read(STDIN_FILENO, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    request.append(chunk.data(), static_cast<size_t>(n));
  }
  return request;
}

void Confine() {
  signal(SIGPIPE, SIG_IGN);  // libiperf's main does this, but the library does not
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const rlimit few_files{128, 128};
  setrlimit(RLIMIT_NOFILE, &few_files);
}

// Ends the process when the parent is gone or the test has run too long. The time of a server
// begins with its client; before that the control socket is -1. The getter reads an int that the
// main thread writes; a stale value delays the end by one round.
[[noreturn]] void Watch(iperf_test* test, bool is_server, double seconds_max) {
  using SteadyClock = std::chrono::steady_clock;
  SteadyClock::time_point start = SteadyClock::now();
  while (true) {
    pollfd parent{STDIN_FILENO, 0, 0};  // POLLHUP is always reported
    if (poll(&parent, 1, 100) > 0) {
      if ((parent.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) _exit(1);
    }
    if (is_server && iperf_get_control_socket(test) < 0) start = SteadyClock::now();
    if (std::chrono::duration<double>(SteadyClock::now() - start).count() > seconds_max) {
      Fail("iperf3 test ran past its limit");
      _exit(0);
    }
  }
}

void Configure(iperf_test* test, const nlohmann::json& request, std::string& host) {
  host = request.value("host", "");
  iperf_set_test_json_output(test, 1);
  iperf_set_test_server_port(test, request.value("port", 0));
  if (request.value("role", "") == "server") {
    iperf_set_test_role(test, 's');
    if (!host.empty()) iperf_set_test_bind_address(test, host.c_str());
    return;
  }
  iperf_set_test_role(test, 'c');
  iperf_set_test_server_hostname(test, host.c_str());
  iperf_set_test_connect_timeout(test, request.value("connect_timeout_ms", 2000));
  // Both limits apply; the first one that is reached ends the test.
  iperf_set_test_bytes(test, request.value("bytes", uint64_t{0}));
  iperf_set_test_duration(test, request.value("seconds", 10));
  iperf_set_test_reverse(test, request.value("reverse", false) ? 1 : 0);
  iperf_set_test_num_streams(test, request.value("streams", 1));
}

int Run(const nlohmann::json& request) {
  iperf_test* test = iperf_new_test();
  if (test == nullptr || iperf_defaults(test) < 0) return Fail("libiperf cannot create a test");
  std::string host;
  Configure(test, request, host);
  const bool is_server = request.value("role", "") == "server";
  const double seconds_max = request.value("seconds_max", 60.0);
  // Never destroyed, because the process ends by _exit.
  static std::thread* watcher = new std::thread(Watch, test, is_server, seconds_max);
  (void)watcher;
  i_errno = IENONE;
  const int result = is_server ? iperf_run_server(test) : iperf_run_client(test);
  // For a refused connection it returns 0, and only the report has the error.
  const char* report = iperf_get_test_json_output_string(test);
  if (report != nullptr) return WriteResult(report) ? 0 : 1;
  return Fail(result < 0 && i_errno != IENONE ? iperf_strerror(i_errno)
                                              : "libiperf returned no report");
}

}  // namespace

int RunIperfHelper() {
  Confine();
  const std::string text = ReadRequest();
  const nlohmann::json request = nlohmann::json::parse(text, nullptr, false);
  int status = 1;
  if (!request.is_object()) {
    status = Fail("probe helper got no request on standard input");
  } else {
    try {
      status = Run(request);
    } catch (const nlohmann::json::exception& e) {
      status = Fail(std::string("probe helper got a malformed request: ") + e.what());
    }
  }
  _exit(status);  // libiperf and the watcher need no destructors
}

}  // namespace weir::agent
