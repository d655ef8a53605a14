// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/http/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace weir {
namespace {

using Phase = HttpConnections::Phase;

// Answers that take longer may be given up for new connections.
constexpr Duration kAnswerSoon = std::chrono::seconds(2);
constexpr size_t kReadBufferBytes = 16384;
constexpr Duration kCrowdedPause = std::chrono::seconds(1);
constexpr Duration kSparePause = std::chrono::milliseconds(10);
constexpr auto kStartPoll = std::chrono::milliseconds(1);
constexpr const char* kRequestIdHeader = "X-Request-ID";

struct Address {
  std::string ip;
  int port = 0;
};

Address AddressOf(int socket, bool of_peer) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const generic = reinterpret_cast<sockaddr*>(&storage);
  if ((of_peer ? getpeername(socket, generic, &size) : getsockname(socket, generic, &size)) != 0) {
    return {};
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return {text.data(), ntohs(v4.sin_port)};
  }
  if (storage.ss_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
  const void* const bytes = v6.sin6_addr.s6_addr + (mapped ? 12 : 0);
  inet_ntop(mapped ? AF_INET : AF_INET6, bytes, text.data(), text.size());
  return {text.data(), ntohs(v6.sin6_port)};
}

// A socket with deadlines for a whole request and a whole answer.
class DeadlineStream : public httplib::Stream {
 public:
  DeadlineStream(int socket, const HttpLimits& limits, HttpConnections& connections,
                 HttpConnections::Handle handle)
      : socket_(socket), limits_(limits), connections_(connections), handle_(handle) {
    fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
  }
  ~DeadlineStream() override {
    if (tls_ != nullptr) SSL_free(tls_);
    ERR_clear_error();
  }

  /// Waits for the next request, which has `request_max` from its first byte. `first`: of a new
  /// connection, which has it from now. False: none came.
  bool Begin(bool first) {
    const TimePoint now = RealClock().Now();
    streaming_ = answering_ = false;
    principal_.clear();
    began_ = now;
    deadline_ = now + limits_.request_max;
    connections_.Enter(handle_, first ? Phase::kReading : Phase::kIdle);
    if (first || begin_ < end_ || (tls_ != nullptr && SSL_pending(tls_) > 0)) return true;
    if (!Wait(POLLIN, now + limits_.idle_max)) return false;
    began_ = RealClock().Now();
    deadline_ = began_ + limits_.request_max;
    connections_.Enter(handle_, Phase::kReading);
    return true;
  }

  bool Handshake(SSL_CTX* context) {
    tls_ = SSL_new(context);
    if (tls_ == nullptr || SSL_set_fd(tls_, socket_) != 1) return false;
    return Repeat([this] { return SSL_accept(tls_); }, deadline_) == 1;
  }

  void KeepStreaming() {
    streaming_ = true;
    connections_.Enter(handle_, Phase::kStreaming);
  }

  void Finish() {
    if (tls_ != nullptr) SSL_shutdown(tls_);
  }

  void NameCaller(std::string principal) { principal_ = std::move(principal); }
  const std::string& principal() const { return principal_; }
  const std::string& peer() const { return handle_->peer; }
  /// When the first byte of the request came.
  TimePoint began() const { return began_; }
  uint64_t TakeSentBytes() { return std::exchange(sent_, 0); }

  bool is_readable() const override { return begin_ < end_ || Wait(POLLIN, deadline_); }
  bool is_writable() const override { return Wait(POLLOUT, RealClock().Now() + limits_.write_max); }

  ssize_t read(char* out, size_t size) override {
    if (begin_ == end_) {
      const ssize_t got = Receive();
      if (got <= 0) return got;
      begin_ = 0;
      end_ = static_cast<size_t>(got);
    }
    const size_t taken = std::min(size, end_ - begin_);
    std::memcpy(out, buffer_.data() + begin_, taken);
    begin_ += taken;
    return static_cast<ssize_t>(taken);
  }

