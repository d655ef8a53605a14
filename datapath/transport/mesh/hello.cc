// SPDX-License-Identifier: Apache-2.0
#include "datapath/transport/mesh/hello.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"

namespace weir::mesh {
namespace {
constexpr size_t kHelloBytes = 64;
}  // namespace

Protection ProtectionOf(const TransportOptions& options) {
  if (!options.job_key.has_value()) return Protection::kChecked;
  return options.encrypt ? Protection::kEncrypted : Protection::kAuthenticated;
}

std::string KeysDiffer(const TransportOptions& options, Protection theirs, std::string_view other) {
  const Protection own = ProtectionOf(options);
  if (theirs == own) return "";
  const std::string self = StrCat("rank ", options.rank);
  if (own == Protection::kChecked) return StrCat("job key: ", other, " has one, ", self, " none");
  if (theirs == Protection::kChecked) {
    return StrCat("job key: ", self, " has one, ", other, " none");
  }
  return own == Protection::kEncrypted ? StrCat("encrypt: ", self, " does, ", other, " does not")
                                       : StrCat("encrypt: ", other, " does, ", self, " does not");
}

std::vector<std::byte> EncodeFrame(FrameType type, int rank, std::span<const std::byte> payload,
                                   FrameSealer* sealer) {
  FrameHeader header;
  header.type = type;
  header.source_rank = static_cast<uint16_t>(rank);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  std::vector<std::byte> frame(kFrameHeaderBytes + payload.size());
  const std::span<std::byte, kFrameHeaderBytes> head(frame.data(), kFrameHeaderBytes);
  const std::span<std::byte> body = std::span(frame).subspan(kFrameHeaderBytes);
  std::copy(payload.begin(), payload.end(), body.begin());
  if (sealer == nullptr) {
    header.payload_checksum = Checksum(payload);
    EncodeFrameHeader(header, head);
    return frame;
  }
  EncodeFrameHeader(header, head, FrameCheck::kTag);
  FrameTag tag;
  sealer->Seal(head, payload, body, &tag);
  frame.insert(frame.end(), tag.begin(), tag.end());
  return frame;
}

std::vector<std::byte> EncodeAbort(int rank, std::string_view text, FrameSealer* sealer) {
  return EncodeFrame(FrameType::kAbort, rank,
                     std::as_bytes(std::span(text.substr(0, kAbortTextMax))), sealer);
}

std::vector<std::byte> EncodeHelloPayload(const Hello& hello) {
  WEIR_CHECK(hello.rendezvous.empty() || hello.rendezvous.size() == kRendezvousNameBytes);
  WEIR_CHECK(hello.connection < hello.connections);
  std::vector<std::byte> payload(kHelloBytes + hello.rendezvous.size());
  ByteWriter writer(payload);
  writer.Write(hello.job);
  writer.Write(hello.rank);
  writer.Write(hello.world);
  writer.Write(hello.expected_peer);
  writer.Write(hello.node);
  writer.Write(hello.connections);
  writer.Write(hello.connection);
  writer.Write(static_cast<uint32_t>(hello.protection));
  writer.Write(hello.nonce);
  writer.WriteBytes(std::as_bytes(std::span(hello.rendezvous)));
  WEIR_CHECK(writer.ok() && writer.offset() == payload.size());
  return payload;
}

std::vector<std::byte> EncodeHello(const Hello& hello, const Secret* proof) {
  std::vector<std::byte> payload = EncodeHelloPayload(hello);
  if (proof != nullptr) payload.insert(payload.end(), proof->begin(), proof->end());
  return EncodeFrame(FrameType::kHello, static_cast<int>(hello.rank), payload);
}

StatusOr<DecodedHello> DecodeHello(std::span<const std::byte> payload) {
  const size_t more = payload.size() - kHelloBytes;  // a too short payload gives a huge number
  if (more != 0 && more != kRendezvousNameBytes && more != kSecretBytes &&
      more != kRendezvousNameBytes + kSecretBytes) {
    return DataLoss(StrCat("hello: expected ", kHelloBytes, " bytes, ", kRendezvousNameBytes, ", ",
                           kSecretBytes, " or ", kRendezvousNameBytes + kSecretBytes,
                           " more, found ", payload.size()));
  }
  ByteReader reader(payload);
  DecodedHello decoded;
  Hello& hello = decoded.hello;
  uint32_t protection = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.job));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.rank));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.world));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.expected_peer));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.node));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.connections));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.connection));
  WEIR_RETURN_IF_ERROR(reader.Read(&protection));
  WEIR_RETURN_IF_ERROR(reader.Read(&hello.nonce));
  if (hello.connections < 1 || hello.connection >= hello.connections) {
    return DataLoss(StrCat("hello: connection ", hello.connection, " of ", hello.connections));
  }
  if (protection > static_cast<uint32_t>(Protection::kEncrypted)) {
    return DataLoss(StrCat("hello: protection: expected 0..2, found ", protection));
  }
  hello.protection = static_cast<Protection>(protection);
  if (more == kRendezvousNameBytes || more == kRendezvousNameBytes + kSecretBytes) {
    std::span<const std::byte> rendezvous;
    WEIR_RETURN_IF_ERROR(reader.ReadBytes(kRendezvousNameBytes, &rendezvous));
    hello.rendezvous.assign(reinterpret_cast<const char*>(rendezvous.data()), rendezvous.size());
  }
  decoded.proof = reader.rest();
  return decoded;
}

StatusOr<bool> HandshakeReader::Read(int fd) {
  for (;;) {
    if (filled_ == bytes_.size()) {
      if (!has_header_) WEIR_RETURN_IF_ERROR(ReadHeader());
      if (filled_ == bytes_.size()) break;
    }
    const ssize_t n = recv(fd, bytes_.data() + filled_, bytes_.size() - filled_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) return Unavailable(n == 0 ? "closed the connection" : ErrorText(errno));
    filled_ += static_cast<size_t>(n);
  }
  WEIR_RETURN_IF_ERROR(Verify());
  return true;
}

Status HandshakeReader::ReadHeader() {
  const std::span<const std::byte, kFrameHeaderBytes> bytes(bytes_.data(), kFrameHeaderBytes);
  WEIR_ASSIGN_OR_RETURN(
      header_,
      DecodeFrameHeader(bytes, opener_ != nullptr ? FrameCheck::kTag : FrameCheck::kChecksums));
  if (header_.type == FrameType::kData) return DataLoss("a data frame before its hello");
  if (header_.payload_bytes > kAbortTextMax) {
    return DataLoss(StrCat("handshake payload: expected at most ", kAbortTextMax, " bytes, found ",
                           header_.payload_bytes));
  }
  has_header_ = true;
  bytes_.resize(kFrameHeaderBytes + header_.payload_bytes + trailer_bytes());
  return OkStatus();
}

Status HandshakeReader::Verify() {
  if (opener_ == nullptr) {
    if (Checksum(payload()) == header_.payload_checksum) return OkStatus();
    return DataLoss("a corrupt handshake payload");
  }
  const std::span<std::byte> bytes(bytes_);
  opener_->Begin(bytes.first(kFrameHeaderBytes));
  opener_->Update(bytes.subspan(kFrameHeaderBytes, header_.payload_bytes));
  if (opener_->Finish(bytes.last<kFrameTagBytes>())) return OkStatus();
  return DataLoss("a handshake frame that does not verify");
}

bool WriteFrame(int fd, std::span<const std::byte> frame) {
  ssize_t n;
  do {
    n = send(fd, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(frame.size());
}

}  // namespace weir::mesh
