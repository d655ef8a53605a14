// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frames of the handshake, which tell which rank is at the other end and prove that it holds
// the job's key. The dialer sends a hello, the acceptor answers with its own hello and, if there is
// a key, its proof, and then the dialer sends its proof. Bytes: proto/WIRE.md section 1.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "datapath/transport/mesh/frames.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {

/// Describes the sender, and the rank that the sender expects at the other end.
struct Hello {
  uint64_t job = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t expected_peer = 0;   // UINT32_MAX: the sender accepted the connection, cannot know
  uint32_t node = 0;            // the node with which the sender can share memory; 0: none
  std::string rendezvous = {};  // name of its rendezvous socket, 16 bytes; empty unless an answer
  uint16_t connections = 1;     // per pair of ranks, as the sender wants it
  uint16_t connection = 0;      // the number of this one
  Protection protection = Protection::kChecked;  // of frames, as the sender wants it
  Nonce nonce = {};                              // 0 without a key
};
inline constexpr size_t kRendezvousNameBytes = 16;

/// The protection of frames that the options ask for.
Protection ProtectionOf(const TransportOptions& options);
/// Why this rank and `other`, which wants `theirs`, cannot connect; empty if both want the same.
std::string KeysDiffer(const TransportOptions& options, Protection theirs, std::string_view other);

/// A whole frame of `type`; with a sealer it has a tag.
std::vector<std::byte> EncodeFrame(FrameType type, int rank, std::span<const std::byte> payload,
                                   FrameSealer* sealer = nullptr);
/// A kAbort frame; `text` is cut to kAbortTextMax.
std::vector<std::byte> EncodeAbort(int rank, std::string_view text, FrameSealer* sealer = nullptr);

/// The payload of a hello without a proof. Both proofs and all keys of the connection depend on it.
std::vector<std::byte> EncodeHelloPayload(const Hello& hello);
/// A whole kHello frame. An answer has a proof if there is a key.
std::vector<std::byte> EncodeHello(const Hello& hello, const Secret* proof = nullptr);

struct DecodedHello {
  Hello hello;
  std::span<const std::byte> proof;  // the last bytes of the payload; may be empty
};
/// kDataLoss: the size is wrong or a value is unknown.
StatusOr<DecodedHello> DecodeHello(std::span<const std::byte> payload);

/// Reads exactly one frame, which must not be kData, from a non-blocking socket.
class HandshakeReader {
 public:
  /// `opener` outlives it. Without one the frame has checksums.
  explicit HandshakeReader(FrameOpener* opener = nullptr) : opener_(opener) {}

  /// Returns true once the frame is complete. kDataLoss: malformed; kUnavailable: the stream ended.
  StatusOr<bool> Read(int fd);
  const FrameHeader& header() const { return header_; }
  std::span<const std::byte> payload() const {
    return std::span(bytes_).subspan(kFrameHeaderBytes, header_.payload_bytes);
  }
  /// The payload of a kAbort frame.
  std::string text() const { return PrintableText(payload()); }

 private:
  size_t trailer_bytes() const { return opener_ != nullptr ? kFrameTagBytes : 0; }
  Status ReadHeader();
  Status Verify();

  FrameOpener* opener_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kFrameHeaderBytes);
  size_t filled_ = 0;
  bool has_header_ = false;
  FrameHeader header_;
};

/// Writes a short frame to a fresh connection, whose send buffer has room for it; best effort.
bool WriteFrame(int fd, std::span<const std::byte> frame);

}  // namespace weir::mesh
