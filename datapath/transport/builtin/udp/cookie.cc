#include "datapath/transport/builtin/udp/cookie.h"

#include <netinet/in.h>
#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "datapath/base/byte_cursor.h"

namespace weir::udp {
namespace {

constexpr Duration kPeriod = std::chrono::seconds(10);

struct SipState {
  uint64_t v0, v1, v2, v3;
  void Rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  }
  void Absorb(uint64_t word) {
    v3 ^= word;
    Rounds(2);
    v0 ^= word;
  }
};

int64_t PeriodOf(TimePoint now) { return now.time_since_epoch() / kPeriod; }

}  // namespace

uint64_t SipHash(const std::array<uint64_t, 2>& key, std::span<const std::byte> bytes) {
  SipState state = {key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull,
                    key[0] ^ 0x6c7967656e657261ull, key[1] ^ 0x7465646279746573ull};
  const uint64_t length = bytes.size();
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    state.Absorb(word);
  }
  uint64_t last = 0;
  if (!bytes.empty()) std::memcpy(&last, bytes.data(), bytes.size());
  state.Absorb(last | length << 56);
  state.v2 ^= 0xff;
  state.Rounds(4);
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

StatusOr<uint64_t> UnpredictableNumber() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    return Unavailable(StrCat("getrandom: ", mesh::ErrorText(errno)));
  }
  return number;
}

uint64_t CookieJar::Bake(const mesh::SocketAddress& from, const Handshake& hello,
                         TimePoint now) const {
  return Bake(from, hello, PeriodOf(now));
}

bool CookieJar::Recognise(const mesh::SocketAddress& from, const Handshake& hello,
                          TimePoint now) const {
  const int64_t period = PeriodOf(now);
  return hello.cookie == Bake(from, hello, period) || hello.cookie == Bake(from, hello, period - 1);
}

uint64_t CookieJar::Bake(const mesh::SocketAddress& from, const Handshake& hello,
                         int64_t period) const {
  std::array<std::byte, 64> bytes = {};
  ByteWriter writer(bytes);
  if (from.storage.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(from.storage);
    writer.Write(address.sin6_addr);
    writer.Write(address.sin6_port);
  } else {
    const auto& address = reinterpret_cast<const sockaddr_in&>(from.storage);
    writer.Write(address.sin_addr);
    writer.Write(address.sin_port);
  }
  writer.Write(period);
  writer.Write(hello.job);
  writer.Write(hello.rank);
  writer.Write(hello.own_connection);
  return SipHash(key_, bytes);
}

}  // namespace weir::udp
