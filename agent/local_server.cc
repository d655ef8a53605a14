// SPDX-License-Identifier: Apache-2.0
#include "agent/local_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "agent/rank_json.h"
#include "datapath/base/identity/rank_proof.h"
#include "datapath/base/log.h"

namespace weir::agent {
namespace {

constexpr uint64_t kWakeKey = 0;
constexpr uint64_t kUnixKey = 1;
constexpr uint64_t kTcpKey = 2;
constexpr uint64_t kFirstConnection = 16;
constexpr size_t kReadChunkBytes = 64 * 1024;
constexpr size_t kTokenFrameBytesMax = 4096;
constexpr size_t kToldMax = 256;
constexpr Duration kCloseTimeout = std::chrono::seconds(1);

StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return InvalidArgument(StrCat("socket path of ", path.size(), " bytes, at most ",
                                  sizeof address.sun_path - 1, ": ", path));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Removes the file of a socket on which no process listens.
Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return FailedPrecondition(StrCat(path, " exists and is not a socket"));
  }
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno != ECONNREFUSED) {
    return FailedPrecondition(StrCat("another process listens at ", path));
  }
  Log(LogLevel::kInfo, "agent", StrCat("replacing the stale socket ", path));
  unlink(path.c_str());
  return OkStatus();
}

// Identifies the process that connected. A child that inherits the connection counts as that
// process, which may have ended while the child keeps the connection open. The descriptor of the
// process shows whether it has.
RankPeer LocalPeer(int fd) {
  RankPeer peer;
  peer.is_local = true;
  peer.name = "a local process";
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return peer;
  peer.uid = credentials.uid;
  peer.pid = credentials.pid > 0 ? static_cast<uint32_t>(credentials.pid) : 0;
  if (peer.pid == 0) {
    peer.name = StrCat("a process of user ", peer.uid, " in another pid namespace");
    return peer;
  }
  peer.name = StrCat("process ", peer.pid, " of user ", peer.uid);
  const auto process = std::make_shared<FileDescriptor>(
      static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  if (!process->valid()) return peer;
  peer.ended = [process] {
    pollfd ended{process->get(), POLLIN, 0};
    return poll(&ended, 1, 0) == 1;
  };
  return peer;
}

RankPeer RemotePeer(int fd) {
  RankPeer peer;
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  peer.name = getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0
                  ? "a tcp client"
                  : SocketAddress(reinterpret_cast<sockaddr*>(&storage), size).ToString();
  return peer;
}

std::string RefusalFrame(const std::string& reason, double retry_after_s = 0) {
  v1::RankCommand command;
  command.mutable_refusal()->set_reason(reason);
  command.mutable_refusal()->set_retry_after_s(retry_after_s);
  const StatusOr<std::string> json = FormatRankCommand(command);
  return EncodeSocketFrame(json.ok() ? *json : R"({"refusal":{"reason":"refused"}})");
}

}  // namespace

StatusOr<std::unique_ptr<LocalServer>> LocalServer::Start(Options options, Handler& handler,
                                                          const Clock& clock) {
  if (options.tcp && options.tokens == nullptr) {
    return InvalidArgument("listening for ranks on TCP needs a token");
  }
  std::unique_ptr<LocalServer> server(new LocalServer(std::move(options), handler, clock));
  WEIR_RETURN_IF_ERROR(server->Listen());
  server->thread_ = std::thread([raw = server.get()] { raw->Serve(); });
  return server;
}

LocalServer::LocalServer(Options options, Handler& handler, const Clock& clock)
    : options_(std::move(options)),
      handler_(handler),
      clock_(clock),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      next_id_(kFirstConnection) {}

Status LocalServer::LockSocket() {
  // Two agents that start at the same time must not each treat the other's socket as stale.
  const std::string path = options_.socket_path + ".lock";
  lock_ = FileDescriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_.valid()) return ErrnoStatus(StrCat("open ", path), errno);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition(
        StrCat("another agent serves ", options_.socket_path, ": it holds ", path));
  }
  return OkStatus();
}

Status LocalServer::ListenUnix() {
  WEIR_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(options_.socket_path));
  const std::filesystem::path directory = std::filesystem::path(options_.socket_path).parent_path();
  if (!directory.empty()) {
    std::error_code error;
    if (std::filesystem::create_directories(directory, error) && !error) {
      chmod(directory.c_str(), 0755);
    }
    if (error) {
      return Unavailable(StrCat("create directory ", directory.string(), ": ", error.message()));
    }
  }
  WEIR_RETURN_IF_ERROR(LockSocket());
  WEIR_RETURN_IF_ERROR(RemoveStaleSocket(options_.socket_path, address));
  unix_listener_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!unix_listener_.valid()) return ErrnoStatus("socket", errno);
  // Nobody can connect between bind and chmod, because the socket does not listen yet.
  if (bind(unix_listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
      0) {
    return ErrnoStatus(StrCat("bind ", options_.socket_path), errno);
  }
  owns_socket_file_ = true;
  if (chmod(options_.socket_path.c_str(), options_.socket_mode) != 0 ||
      listen(unix_listener_.get(), 128) != 0) {
    return ErrnoStatus(StrCat("listen ", options_.socket_path), errno);
  }
  return OkStatus();
}

