// SPDX-License-Identifier: Apache-2.0
#pragma once
// Real etcd members on loopback ports of a test's own, which can be killed and stopped.

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "controller/store/etcd/etcd_client.h"
#include "tests/support/certificates.h"

namespace weir {

/// The members and their files end with this object.
class EtcdCluster {
 public:
  /// Why there can be none; empty: there can.
  static std::string WhyNot() {
    for (const char* path : {"/usr/bin/etcd", "/usr/local/bin/etcd"}) {
      if (access(path, X_OK) == 0) return "";
    }
    return "etcd is not installed (deploy/install-deps)";
  }

  /// tls: members serve TLS only, and ask clients for a certificate.
  explicit EtcdCluster(int members, bool tls = false) : tls_(tls) {
    char name[] = "/dev/shm/weir-etcd-XXXXXX";
    directory_ = mkdtemp(name);
    if (tls && !MakeCertificates(directory_, "authority", {"member", "client"})) return;
    for (int i = 0; i < 2 * members; ++i) HoldPort();
    for (const int socket : held_) close(socket);
    pids_.assign(static_cast<size_t>(members), -1);
    for (int i = 0; i < members; ++i) Start(i);
  }
  ~EtcdCluster() {
    for (size_t i = 0; i < pids_.size(); ++i) Kill(static_cast<int>(i));
    std::filesystem::remove_all(directory_);
  }
  EtcdCluster(const EtcdCluster&) = delete;
  EtcdCluster& operator=(const EtcdCluster&) = delete;

  int size() const { return static_cast<int>(pids_.size()); }
  std::string Member(int i) const { return "127.0.0.1:" + std::to_string(ClientPort(i)); }
  /// Options of a client of all members.
  EtcdOptions Options(const std::string& prefix = "/weir") const {
    EtcdOptions out;
    for (int i = 0; i < size(); ++i) out.members.push_back(Member(i));
    out.prefix = prefix;
    if (!tls_) return out;
    out.tls = true;
    out.tls_ca = directory_ + "/authority.pem";
    out.tls_cert = directory_ + "/client.pem";
    out.tls_key = directory_ + "/client.key";
    return out;
  }
  const std::string& directory() const { return directory_; }
  void Start(int i) {
    const std::string name = "m" + std::to_string(i), log = directory_ + "/" + name + ".log";
    std::string peers;
    for (int j = 0; j < size(); ++j) {
      peers += (j == 0 ? "m" : ",m") + std::to_string(j) + "=" + PeerUrl(j);
    }
    const std::string client = (tls_ ? "https://" : "http://") + Member(i);
    std::vector<std::string> words = {"etcd",
                                      "--name=" + name,
                                      "--data-dir=" + directory_ + "/" + name,
                                      "--listen-client-urls=" + client,
                                      "--advertise-client-urls=" + client,
                                      "--listen-peer-urls=" + PeerUrl(i),
                                      "--initial-advertise-peer-urls=" + PeerUrl(i),
                                      "--initial-cluster=" + peers,
                                      "--initial-cluster-token=" + directory_,
                                      "--logger=zap",
                                      "--log-level=error"};
    if (tls_) {
      words.push_back("--cert-file=" + directory_ + "/member.pem");
      words.push_back("--key-file=" + directory_ + "/member.key");
      words.push_back("--trusted-ca-file=" + directory_ + "/authority.pem");
      words.push_back("--client-cert-auth");
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // no member outlives a test that is aborted
      const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execvp("etcd", argv.data());
      _exit(127);
    }
    pids_[static_cast<size_t>(i)] = child;
  }
  void Signal(int i, int number) const {
    if (pids_[static_cast<size_t>(i)] > 0) kill(pids_[static_cast<size_t>(i)], number);
  }
  void Kill(int i) {
    pid_t& pid = pids_[static_cast<size_t>(i)];
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
  /// Waits until a quorum answers.
  Status WaitReady(Duration at_most = std::chrono::seconds(60)) const {
    EtcdClient client(Options());
    return client.Range({.key = "ready"}, RealClock().Now() + at_most).status();
  }

 private:
  int ClientPort(int i) const { return ports_[static_cast<size_t>(2 * i)]; }
  std::string PeerUrl(int i) const {
    return "http://127.0.0.1:" + std::to_string(ports_[static_cast<size_t>(2 * i + 1)]);
  }
  void HoldPort() {
    const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(held, reinterpret_cast<sockaddr*>(&address), size) != 0) return;
    getsockname(held, reinterpret_cast<sockaddr*>(&address), &size);
    ports_.push_back(ntohs(address.sin_port));
    held_.push_back(held);
  }

  const bool tls_;
  std::string directory_;
  std::vector<int> ports_, held_;
  std::vector<pid_t> pids_;
};

}  // namespace weir
