// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/machine.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "datapath/base/status.h"

namespace weir::cli {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;
constexpr uint64_t kMebibyte = 1u << 20;
constexpr uint16_t kProbePort = 7446;            // weir-agent's default
constexpr uint64_t kReceiveBufferMin = 4 << 20;  // weir-aggregator asks for 8 MiB, each way
constexpr uint64_t kOpenFilesMin = 4096;    // a rank of a large world has a descriptor per peer
constexpr uint64_t kMemlockMin = 1u << 30;  // adapters pin what they send

uint64_t SoftLimit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

uint64_t NumberIn(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  file >> value;
  return value;
}

bool HasUdpSegments() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int bytes = 1400, yes = 1;
  const bool found = setsockopt(fd, SOL_UDP, UDP_SEGMENT, &bytes, sizeof(bytes)) == 0 &&
                     setsockopt(fd, SOL_UDP, UDP_GRO, &yes, sizeof(yes)) == 0;
  close(fd);
  return found;
}

// As the transport makes it: a sealed file without a name.
std::string SharedMemoryError() {
  const int fd = memfd_create("weir-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return std::strerror(errno);
  const bool works = ftruncate(fd, kMebibyte) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  const std::string error = works ? "" : std::strerror(errno);
  close(fd);
  return error;
}

// A child that reads this process: Yama lets ancestors read descendants, which ranks are not to
// each other.
std::string PeerMemoryError() {
  const pid_t self = getpid();
  uint64_t there = 1;
  const pid_t child = fork();
  if (child < 0) return std::strerror(errno);
  if (child == 0) {
    uint64_t here = 0;
    const iovec to = {&here, sizeof here}, from = {&there, sizeof there};
    _exit(process_vm_readv(self, &to, 1, &from, 1, 0) == ssize_t{sizeof here} ? 0 : errno);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return "its child did not say";
  return WEXITSTATUS(status) == 0 ? "" : std::strerror(WEXITSTATUS(status));
}

std::string ConnectError(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return "its path is too long for a socket";
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return std::strerror(errno);
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const std::string error = connected ? "" : std::strerror(errno);
  close(fd);
  return error;
}

bool PortTaken(int type, uint16_t port) {
  const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int yes = 1;  // for TCP: what old connections left does not count; for UDP it would share
  if (type == SOCK_STREAM) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const bool taken = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0;
  close(fd);
  return taken;
}

// The version that the file gives itself, or why it cannot be loaded.
std::string VersionOf(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return StrCat("cannot be loaded: ", dlerror());
  const auto version = reinterpret_cast<const char* (*)()>(dlsym(library, "weir_version"));
  // Not closed again: it may have started threads, and the process ends soon.
  return version == nullptr ? "has no weir_version" : version();
}

std::map<std::string, std::string> FindLibraries() {
  std::vector<std::filesystem::path> places;
  if (const char* named = std::getenv("WEIR_LIBRARY"); named != nullptr) places.emplace_back(named);
  std::string path = "/usr/local/lib:/usr/lib:/usr/lib/" WEIR_LIBRARY_ARCHITECTURE;
  if (const char* more = std::getenv("LD_LIBRARY_PATH"); more != nullptr) path += StrCat(":", more);
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::filesystem::path directory = path.substr(begin, end - begin);
    for (const char* name : {"libweir.so", "libweir.so.0"}) {
      if (!directory.empty()) places.push_back(directory / name);
    }
    begin = end + 1;
  }
  std::map<std::string, std::string> found;
  for (const std::filesystem::path& place : places) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(place, error);
    if (!error && !found.contains(real.string())) found[real.string()] = VersionOf(real.string());
  }
  return found;
}

std::string Mebibytes(uint64_t bytes) {
  return bytes == kNoLimit ? "unlimited" : StrCat(bytes / kMebibyte, " MiB");
}

Finding JudgeLibraries(const MachineFacts& facts, const std::string& version) {
  if (facts.libraries.empty()) {
    return {Verdict::kWarn, "no libweir.so where programs look for it",
            "install python3-weir or libweir0, or set WEIR_LIBRARY to a built one"};
  }
  std::set<std::string> versions;
  std::string all;
  for (const auto& [path, found] : facts.libraries) {
    versions.insert(found);
    all += StrCat(all.empty() ? "" : ", ", path, " (", found, ")");
  }
  if (versions.size() == 1 && versions.contains(version)) {
    return {Verdict::kOk, StrCat("libweir: ", all)};
  }
  const std::string fix = "remove all but one, or name one in WEIR_LIBRARY and rebuild what is old";
  if (versions.size() > 1) return {Verdict::kFail, StrCat("several libweir clash: ", all), fix};
  return {Verdict::kWarn, StrCat("libweir is not of weirctl's version ", version, ": ", all),
          "upgrade the older of the two"};
}

Finding JudgeMemlock(const MachineFacts& facts) {
  const std::string text = StrCat("memory that may be locked: ", Mebibytes(facts.memlock_bytes));
  if (!facts.rdma_devices) return {Verdict::kOk, StrCat(text, " (no RDMA device needs any)")};
  if (facts.memlock_bytes >= kMemlockMin) return {Verdict::kOk, text};
  return {Verdict::kFail,
          StrCat(text, ", and the RDMA devices here want at least ", Mebibytes(kMemlockMin)),
          "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or IPC_LOCK in the pod"};
}

