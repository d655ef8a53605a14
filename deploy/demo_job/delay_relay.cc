// SPDX-License-Identifier: Apache-2.0
// Holds forwarded packets for a fixed time and drops some, where the kernel has no netem: the
// emulator's delay and loss.
//
// Packets stay in the kernel. NFQUEUE hands over their ids in arrival order; this process only
// times the verdicts, one batched verdict per wake-up, so that a few thousand packets a second cost
// a few per cent of a core. A packet is due at its arrival plus the delay *now in force*: a shorter
// delay releases the waiting packets at once and never reorders them. A drop removes one unit that
// the kernel hands over: one segment, or several that it has not cut yet (the emulator bounds
// these). A generator with a fixed seed chooses the units.
//
//   weir-delay-relay --queue 1 --delay-us 0 [--lead-us N]
//
// Commands on standard input, one per line, each answered by one line on standard output:
//   delay MICROSECONDS   ->  "ok"
//   loss MILLIONTHS      ->  "ok"
//   stats                ->  {"packets":N,"dropped":N,"waiting":N,"late_us_p50":X,"late_us_p99":X}
// End of input ends the process, so that it does not outlive the emulator.
#include <arpa/inet.h>
#include <libmnl/libmnl.h>
#include <libnetfilter_queue/libnetfilter_queue.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int64_t kNanosecondsPerMicrosecond = 1000;
constexpr int64_t kNanosecondsPerSecond = 1000000000;
constexpr uint32_t kQueuedPacketsMax = 100000;
constexpr int64_t kMillion = 1000000;
constexpr size_t kReceiveBytes = 64 << 10;
constexpr size_t kLatenessSamplesMax = 4096;
constexpr int kCalibrationSleeps = 100;
// The time from the verdict to the packet's arrival at the next hop, and from the packet to this
// process. It was measured on a two-core virtual machine as the remainder after the wake-up's own
// lateness.
constexpr int64_t kPathNanoseconds = 20 * kNanosecondsPerMicrosecond;
// At most this much of a delay is taken off in advance; a busy machine must not halve short delays.
constexpr int64_t kLeadNanosecondsMax = 120 * kNanosecondsPerMicrosecond;

int64_t NowNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNanosecondsPerSecond + now.tv_nsec;
}

struct Options {
  uint16_t queue = 1;
  int64_t delay_ns = 0;
  int64_t lead_ns = -1;  // negative: calibrate
};

// The lateness of a sleep of 1 ms on this machine: the median of kCalibrationSleeps.
int64_t WakeUpLateness() {
  std::vector<int64_t> late;
  for (int i = 0; i < kCalibrationSleeps; ++i) {
    const timespec pause = {0, 1000000};
    const int64_t begin = NowNanoseconds();
    ppoll(nullptr, 0, &pause, nullptr);
    late.push_back(NowNanoseconds() - begin - pause.tv_nsec);
  }
  std::nth_element(late.begin(), late.begin() + late.size() / 2, late.end());
  return std::max<int64_t>(0, late[late.size() / 2]);
}

