#pragma once
// Cookies prove that whoever asks to connect receives what is sent to its address, before anything
// is kept or said at length.

#include <array>
#include <cstdint>
#include <span>

#include "datapath/transport/builtin/udp/packet.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::udp {

/// A keyed hash that nobody without the key can guess. Thread-safe, O(n). Source: Aumasson,
/// Bernstein, "SipHash: a fast short-input PRF", 2012, SipHash-2-4.
uint64_t SipHash(const std::array<uint64_t, 2>& key, std::span<const std::byte> bytes);

/// `size` bytes nobody can predict; kUnavailable: the system has none.
StatusOr<uint64_t> UnpredictableNumber();

/// Makes and checks cookies. A cookie is good for the address and hello that it was made for, and
/// for 10 to 20 s. Thread-safe.
class CookieJar {
 public:
  explicit CookieJar(const std::array<uint64_t, 2>& key) : key_(key) {}
  uint64_t Bake(const mesh::SocketAddress& from, const Handshake& hello, TimePoint now) const;
  /// The hello carries a cookie of ours.
  bool Recognise(const mesh::SocketAddress& from, const Handshake& hello, TimePoint now) const;

 private:
  uint64_t Bake(const mesh::SocketAddress& from, const Handshake& hello, int64_t period) const;
  const std::array<uint64_t, 2> key_;
};

}  // namespace weir::udp