Finding JudgeAgent(const MachineFacts& facts) {
  if (facts.agent_error.empty()) {
    return {Verdict::kOk, StrCat("an agent accepts at ", facts.agent_socket)};
  }
  std::string fix =
      "start weir-agent on this node if ranks run here, or name its socket in WEIR_AGENT";
  if (facts.agent_error == std::strerror(EACCES)) {
    fix = "add the user to the group weir, or give weir-agent --socket-mode 0666";
  }
  return {Verdict::kWarn, StrCat("no agent at ", facts.agent_socket, ": ", facts.agent_error), fix};
}

Finding JudgeProbePort(const MachineFacts& facts) {
  const std::string port = StrCat("port ", facts.probe_port, " of agents' probes");
  const bool agent = facts.agent_error.empty();
  const bool taken = facts.probe_port_taken || facts.probe_udp_port_taken;
  if (taken && !agent) {
    const char* which = !facts.probe_port_taken      ? " (UDP)"
                        : facts.probe_udp_port_taken ? ""
                                                     : " (TCP)";
    return {Verdict::kWarn, StrCat(port, which, " is taken, and not by an agent that answers"),
            StrCat("end what listens there (ss -lp 'sport = :", facts.probe_port,
                   "'), or give weir-agent another --probe-port")};
  }
  return {Verdict::kOk, StrCat(port, taken ? " is the agent's" : " is free")};
}

}  // namespace

MachineFacts LookAtMachine() {
  MachineFacts facts;
  utsname system{};
  if (uname(&system) == 0) facts.kernel = system.release;
  facts.udp_segments = HasUdpSegments();
  facts.shared_memory_error = SharedMemoryError();
  facts.peer_memory_error = PeerMemoryError();
  facts.receive_buffer_bytes = NumberIn("/proc/sys/net/core/rmem_max");
  facts.slow_start_after_idle = NumberIn("/proc/sys/net/ipv4/tcp_slow_start_after_idle") != 0;
  facts.open_files = SoftLimit(RLIMIT_NOFILE);
  facts.memlock_bytes = SoftLimit(RLIMIT_MEMLOCK);
  std::error_code error;
  facts.rdma_devices = std::filesystem::exists("/sys/class/infiniband", error) &&
                       !std::filesystem::is_empty("/sys/class/infiniband", error);
  facts.agent_socket = "/run/weir/agent.sock";
  constexpr std::string_view kUnix = "unix:";
  if (const char* agent = std::getenv("WEIR_AGENT");
      agent != nullptr && std::string_view(agent).starts_with(kUnix)) {
    facts.agent_socket = agent + kUnix.size();
  }
  facts.agent_error = ConnectError(facts.agent_socket);
  facts.probe_port = kProbePort;
  facts.probe_port_taken = PortTaken(SOCK_STREAM, kProbePort);
  facts.probe_udp_port_taken = PortTaken(SOCK_DGRAM, kProbePort);
  facts.libraries = FindLibraries();
  return facts;
}

std::vector<Finding> JudgeMachine(const MachineFacts& facts, const std::string& version) {
  std::vector<Finding> found;
  if (facts.udp_segments) {
    found.push_back({Verdict::kOk, StrCat("kernel ", facts.kernel, " cuts and joins UDP rows")});
  } else {
    found.push_back(
        {Verdict::kWarn,
         StrCat("kernel ", facts.kernel,
                " has no UDP GSO and GRO: aggregators work and take more processor time"),
         "Linux 5.0 or later"});
  }
  if (facts.shared_memory_error.empty() && facts.peer_memory_error.empty()) {
    found.push_back({Verdict::kOk, "ranks of this machine can share memory"});
  } else if (facts.shared_memory_error.empty()) {
    found.push_back({Verdict::kWarn,
                     StrCat("ranks of this machine can share memory, but copy long payloads twice: "
                            "process_vm_readv: ",
                            facts.peer_memory_error),
                     "sysctl -w kernel.yama.ptrace_scope=0, and let the container's seccomp "
                     "profile allow process_vm_readv"});
  } else {
    found.push_back({Verdict::kWarn,
                     StrCat("ranks of this machine cannot share memory and use TCP: memfd_create: ",
                            facts.shared_memory_error),
                     "let the container's seccomp profile allow memfd_create"});
  }
  if (facts.receive_buffer_bytes >= kReceiveBufferMin) {
    found.push_back({Verdict::kOk, StrCat("socket buffers may have ",
                                          facts.receive_buffer_bytes / 1024, " KiB")});
  } else {
    found.push_back({Verdict::kWarn,
                     StrCat("socket buffers may have ", facts.receive_buffer_bytes / 1024,
                            " KiB only: bursts to aggregators are lost and sent again"),
                     "sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216"});
  }
  if (facts.slow_start_after_idle) {
    found.push_back({Verdict::kWarn,
                     "TCP connections begin again with ten packets after each pause between steps, "
                     "which costs round trips on long links",
                     "sysctl -w net.ipv4.tcp_slow_start_after_idle=0"});
  } else {
    found.push_back({Verdict::kOk, "TCP connections keep their window between steps"});
  }
  if (facts.open_files >= kOpenFilesMin) {
    found.push_back({Verdict::kOk, "enough files may be open"});
  } else {
    found.push_back({Verdict::kWarn,
                     StrCat("only ", facts.open_files,
                            " files may be open: worlds of more ranks "
                            "than about half of that cannot connect"),
                     "ulimit -n 65536, or LimitNOFILE= in the unit"});
  }
  found.push_back(JudgeMemlock(facts));
  found.push_back(JudgeAgent(facts));
  found.push_back(JudgeProbePort(facts));
  found.push_back(JudgeLibraries(facts, version));
  return found;
}

}  // namespace weir::cli