  ssize_t write(const char* data, size_t size) override {
    const TimePoint now = RealClock().Now();
    if (!answering_) {
      answering_ = true;
      answer_end_ = now + limits_.answer_max;
      if (!streaming_) connections_.Enter(handle_, Phase::kAnswering);
    }
    const TimePoint until = now + limits_.write_max;
    const ssize_t sent = Send(data, size, streaming_ ? until : std::min(until, answer_end_));
    if (sent > 0) sent_ += static_cast<uint64_t>(sent);
    return sent;
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    const Address address = AddressOf(socket_, true);
    ip = address.ip;
    port = address.port;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    const Address address = AddressOf(socket_, false);
    ip = address.ip;
    port = address.port;
  }
  socket_t socket() const override { return socket_; }

 private:
  bool Wait(short events, TimePoint deadline) const {
    while (true) {
      const Duration left = deadline - RealClock().Now();
      if (left <= Duration(0)) return false;
      pollfd wanted{socket_, events, 0};
      const int ms =
          static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
      const int found = poll(&wanted, 1, ms + 1);
      if (found > 0) return true;
      if (found < 0 && errno != EINTR) return false;
    }
  }

  // Repeats a call of OpenSSL until it needs nothing more of the socket.
  template <typename Call>
  int Repeat(Call call, TimePoint deadline) {
    while (true) {
      ERR_clear_error();
      const int result = call();
      if (result > 0) return result;
      const int wants = SSL_get_error(tls_, result);
      if (wants == SSL_ERROR_WANT_READ || wants == SSL_ERROR_WANT_WRITE) {
        if (Wait(wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline)) continue;
      }
      return wants == SSL_ERROR_ZERO_RETURN ? 0 : -1;
    }
  }

  ssize_t Receive() {
    if (tls_ != nullptr) {
      return Repeat([this] { return SSL_read(tls_, buffer_.data(), kReadBufferBytes); }, deadline_);
    }
    while (true) {
      const ssize_t got = recv(socket_, buffer_.data(), kReadBufferBytes, 0);
      if (got >= 0) return got;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !Wait(POLLIN, deadline_)) return -1;
    }
  }

  ssize_t Send(const char* data, size_t size, TimePoint deadline) {
    if (tls_ != nullptr) {
      const int some = static_cast<int>(std::min<size_t>(size, 1u << 20));
      return Repeat([&] { return SSL_write(tls_, data, some); }, deadline);
    }
    while (true) {
      const ssize_t sent = send(socket_, data, size, MSG_NOSIGNAL);
      if (sent >= 0) return sent;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !Wait(POLLOUT, deadline)) return -1;
    }
  }

  const int socket_;
  const HttpLimits& limits_;
  HttpConnections& connections_;
  const HttpConnections::Handle handle_;
  SSL* tls_ = nullptr;
  TimePoint began_{}, deadline_{}, answer_end_{};
  std::string principal_;
  uint64_t sent_ = 0;  // of the present answer
  bool answering_ = false, streaming_ = false;
  std::array<char, kReadBufferBytes> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what was received and not yet read
};

thread_local DeadlineStream* handled_stream = nullptr;

// A thread for each connection, made when it is needed and kept. Where there are too many, `spare`
// is asked to free one.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  ConnectionThreads(size_t threads_max, std::function<bool()> spare)
      : threads_max_(threads_max), spare_(std::move(spare)) {}
  ~ConnectionThreads() override { shutdown(); }

  /// The result is void up to cpp-httplib 0.11; later versions return whether the task was
  /// accepted.
  using Accepted = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

  Accepted enqueue(std::function<void()> task) override {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
      if (tasks_.size() > idle_ && !MakeThread()) ++owed_;
      ready_.NotifyOne();
    }
    MakeRoom();
    return static_cast<Accepted>(true);
  }

  void shutdown() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      ready_.NotifyAll();
      room_.NotifyAll();
    }
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  // Frees a connection for every task that waits for one: tasks are taken in turn, so one for which
  // nothing was freed would keep all later ones waiting. A connection that a thread has only just
  // taken cannot be spared yet, so this asks again. After a while, the kernel's backlog has to hold
  // what comes next.
  void MakeRoom() {
    const TimePoint until = RealClock().Now() + kCrowdedPause;
    while (Owed() > 0) {
      const bool spared = spare_();
      MutexLock lock(mutex_);
      if (spared) {
        --owed_;
        continue;
      }
      const TimePoint now = RealClock().Now();
      if (now >= until || stopping_) return;
      (void)room_.WaitUntil(mutex_, std::min(until, now + kSparePause));
    }
  }

  size_t Owed() {
    MutexLock lock(mutex_);
    return owed_ = std::min(owed_, tasks_.size() - std::min(tasks_.size(), idle_));
  }

  bool MakeThread() WEIR_REQUIRES(mutex_) {
    if (threads_.size() >= threads_max_) return false;
    try {
      threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error&) {
      return false;  // the threads that there are must do
    }
    pthread_setname_np(threads_.back().native_handle(), "weir-http");
    return true;
  }

  void Run() {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        ++idle_;
        while (tasks_.empty() && !stopping_) ready_.Wait(mutex_);
        --idle_;
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        room_.NotifyOne();
      }
      task();
    }
  }

  const size_t threads_max_;
  const std::function<bool()> spare_;
  Mutex mutex_;
  CondVar ready_, room_;
  std::deque<std::function<void()>> tasks_ WEIR_GUARDED_BY(mutex_);
  size_t idle_ WEIR_GUARDED_BY(mutex_) = 0;
  size_t owed_ WEIR_GUARDED_BY(mutex_) = 0;  // tasks for which no thread was free, made or freed
  bool stopping_ WEIR_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // changed by the accepting thread only
};

}  // namespace