Status LocalServer::Listen() {
  if (!epoll_.valid() || !wake_.valid()) return ErrnoStatus("epoll", errno);
  const auto watch = [this](int fd, uint64_t key) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = key;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0
               ? OkStatus()
               : ErrnoStatus("epoll_ctl", errno);
  };
  WEIR_RETURN_IF_ERROR(watch(wake_.get(), kWakeKey));
  if (!options_.socket_path.empty()) {
    WEIR_RETURN_IF_ERROR(ListenUnix());
    WEIR_RETURN_IF_ERROR(watch(unix_listener_.get(), kUnixKey));
  }
  if (options_.tcp) {
    WEIR_ASSIGN_OR_RETURN(tcp_listener_, BindSocket(*options_.tcp, SOCK_STREAM));
    WEIR_ASSIGN_OR_RETURN(const SocketAddress bound, LocalAddress(tcp_listener_.get()));
    tcp_port_ = bound.port();
    WEIR_RETURN_IF_ERROR(watch(tcp_listener_.get(), kTcpKey));
  }
  return OkStatus();
}

LocalServer::~LocalServer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  if (owns_socket_file_) unlink(options_.socket_path.c_str());
}

void LocalServer::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void LocalServer::Send(ConnectionId connection, const v1::RankCommand& command) {
  const StatusOr<std::string> json = FormatRankCommand(command);
  if (!json.ok()) {
    Log(LogLevel::kError, "agent", ToString(json.status()));
    return;
  }
  {
    MutexLock lock(mutex_);
    const auto outbox = outboxes_.find(connection);
    if (outbox == outboxes_.end()) return;
    if (outbox->second.frames.size() + json->size() > options_.output_bytes_max) {
      outbox->second.overflow = true;
    } else {
      outbox->second.frames += EncodeSocketFrame(*json);
    }
  }
  Wake();
}

void LocalServer::Refuse(ConnectionId connection, const std::string& reason, double retry_after_s) {
  {
    MutexLock lock(mutex_);
    const auto outbox = outboxes_.find(connection);
    // A refused client may have sent more, which is refused, too: the first reason is told.
    if (outbox == outboxes_.end() || outbox->second.refusal) return;
    outbox->second.refusal.emplace();
    outbox->second.refusal->set_reason(reason);
    outbox->second.refusal->set_retry_after_s(retry_after_s);
  }
  Wake();
}

size_t LocalServer::connection_count() const {
  MutexLock lock(mutex_);
  return outboxes_.size();
}

uint64_t LocalServer::refused_count() const {
  MutexLock lock(mutex_);
  return refused_;
}

void LocalServer::Serve() {
  NameThread("weir-local");
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), WaitMilliseconds());
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[i].data.u64;
      if (key == kWakeKey) {
        uint64_t ignored = 0;
        (void)!read(wake_.get(), &ignored, sizeof ignored);
      } else if (key == kUnixKey || key == kTcpKey) {
        Accept(key == kUnixKey ? unix_listener_.get() : tcp_listener_.get(), key == kTcpKey);
      } else {
        if ((events[i].events & EPOLLOUT) != 0) Flush(key);
        if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) OnReadable(key);
      }
    }
    {
      // Checked after the wake-up was read, so that a later one wakes the next round.
      MutexLock lock(mutex_);
      if (stopping_) break;
    }
    CollectOutboxes();
    EnforceDeadlines();
  }
  while (!connections_.empty()) CloseConnection(connections_.begin()->first, "the agent ends");
}

int LocalServer::WaitMilliseconds() const {
  if (!accepting_) return 50;
  const bool timed = std::any_of(connections_.begin(), connections_.end(), [](const auto& entry) {
    return !entry.second.spoke || entry.second.refusing;
  });
  return timed ? 200 : -1;
}

void LocalServer::Accept(int listener, bool is_tcp) {
  for (int i = 0; i < 16 && accepting_; ++i) {
    FileDescriptor fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      Admit(std::move(fd), is_tcp);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The listener stays readable, so it is ignored for a moment instead of spinning.
      Log(LogLevel::kWarning, "agent", StrCat("accept: ", std::strerror(errno)));
      accepting_ = false;
      accept_again_ = clock_.Now() + std::chrono::milliseconds(200);
      for (const FileDescriptor* paused : {&unix_listener_, &tcp_listener_}) {
        if (paused->valid()) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, paused->get(), nullptr);
      }
    }
    return;
  }
}

