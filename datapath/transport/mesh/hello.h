#pragma once
// The first frame of a connection in each direction, and reading single frames without reading past
// them. Bytes: proto/WIRE.md section 1.

#include <array>
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
};
inline constexpr size_t kRendezvousNameBytes = 16;

/// A whole frame of `type`.
std::vector<std::byte> EncodeFrame(FrameType type, int rank, std::span<const std::byte> payload);
/// A kAbort frame; `text` is cut to kAbortTextMax.
std::vector<std::byte> EncodeAbort(int rank, std::string_view text);
std::vector<std::byte> EncodeHello(const Hello& hello);
/// kDataLoss: wrong size.
StatusOr<Hello> DecodeHello(std::span<const std::byte> payload);

/// Collects exactly one kHello or kAbort frame from a non-blocking socket.
class HandshakeReader {
 public:
  /// True when the frame is complete. kDataLoss: malformed; kUnavailable: the stream ended.
  StatusOr<bool> Read(int fd);
  const FrameHeader& header() const { return header_; }
  std::span<const std::byte> payload() const {
    return std::span(bytes_).subspan(kFrameHeaderBytes);
  }
  /// The payload of a kAbort frame.
  std::string text() const { return PrintableText(payload()); }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kFrameHeaderBytes);
  size_t filled_ = 0;
  FrameHeader header_;
};

/// Writes a short frame to a fresh connection, whose send buffer has room for it; best effort.
bool WriteFrame(int fd, std::span<const std::byte> frame);

}  // namespace weir::mesh
