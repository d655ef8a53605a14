// SPDX-License-Identifier: Apache-2.0
#pragma once
// Several TCP connections as one stream of bytes, in order.

#include <algorithm>
#include <memory>
#include <vector>

#include "datapath/transport/builtin/tcp/socket_stream.h"

namespace weir::tcp {

/// Distributes the stream in pieces of kPieceBytes, one connection after the other, so that the
/// position alone tells which connection carries a byte. The slowest connection sets the pace of
/// all. proto/WIRE.md, section 1.
class StripedStream : public mesh::ByteStream {
 public:
  static constexpr size_t kPieceBytes = 128 << 10;

  /// `lanes` in the order of the connections' numbers, at least two.
  explicit StripedStream(std::vector<std::unique_ptr<SocketStream>> lanes);

  ssize_t Write(std::span<const iovec> parts) override;
  ssize_t Read(std::span<const iovec> parts) override;
  size_t Retained() override;
  void CloseWrite() override;
  Status Register(mesh::EventSet& events, uint32_t index) override;
  uint32_t OnEvents(uint32_t events) override;
  /// If a failure comes after some bytes, the next call returns it, without another event.
  bool Readable() override { return read_failed_; }
  bool Writable() override { return write_failed_; }
  void Cut() override;
  void AppendSockets(std::vector<int>* sockets) const override;
  bool within_host() const override { return lanes_[0]->within_host(); }
  bool crosses_network() const override {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->crosses_network(); });
  }
  Silence HostSilence() const override;
  PathSample Sample(int peer) const override;

 private:
  template <typename Move>
  ssize_t Deal(std::span<const iovec> parts, uint64_t* position, bool* failed, Move move);

  const std::vector<std::unique_ptr<SocketStream>> lanes_;
  uint64_t written_ = 0, read_ = 0;
  bool write_failed_ = false, read_failed_ = false;
  bool cut_ = false;  // a lane was cut, and not all lanes have ended
};

}  // namespace weir::tcp
