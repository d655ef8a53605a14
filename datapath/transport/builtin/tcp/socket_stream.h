// SPDX-License-Identifier: Apache-2.0
#pragma once
// TCP connections as a stream of bytes.

#include <memory>

#include "datapath/transport/builtin/tcp/zero_copy.h"
#include "datapath/transport/mesh/byte_stream.h"
#include "datapath/transport/mesh/rendezvous.h"

namespace weir::tcp {

/// One connection.
class SocketStream : public mesh::ByteStream {
 public:
  /// `socket` is connected and configured. zero_copy_bytes_min: see TransportOptions.
  SocketStream(mesh::UniqueFd socket, size_t zero_copy_bytes_min);

  ssize_t Write(std::span<const iovec> parts) override;
  ssize_t Read(std::span<const iovec> parts) override;
  ArrivalLog* arrivals() override { return stamped_ ? &arrivals_ : nullptr; }
  double arrived_s() const override { return arrived_s_; }
  size_t Retained() override { return zero_copy_.Retained(); }
  void CloseWrite() override;
  void Expect(size_t bytes) override;
  Status Register(mesh::EventSet& events, uint32_t index) override;
  uint32_t OnEvents(uint32_t events) override;
  void Cut() override;
  void AppendSockets(std::vector<int>* sockets) const override {
    sockets->push_back(socket_.get());
  }
  bool within_host() const override { return within_host_; }
  bool crosses_network() const override { return !loopback_; }
  Silence HostSilence() const override;
  PathSample Sample(int peer) const override;

 private:
  ssize_t ReadStamped(std::span<const iovec> parts);

  const mesh::UniqueFd socket_;
  const bool within_host_, loopback_;
  size_t low_water_ = 1;  // the kernel reports data from so many bytes on
  ZeroCopy zero_copy_;
  bool stamped_ = false;  // the kernel says when bytes arrived
  double arrived_s_ = 0;
  ArrivalLog arrivals_;
};

/// The stream over all `sockets` of a pair of ranks, at least one; connected and configured.
std::unique_ptr<mesh::ByteStream> MakeStream(mesh::Sockets sockets,
                                             const TransportOptions& options);

}  // namespace weir::tcp
