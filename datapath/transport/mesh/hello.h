#pragma once
// The handshake's frames: who is at the other end, and whether it holds the job's key. The dialer
// says hello, the acceptor answers with its own hello and, where there is a key, its proof, and the
// dialer sends its proof. Bytes: proto/WIRE.md section 1.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "datapath/transport/mesh/frames.h"
#include "datapath/transport/mesh/socket.h"

namespace weir::mesh {

/// Who sends it, and whom the sender believes to be talking to.
struct Hello {
  uint64_t job = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t expected_peer = 0;   // UINT32_MAX: the sender accepted and cannot know
  uint32_t node = 0;            // which memory the sender could share; 0: it does not
  std::string rendezvous = {};  // where to ask for it, 16 bytes; only in answers, else empty
  uint16_t connections = 1;     // per pair of ranks, as the sender wants it
  uint16_t connection = 0;      // which of them this is
  Protection protection = Protection::kChecked;  // of frames, as the sender wants it
  Nonce nonce = {};                              // 0 without a key
};
inline constexpr size_t kRendezvousNameBytes = 16;

/// What the options ask for.
Protection ProtectionOf(const TransportOptions& options);
/// Why this rank and `other`, which wants `theirs`, cannot connect. Empty: they mean the same.
std::string KeysDiffer(const TransportOptions& options, Protection theirs, std::string_view other);

/// A whole frame of `type`; with a sealer it has a tag.
std::vector<std::byte> EncodeFrame(FrameType type, int rank, std::span<const std::byte> payload,
                                   FrameSealer* sealer = nullptr);
/// A kAbort frame; `text` is cut to kAbortTextMax.
std::vector<std::byte> EncodeAbort(int rank, std::string_view text, FrameSealer* sealer = nullptr);

/// What a hello says, as both proofs and all keys of the connection depend on it.
std::vector<std::byte> EncodeHelloPayload(const Hello& hello);
/// A whole kHello frame; the answer where there is a key has a proof.
std::vector<std::byte> EncodeHello(const Hello& hello, const Secret* proof = nullptr);

struct DecodedHello {
  Hello hello;
  std::span<const std::byte> proof;  // the last bytes of what was decoded; may be none
};
/// kDataLoss: wrong size or an unknown value.
StatusOr<DecodedHello> DecodeHello(std::span<const std::byte> payload);

/// Collects exactly one frame that is no kData from a non-blocking socket.
class HandshakeReader {
 public:
  /// `opener` outlives it; none: the frame has checksums.
  explicit HandshakeReader(FrameOpener* opener = nullptr) : opener_(opener) {}

  /// True when the frame is complete. kDataLoss: malformed; kUnavailable: the stream ended.
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