void LocalServer::Admit(FileDescriptor fd, bool is_tcp) {
  RankPeer peer = is_tcp ? RemotePeer(fd.get()) : LocalPeer(fd.get());
  if (connections_.size() >= options_.connections_max) {
    const std::string frame = RefusalFrame(
        StrCat("the agent serves ", options_.connections_max, " connections, its maximum"));
    (void)!send(fd.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
    Log(LogLevel::kWarning, "agent", StrCat(peer.name, " refused: too many connections"));
    MutexLock lock(mutex_);
    ++refused_;
    return;
  }
  StatusOr<std::string> challenge = NewChallenge();
  if (!challenge.ok()) return Log(LogLevel::kError, "agent", Message(challenge.status()));
  peer.challenge = std::move(*challenge);
  const ConnectionId id = next_id_++;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) return;
  Connection& connection = connections_[id];
  connection.fd = std::move(fd);
  connection.peer = std::make_shared<const RankPeer>(std::move(peer));
  connection.needs_token = is_tcp;
  connection.deadline = clock_.Now() + options_.hello_timeout;
  Log(LogLevel::kDebug, "agent", StrCat("connection ", id, " from ", connection.peer->name));
  {
    MutexLock lock(mutex_);
    outboxes_[id];
  }
  Challenge(id, connection);
}

void LocalServer::Challenge(ConnectionId id, Connection& connection) {
  v1::RankCommand command;
  command.mutable_challenge()->set_node(options_.node);
  command.mutable_challenge()->set_challenge(connection.peer->challenge);
  const StatusOr<std::string> json = FormatRankCommand(command);
  if (!json.ok()) return Log(LogLevel::kError, "agent", ToString(json.status()));
  connection.output += EncodeSocketFrame(*json);
  Watch(id, true);  // the caller uses the connection further; a failed write would end it
}

void LocalServer::OnReadable(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  std::array<char, kReadChunkBytes> chunk;
  const ssize_t n = recv(connection.fd.get(), chunk.data(), chunk.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    const std::string cut = connection.reader.buffered_bytes() > 0 && !connection.refusing
                                ? " in the middle of a message"
                                : "";
    // A client that closes before it has read everything resets the connection.
    CloseConnection(id, n == 0 || errno == ECONNRESET
                            ? StrCat("closed its connection", cut)
                            : StrCat("connection failed: ", std::strerror(errno)));
    return;
  }
  if (connection.refusing) return;
  connection.reader.Append(std::string_view(chunk.data(), static_cast<size_t>(n)));
  if (connection.needs_token && connection.reader.buffered_bytes() > kTokenFrameBytesMax) {
    StartRefusal(id, connection,
                 "expected the proof of a token, of less than 4 KiB, as the first message");
    return;
  }
  HandleFrames(id, connection);
}

// Returns false when the connection was refused.
bool LocalServer::HandleFrames(ConnectionId id, Connection& connection) {
  while (true) {
    StatusOr<std::optional<std::string>> frame = connection.reader.Next();
    if (!frame.ok()) {
      StartRefusal(id, connection, Message(frame.status()));
      return false;
    }
    if (!*frame) return true;
    const Status handled = HandleMessage(id, connection, **frame);
    if (!handled.ok()) {
      StartRefusal(id, connection, Message(handled));
      return false;
    }
  }
}

Status LocalServer::HandleMessage(ConnectionId id, Connection& connection,
                                  const std::string& json) {
  if (connection.needs_token) {
    WEIR_ASSIGN_OR_RETURN(const std::string proof, ParseTokenProof(json));
    bool proven = false;
    for (const std::string& token : options_.tokens->Tokens()) {
      WEIR_ASSIGN_OR_RETURN(const std::string expected,
                            ProveToken(token, options_.node, connection.peer->challenge));
      proven = ConstantTimeEquals(proof, expected) || proven;
    }
    if (!proven) return FailedPrecondition("wrong token");
    connection.needs_token = false;
    return OkStatus();
  }
  WEIR_ASSIGN_OR_RETURN(v1::RankMessage message, ParseRankMessage(json));
  const bool is_first = !std::exchange(connection.framed, true);
  // On a Unix socket the permissions of the file decide, and a token is ignored.
  if (is_first && message.body_case() == v1::RankMessage::BODY_NOT_SET &&
      ParseTokenProof(json).ok()) {
    return OkStatus();
  }
  if (!handler_.OnRankMessage(id, std::move(message), json.size(), connection.peer)) {
    return ResourceExhausted("the agent is overloaded");
  }
  if (!std::exchange(connection.spoke, true)) {
    Log(LogLevel::kInfo, "agent",
        StrCat("connection ", id, " from ", connection.peer->name, " attached"));
  }
  return OkStatus();
}

