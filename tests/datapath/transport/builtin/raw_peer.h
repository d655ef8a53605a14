// SPDX-License-Identifier: Apache-2.0
#pragma once
// A peer whose bytes the test controls: a blocking socket with a receive time-out.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "datapath/transport/mesh/hello.h"

namespace weir::testing {

using Bytes = std::vector<std::byte>;

class RawPeer {
 public:
  /// Connects to "127.0.0.1:port".
  explicit RawPeer(const TransportAddress& address)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto resolved = mesh::ResolveAddress(address);
    const timeval patience = {10, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ = resolved.ok() && connect(fd_.get(), resolved->get(), resolved->size) == 0;
  }

  /// Takes over an existing connection.
  explicit RawPeer(mesh::UniqueFd fd) : fd_(std::move(fd)), connected_(true) {
    const timeval patience = {10, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }
  bool Send(std::span<const std::byte> bytes) {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void HalfClose() { shutdown(fd_.get(), SHUT_WR); }
  void Close() { fd_ = mesh::UniqueFd(); }
  /// Closes with a reset instead of an orderly end of stream.
  void Reset() {
    const linger abrupt = {1, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt);
    Close();
  }

  /// Reads the next whole frame; `text` is its payload. kUnavailable: the stream ended.
  StatusOr<FrameHeader> ReadFrame(std::string* text = nullptr) {
    std::array<std::byte, kFrameHeaderBytes> bytes;
    if (!ReadAll(bytes)) return Unavailable("end of stream");
    WEIR_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(bytes));
    // Without zeros first: with a sanitizer they take longer than a peer that ends waits for a
    // reader.
    const auto payload = std::make_unique_for_overwrite<std::byte[]>(header.payload_bytes);
    if (!ReadAll({payload.get(), header.payload_bytes})) return Unavailable("end of stream");
    if (text != nullptr)
      text->assign(reinterpret_cast<const char*>(payload.get()), header.payload_bytes);
    return header;
  }

  /// Reads the bytes of the next whole frame, with a trailer of `trailer_bytes`. Empty if the
  /// stream ended.
  Bytes ReadRaw(size_t trailer_bytes) {
    Bytes frame(kFrameHeaderBytes);
    if (!ReadAll(frame)) return {};
    uint32_t payload_bytes = 0;
    std::memcpy(&payload_bytes, frame.data() + 56, sizeof payload_bytes);
    frame.resize(kFrameHeaderBytes + payload_bytes + trailer_bytes);
    return ReadAll(std::span(frame).subspan(kFrameHeaderBytes)) ? frame : Bytes();
  }

  /// Sends a hello and reads the answer.
  StatusOr<FrameHeader> Introduce(const mesh::Hello& hello, std::string* text = nullptr) {
    if (!Send(mesh::EncodeHello(hello))) return Unavailable("cannot send");
    return ReadFrame(text);
  }

 private:
  bool ReadAll(std::span<std::byte> out) {
    size_t at = 0;
    while (at < out.size()) {
      const ssize_t n = recv(fd_.get(), out.data() + at, out.size() - at, 0);
      if (n < 0 && errno == EINTR) continue;  // with a time-out the kernel does not restart it
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }

  mesh::UniqueFd fd_;
  bool connected_ = false;
};

/// A data frame as rank `rank` would send it.
inline Bytes DataFrame(int rank, std::span<const std::byte> payload) {
  return mesh::EncodeFrame(FrameType::kData, rank, payload);
}

}  // namespace weir::testing
