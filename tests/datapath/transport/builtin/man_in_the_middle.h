// SPDX-License-Identifier: Apache-2.0
#pragma once
// An attacker on the path between two ranks, who sees every frame that the dialer sends and can
// pass on others instead.

#include <poll.h>

#include <functional>
#include <thread>
#include <vector>

#include "tests/datapath/transport/builtin/raw_peer.h"

namespace weir::testing {

class ManInTheMiddle {
 public:
  /// Called with frame `number` (from 0: the hello, with a key the proof, then data). The frames
  /// that it returns are passed on in its place, one after the other.
  using Meddle = std::function<std::vector<Bytes>(size_t number, const Bytes& frame)>;

  /// A rank that dials address() reaches `target`. With `keyed`, frames from the second on have
  /// tags.
  ManInTheMiddle(TransportAddress target, bool keyed, Meddle meddle)
      : keyed_(keyed), meddle_(std::move(meddle)) {
    listener_ = *mesh::Listen(TransportOptions(), 4, &address_);
    thread_ = std::thread([this, target = std::move(target)] { Run(target); });
  }
  ~ManInTheMiddle() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  const TransportAddress& address() const { return address_; }
  /// All frames that were seen, to be read once the thread has ended.
  static std::vector<Bytes> PassOn(size_t, const Bytes& frame) { return {frame}; }

 private:
  void Run(const TransportAddress& target) {
    pollfd waits = {listener_.get(), POLLIN, 0};
    if (poll(&waits, 1, 10'000) <= 0) return;
    mesh::UniqueFd accepted(accept(listener_.get(), nullptr, nullptr));
    if (!accepted) return;
    RawPeer dialer(std::move(accepted)), acceptor(target);
    std::thread back([&] {
      char buffer[4096];
      for (;;) {
        const ssize_t n = recv(acceptor.fd(), buffer, sizeof buffer, 0);
        if (n <= 0) break;
        if (send(dialer.fd(), buffer, static_cast<size_t>(n), MSG_NOSIGNAL) != n) break;
      }
      shutdown(dialer.fd(), SHUT_RDWR);
    });
    const size_t handshake = keyed_ ? 2 : 1;
    for (size_t number = 0;; ++number) {
      const Bytes frame = dialer.ReadRaw(keyed_ && number >= handshake ? kFrameTagBytes : 0);
      if (frame.empty()) break;
      bool sent = true;
      for (const Bytes& bytes : meddle_(number, frame)) sent = sent && acceptor.Send(bytes);
      if (!sent) break;
    }
    acceptor.HalfClose();
    back.join();
  }

  const bool keyed_;
  const Meddle meddle_;
  TransportAddress address_;
  mesh::UniqueFd listener_;
  std::thread thread_;
};

}  // namespace weir::testing
