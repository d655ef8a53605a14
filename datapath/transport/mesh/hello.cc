#include "datapath/transport/mesh/hello.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"

namespace weir::mesh {
namespace {
constexpr size_t kHelloBytes = 24;
constexpr size_t kConnectionBytes = 4;  // only where there are several
}  // namespace

std::vector<std::byte> EncodeFrame(FrameType type, int rank, std::span<const std::byte> payload) {
  FrameHeader header;
  header.type = type;
  header.source_rank = static_cast<uint16_t>(rank);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.payload_checksum = Checksum(payload);
  std::vector<std::byte> frame(kFrameHeaderBytes + payload.size());
  EncodeFrameHeader(header,
                    std::span<std::byte, kFrameHeaderBytes>(frame.data(), kFrameHeaderBytes));
  if (!payload.empty())
    std::memcpy(frame.data() + kFrameHeaderBytes, payload.data(), payload.size());
  return frame;
}

std::vector<std::byte> EncodeAbort(int rank, std::string_view text) {
  return EncodeFrame(FrameType::kAbort, rank,
                     std::as_bytes(std::span(text.substr(0, kAbortTextMax))));
}

std::vector<std::byte> EncodeHello(const Hello& hello) {
  WEIR_CHECK(hello.rendezvous.empty() || hello.rendezvous.size() == kRendezvousNameBytes);
  WEIR_CHECK(hello.connection < hello.connections);
  const bool several = hello.connections > 1;
  std::vector<std::byte> payload(kHelloBytes + (several ? kConnectionBytes : 0) +
                                 hello.rendezvous.size());
  ByteWriter writer(payload);
  writer.Write(hello.job);
  writer.Write(hello.rank);
  writer.Write(hello.world);
  writer.Write(hello.expected_peer);
  writer.Write(hello.node);
  if (several) {
    writer.Write(hello.connections);
    writer.Write(hello.connection);
  }
  writer.WriteBytes(std::as_bytes(std::span(hello.rendezvous)));
  WEIR_CHECK(writer.ok() && writer.offset() == payload.size());
  return EncodeFrame(FrameType::kHello, static_cast<int>(hello.rank), payload);
}

StatusOr<Hello> DecodeHello(std::span<const std::byte> payload) {
  const size_t more = payload.size() - kHelloBytes;  // far too many for a payload that is too short
  const bool several = more == kConnectionBytes || more == kConnectionBytes + kRendezvousNameBytes;
  if (more != 0 && more != kRendezvousNameBytes && !several) {
    return DataLoss(StrCat("hello: expected ", kHelloBytes, " bytes, ", kConnectionBytes, ", ",
                           kRendezvousNameBytes, " or ", kConnectionBytes + kRendezvousNameBytes,
                           " more, found ", payload.size()));
  }
  ByteReader reader(payload);
  Hello hello;
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.job));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.rank));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.world));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.expected_peer));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.node));
  if (several) {
    WEIR_RETURN_IF_ERROR(reader.Read(&hello.connections));
    WEIR_RETURN_IF_ERROR(reader.Read(&hello.connection));
    if (hello.connections < 2 || hello.connection >= hello.connections) {
      return DataLoss(StrCat("hello: connection ", hello.connection, " of ", hello.connections));
    }
  }
  const std::span<const std::byte> rendezvous = reader.rest();
  hello.rendezvous.assign(reinterpret_cast<const char*>(rendezvous.data()), rendezvous.size());
  return hello;
}

StatusOr<bool> HandshakeReader::Read(int fd) {
  for (;;) {
    if (filled_ == bytes_.size() && filled_ > 0) {
      if (bytes_.size() > kFrameHeaderBytes || header_.payload_bytes == 0) break;
    }
    const ssize_t n = recv(fd, bytes_.data() + filled_, bytes_.size() - filled_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) return Unavailable(n == 0 ? "closed the connection" : ErrorText(errno));
    filled_ += static_cast<size_t>(n);
    if (filled_ < bytes_.size()) continue;
    if (bytes_.size() == kFrameHeaderBytes) {
      const std::span<const std::byte, kFrameHeaderBytes> bytes(bytes_.data(), kFrameHeaderBytes);
      WEIR_ASSIGN_OR_RETURN(header_, DecodeFrameHeader(bytes));
      if (header_.type == FrameType::kData) return DataLoss("a data frame before its hello");
      if (header_.payload_bytes > kAbortTextMax) {
        return DataLoss(StrCat("handshake payload: expected at most ", kAbortTextMax,
                               " bytes, found ", header_.payload_bytes));
      }
      bytes_.resize(kFrameHeaderBytes + header_.payload_bytes);
    }
  }
  if (Checksum(payload()) != header_.payload_checksum)
    return DataLoss("a corrupt handshake payload");
  return true;
}

bool WriteFrame(int fd, std::span<const std::byte> frame) {
  ssize_t n;
  do {
    n = send(fd, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(frame.size());
}

}  // namespace weir::mesh