HttpConnections::Handle HttpConnections::Add(int socket, const std::string& peer) {
  MutexLock lock(mutex_);
  const auto of_peer = std::count_if(
      connections_.begin(), connections_.end(),
      [&](const Connection& each) { return each.peer == peer && each.phase != Phase::kEnding; });
  const bool crowded =
      static_cast<size_t>(of_peer) >= limits_.connections_of_peer_max && !SpareLocked(peer);
  if (crowded || ended_) shutdown(socket, SHUT_RDWR);
  return connections_.insert(connections_.end(),
                             {socket, peer, Phase::kReading, RealClock().Now()});
}

void HttpConnections::Remove(Handle connection) {
  MutexLock lock(mutex_);
  connections_.erase(connection);
}

void HttpConnections::Enter(Handle connection, Phase phase) {
  MutexLock lock(mutex_);
  if (connection->phase == Phase::kEnding) return;
  connection->phase = phase;
  connection->since = RealClock().Now();
}

bool HttpConnections::Spare(const std::string& peer) {
  MutexLock lock(mutex_);
  return SpareLocked(peer);
}

bool HttpConnections::SpareLocked(const std::string& peer) {
  const TimePoint now = RealClock().Now();
  const auto rank = [&](const Connection& each) {
    if (!peer.empty() && each.peer != peer) return 0;
    if (each.phase == Phase::kIdle) return 3;
    if (each.phase == Phase::kReading) return 2;
    return each.phase == Phase::kAnswering && now - each.since > kAnswerSoon ? 1 : 0;
  };
  Connection* spared = nullptr;
  for (Connection& each : connections_) {
    if (rank(each) == 0) continue;
    const bool better = spared == nullptr || rank(each) > rank(*spared) ||
                        (rank(each) == rank(*spared) && each.since < spared->since);
    if (better) spared = &each;
  }
  if (spared == nullptr) return false;
  spared->phase = Phase::kEnding;
  shutdown(spared->socket, SHUT_RDWR);
  return true;
}

void HttpConnections::End() {
  MutexLock lock(mutex_);
  ended_ = true;
  for (const Connection& each : connections_) shutdown(each.socket, SHUT_RDWR);
}

HttpServer::HttpServer(TlsFiles* tls, HttpLimits limits, AccessLog* access)
    : limits_(limits),
      connections_(limits),
      tls_context_(tls == nullptr ? nullptr : SSL_CTX_new(TLS_server_method()), SSL_CTX_free),
      plain_(tls == nullptr),
      access_(access) {
  if (tls_context_ != nullptr) {
    SSL_CTX_set_mode(tls_context_.get(),
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (!ServeTls(tls_context_.get(), tls)) tls_context_.reset();
  }
  new_task_queue = [this] {
    return new ConnectionThreads(limits_.connections_max,
                                 [this] { return connections_.Spare(""); });
  };
  // By default the library shares the port (SO_REUSEPORT): a second program would get half of the
  // requests without anyone noticing.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  set_tcp_nodelay(true);
  set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    response.set_header(kRequestIdHeader,
                        TakeRequestId(request.get_header_value(kRequestIdHeader)));
    return HandlerResponse::Unhandled;
  });
  if (access_ != nullptr) {
    set_logger([this](const httplib::Request& request, const httplib::Response& response) {
      LogAccess(request, response);
    });
  }
}