void LocalServer::CollectOutboxes() {
  struct Work {
    ConnectionId id;
    Outbox outbox;
  };
  std::vector<Work> work;
  {
    MutexLock lock(mutex_);
    for (auto& [id, outbox] : outboxes_) {
      if (outbox.frames.empty() && !outbox.refusal && !outbox.overflow) continue;
      // Frames stay in the outbox while the connection has older ones, so that its bound holds.
      const auto connection = connections_.find(id);
      const bool idle = connection != connections_.end() && connection->second.output.empty();
      if (!idle && !outbox.refusal && !outbox.overflow) continue;
      work.push_back({id, std::exchange(outbox, Outbox{})});
    }
  }
  for (Work& item : work) {
    const auto found = connections_.find(item.id);
    if (found == connections_.end() || found->second.refusing) continue;
    if (item.outbox.overflow) {
      CloseConnection(item.id, StrCat("did not read: over ", options_.output_bytes_max,
                                      " bytes were queued for it"));
      continue;
    }
    found->second.output += item.outbox.frames;
    if (item.outbox.refusal) {
      StartRefusal(item.id, found->second, item.outbox.refusal->reason(),
                   item.outbox.refusal->retry_after_s());
    } else {
      Flush(item.id);
    }
  }
}

void LocalServer::StartRefusal(ConnectionId id, Connection& connection, const std::string& reason,
                               double retry_after_s) {
  // A client that connects repeatedly gets a refusal each time, which is logged once.
  if (told_.size() >= kToldMax) told_.clear();
  const bool is_news = told_.insert(StrCat(connection.peer->name, " refused: ", reason)).second;
  Log(is_news ? LogLevel::kWarning : LogLevel::kDebug, "agent",
      StrCat("connection ", id, " from ", connection.peer->name, " refused: ", reason));
  {
    MutexLock lock(mutex_);
    ++refused_;
  }
  connection.output += RefusalFrame(reason, retry_after_s);
  connection.refusing = true;
  connection.deadline = clock_.Now() + kCloseTimeout;
  Flush(id);
}

void LocalServer::Flush(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  while (connection.output_offset < connection.output.size()) {
    const ssize_t n = send(connection.fd.get(), connection.output.data() + connection.output_offset,
                           connection.output.size() - connection.output_offset, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      Watch(id, true);
      return;
    }
    if (n <= 0) break;  // it is gone or reads no more; its earlier messages must still be read
    connection.output_offset += static_cast<size_t>(n);
  }
  connection.output.clear();
  connection.output_offset = 0;
  Watch(id, false);
  if (connection.refusing && !connection.shut) {
    // Closing with unread input would reset the connection and lose the refusal. So the server
    // half-closes, and reads until the client closes or the time is over.
    shutdown(connection.fd.get(), SHUT_WR);
    connection.shut = true;
  }
}

void LocalServer::Watch(ConnectionId id, bool want_write) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (want_write) event.events |= EPOLLOUT;
  event.data.u64 = id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connections_.at(id).fd.get(), &event);
}

void LocalServer::CloseConnection(ConnectionId id, const std::string& reason) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const bool spoke = found->second.spoke;
  Log(LogLevel::kDebug, "agent", StrCat("connection ", id, ": ", reason));
  connections_.erase(found);  // closing the descriptor removes it from epoll
  {
    MutexLock lock(mutex_);
    outboxes_.erase(id);
  }
  if (spoke) handler_.OnRankClosed(id, reason);
}

void LocalServer::EnforceDeadlines() {
  const TimePoint now = clock_.Now();
  if (!accepting_ && now >= accept_again_) {
    accepting_ = true;
    for (const auto& [listener, key] :
         {std::pair(&unix_listener_, kUnixKey), std::pair(&tcp_listener_, kTcpKey)}) {
      if (!listener->valid()) continue;
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = key;
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener->get(), &event);
    }
  }
  std::vector<ConnectionId> late;
  for (const auto& [id, connection] : connections_) {
    if ((!connection.spoke || connection.refusing) && now >= connection.deadline) {
      late.push_back(id);
    }
  }
  for (const ConnectionId id : late) {
    const bool refusing = connections_.at(id).refusing;
    CloseConnection(id, refusing ? "refused" : "sent no whole message in time");
  }
}

}  // namespace weir::agent