class Relay {
 public:
  explicit Relay(const Options& options)
      : queue_(options.queue), delay_ns_(options.delay_ns), lead_ns_(options.lead_ns) {}
  ~Relay() {
    if (socket_ != nullptr) mnl_socket_close(socket_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Binds the queue. Returns false, with a message on standard error, if the kernel refuses.
  bool Open() {
    socket_ = mnl_socket_open(NETLINK_NETFILTER);
    if (socket_ == nullptr || mnl_socket_bind(socket_, 0, MNL_SOCKET_AUTOPID) < 0) {
      return Fail("cannot open a netfilter socket");
    }
    const int on = 1;
    mnl_socket_setsockopt(socket_, NETLINK_NO_ENOBUFS, const_cast<int*>(&on), sizeof on);
    if (!Configure()) return Fail("cannot bind the packet queue");
    if (lead_ns_ < 0) {
      lead_ns_ = std::min(WakeUpLateness() + kPathNanoseconds, kLeadNanosecondsMax);
    }
    return true;
  }

  // Serves packets and commands until the end of input. Returns the exit status.
  int Run() {
    printf("ready lead_us=%.1f\n", double(lead_ns_) / kNanosecondsPerMicrosecond);
    fflush(stdout);
    std::array<pollfd, 2> events = {pollfd{mnl_socket_get_fd(socket_), POLLIN, 0},
                                    pollfd{STDIN_FILENO, POLLIN, 0}};
    for (;;) {
      timespec wait;
      const int ready = ppoll(events.data(), events.size(), Wait(&wait), nullptr);
      if (ready < 0 && errno != EINTR) return Fail("cannot wait for packets"), 1;
      if (ready > 0 && events[0].revents != 0) Receive();
      if (ready > 0 && events[1].revents != 0 && !ReadCommands()) break;
      Release();
    }
    delay_ns_ = 0;  // nothing stays in the queue
    Release();
    return 0;
  }

 private:
  struct Waiting {
    int64_t arrival_ns;
    uint32_t id;
  };

  static bool Fail(const char* what) {
    fprintf(stderr, "weir-delay-relay: %s: %s\n", what, strerror(errno));
    return false;
  }

  bool Send(nlmsghdr* message) {
    return mnl_socket_sendto(socket_, message, message->nlmsg_len) >= 0;
  }

  bool Configure() {
    std::array<char, 4096> buffer;
    nlmsghdr* message = nfq_nlmsg_put(buffer.data(), NFQNL_MSG_CONFIG, queue_);
    nfq_nlmsg_cfg_put_cmd(message, AF_INET, NFQNL_CFG_CMD_BIND);
    if (!Send(message)) return false;
    message = nfq_nlmsg_put(buffer.data(), NFQNL_MSG_CONFIG, queue_);
    message->nlmsg_flags |= NLM_F_ACK;
    nfq_nlmsg_cfg_put_params(message, NFQNL_COPY_META, 0);
    mnl_attr_put_u32(message, NFQA_CFG_FLAGS, htonl(NFQA_CFG_F_GSO));
    mnl_attr_put_u32(message, NFQA_CFG_MASK, htonl(NFQA_CFG_F_GSO));
    mnl_attr_put_u32(message, NFQA_CFG_QUEUE_MAXLEN, htonl(kQueuedPacketsMax));
    if (!Send(message)) return false;
    const ssize_t got = mnl_socket_recvfrom(socket_, buffer.data(), buffer.size());
    return got >= 0 && mnl_cb_run(buffer.data(), size_t(got), 0, mnl_socket_get_portid(socket_),
                                  nullptr, nullptr) >= 0;
  }

  int64_t DueNanoseconds(const Waiting& packet) const {
    return packet.arrival_ns + std::max<int64_t>(0, delay_ns_ - lead_ns_);
  }

  timespec* Wait(timespec* wait) const {
    if (waiting_.empty()) return nullptr;
    // The lead already covers a late wake-up, so the sleep itself aims at the due time.
    const int64_t left = std::max<int64_t>(0, DueNanoseconds(waiting_.front()) - NowNanoseconds());
    wait->tv_sec = left / kNanosecondsPerSecond;
    wait->tv_nsec = left % kNanosecondsPerSecond;
    return wait;
  }

  static int OnMessage(const nlmsghdr* message, void* self) {
    std::array<nlattr*, NFQA_MAX + 1> attributes = {};
    if (nfq_nlmsg_parse(message, attributes.data()) < 0) return MNL_CB_ERROR;
    const nlattr* header = attributes[NFQA_PACKET_HDR];
    if (header == nullptr) return MNL_CB_OK;
    const auto* packet = static_cast<const nfqnl_msg_packet_hdr*>(mnl_attr_get_payload(header));
    Relay* relay = static_cast<Relay*>(self);
    ++relay->packets_;
    const uint32_t id = ntohl(packet->packet_id);
    const bool lost = relay->loss_millionths_ > 0 &&
                      int64_t(relay->random_() % kMillion) < relay->loss_millionths_;
    if (lost) {
      relay->Drop(id);
    } else {
      relay->waiting_.push_back({relay->now_ns_, id});
    }
    return MNL_CB_OK;
  }

  void Drop(uint32_t id) {
    ++dropped_;
    std::array<char, 256> buffer;
    nlmsghdr* message = nfq_nlmsg_put(buffer.data(), NFQNL_MSG_VERDICT, queue_);
    nfq_nlmsg_verdict_put(message, int(id), NF_DROP);
    if (!Send(message)) Fail("cannot send a verdict");
  }

  void Receive() {
    alignas(nlmsghdr) static char buffer[kReceiveBytes];
    for (;;) {
      const ssize_t got = recv(mnl_socket_get_fd(socket_), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got <= 0) return;
      now_ns_ = NowNanoseconds();
      mnl_cb_run(buffer, size_t(got), 0, mnl_socket_get_portid(socket_), OnMessage, this);
    }
  }

  void Release() {
    const int64_t now = NowNanoseconds();
    bool any = false;
    uint32_t last = 0;
    while (!waiting_.empty() && DueNanoseconds(waiting_.front()) <= now) {
      Record(now - waiting_.front().arrival_ns - delay_ns_);
      last = waiting_.front().id;
      any = true;
      waiting_.pop_front();
    }
    if (!any) return;
    std::array<char, 256> buffer;
    nlmsghdr* message = nfq_nlmsg_put(buffer.data(), NFQNL_MSG_VERDICT_BATCH, queue_);
    nfq_nlmsg_verdict_put(message, int(last), NF_ACCEPT);
    if (!Send(message)) Fail("cannot send a verdict");
  }

  void Record(int64_t late_ns) {
    if (late_.size() < kLatenessSamplesMax) {
      late_.push_back(late_ns);
    } else {
      late_[packets_ % kLatenessSamplesMax] = late_ns;
    }
  }

  // Returns false at the end of input.
  bool ReadCommands() {
    std::array<char, 256> chunk;
    const ssize_t got = read(STDIN_FILENO, chunk.data(), chunk.size());
    if (got <= 0) return got < 0 && errno == EINTR;
    input_.append(chunk.data(), size_t(got));
    for (size_t end; (end = input_.find('\n')) != std::string::npos; input_.erase(0, end + 1)) {
      Answer(input_.substr(0, end));
    }
    return true;
  }

  void Answer(const std::string& command) {
    char* end = nullptr;
    if (command.rfind("delay ", 0) == 0) {
      const int64_t us = strtoll(command.c_str() + 6, &end, 10);
      if (*end == 0 && us >= 0 && us <= 10 * 1000 * 1000) {
        delay_ns_ = us * kNanosecondsPerMicrosecond;
        late_.clear();
        puts("ok");
      } else {
        puts("error: expected delay MICROSECONDS, 0 to 10000000");
      }
    } else if (command.rfind("loss ", 0) == 0) {
      const int64_t millionths = strtoll(command.c_str() + 5, &end, 10);
      if (*end == 0 && millionths >= 0 && millionths <= kMillion) {
        loss_millionths_ = millionths;
        puts("ok");
      } else {
        puts("error: expected loss MILLIONTHS, 0 to 1000000");
      }
    } else if (command == "stats") {
      std::sort(late_.begin(), late_.end());
      const auto at = [&](double q) {
        return late_.empty() ? 0.0 : double(late_[size_t(q * double(late_.size() - 1))]) / 1000.0;
      };
      printf(
          "{\"packets\":%llu,\"dropped\":%llu,\"waiting\":%zu,\"late_us_p50\":%.1f,"
          "\"late_us_p99\":%.1f}\n",
          static_cast<unsigned long long>(packets_), static_cast<unsigned long long>(dropped_),
          waiting_.size(), at(0.5), at(0.99));
    } else {
      printf("error: unknown command '%s'; known: delay, loss, stats\n", command.c_str());
    }
    fflush(stdout);
  }

  const uint16_t queue_;
  int64_t delay_ns_;
  int64_t lead_ns_;
  mnl_socket* socket_ = nullptr;
  int64_t now_ns_ = 0;
  int64_t loss_millionths_ = 0;
  std::mt19937 random_;
  uint64_t packets_ = 0, dropped_ = 0;
  std::deque<Waiting> waiting_;
  std::vector<int64_t> late_;
  std::string input_;
};

bool ParseOptions(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    char* end = nullptr;
    const long long value = i + 1 < argc ? strtoll(argv[i + 1], &end, 10) : -1;
    if (end == nullptr || *end != 0 || value < 0) return false;
    if (name == "--queue" && value <= UINT16_MAX) {
      options->queue = uint16_t(value);
    } else if (name == "--delay-us") {
      options->delay_ns = value * kNanosecondsPerMicrosecond;
    } else if (name == "--lead-us") {
      options->lead_ns = value * kNanosecondsPerMicrosecond;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    fprintf(stderr, "usage: %s [--queue N] [--delay-us N] [--lead-us N]\n", argv[0]);
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 1);
  setpriority(PRIO_PROCESS, 0, -15);  // late verdicts are the emulator's error
  Relay relay(options);
  return relay.Open() ? relay.Run() : 1;
}