HttpServer::~HttpServer() { End(); }

Status HttpServer::Begin(const std::string& host, int port) {
  if (!is_valid()) return Internal("OpenSSL makes no context for a server");
  port_ = port;
  if (port == 0) {
    port_ = bind_to_any_port(host.c_str());
    if (port_ <= 0) return Unavailable(StrCat("cannot listen on ", host, " for HTTP"));
  } else if (!bind_to_port(host.c_str(), port)) {
    return Unavailable(StrCat("cannot listen on ", host, ":", port,
                              " for HTTP: the port is taken, or the address is not of this "
                              "machine"));
  }
  // The library asks for 5 waiting connections. Of more that come at once, the kernel drops some,
  // and they try again only after a second.
  if (::listen(svr_sock_, SOMAXCONN) != 0) {
    return Unavailable(StrCat("cannot listen on ", host, ":", port_, ": ", std::strerror(errno)));
  }
  thread_ = std::thread([this] {
    listen_after_bind();
    ended_ = true;
  });
  pthread_setname_np(thread_.native_handle(), "weir-accept");
  return OkStatus();
}

void HttpServer::End() {
  if (!thread_.joinable()) return;
  // The library ignores a stop that comes before its loop has begun, and would then accept for
  // ever.
  while (!is_running() && !ended_) std::this_thread::sleep_for(kStartPoll);
  stop();
  connections_.End();
  thread_.join();
}

std::string HttpServer::RequestId(const httplib::Response& response) {
  return response.get_header_value(kRequestIdHeader);
}

void HttpServer::NameCaller(std::string principal) {
  if (handled_stream != nullptr) handled_stream->NameCaller(std::move(principal));
}

void HttpServer::LogAccess(const httplib::Request& request,
                           const httplib::Response& response) const {
  if (handled_stream == nullptr) return;
  access_->Add({.protocol = "http",
                .method = request.method,
                .target = request.target,
                .peer = handled_stream->peer(),
                .principal = handled_stream->principal(),
                .request_id = RequestId(response),
                .outcome = std::to_string(response.status),
                .bytes = handled_stream->TakeSentBytes(),
                .duration = RealClock().Now() - handled_stream->began()});
}

bool HttpServer::is_valid() const { return plain_ || tls_context_ != nullptr; }

void HttpServer::KeepStreaming() {
  if (handled_stream != nullptr) handled_stream->KeepStreaming();
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  Serve(socket);
  shutdown(socket, SHUT_RDWR);
  close(socket);
  return true;
}

template <typename Self>
bool HttpServer::Process(Self& self, httplib::Stream& stream, bool last, bool& closed) {
  if constexpr (requires { self.process_request(stream, last, closed, nullptr); }) {
    return self.process_request(stream, last, closed, nullptr);
  } else {
    std::string peer, own;
    int peer_port = 0, own_port = 0;
    stream.get_remote_ip_and_port(peer, peer_port);
    stream.get_local_ip_and_port(own, own_port);
    return self.process_request(stream, peer, peer_port, own, own_port, last, closed, nullptr);
  }
}

void HttpServer::Serve(int socket) {
  const auto handle = connections_.Add(socket, AddressOf(socket, true).ip);
  {
    DeadlineStream stream(socket, limits_, connections_, handle);
    handled_stream = &stream;
    bool open = stream.Begin(true) && (plain_ || stream.Handshake(tls_context_.get()));
    for (size_t left = limits_.requests_max; open && left > 0; --left) {
      if (left < limits_.requests_max && (svr_sock_ == INVALID_SOCKET || !stream.Begin(false)))
        break;
      bool closed = false;
      open = Process(*this, stream, left == 1, closed) && !closed;
    }
    stream.Finish();
    handled_stream = nullptr;
  }
  connections_.Remove(handle);
}

}  // namespace weir
