#pragma once
// The bytes between two ranks, below the frames: a TCP connection or a ring in shared memory.

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/transport/mesh/event_set.h"
#include "datapath/transport/transport.h"

namespace weir::mesh {

/// In order, lossless, both ways, never blocking. Not thread-safe but for Sample.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// Bytes taken, at least 1; -EAGAIN when there is no room; another negative errno when nothing
  /// can be sent any more.
  virtual ssize_t Write(std::span<const iovec> parts) = 0;
  /// Bytes read, at least 1; 0 at the end of the stream; -EAGAIN when there is nothing yet; -EPROTO
  /// when the peer broke the rules of the medium; -ECONNRESET when the rest of a payload is lost,
  /// behind which there may be more; another negative errno when the stream is cut.
  virtual ssize_t Read(std::span<const iovec> parts) = 0;
  /// Of the bytes taken, how many at the end are still read from the memory they were given in:
  /// their sends are not over. An event, or Releases, tells when there are fewer.
  virtual size_t Retained() { return 0; }
  /// The peer reads the end of the stream behind what was written.
  virtual void CloseWrite() = 0;
  /// The stream is destroyed next: what is retained then is not read any more, and the peer may
  /// read an error instead of the end.
  virtual void Cut() {}

  /// Adds what can be watched, edge-triggered, with `index` as data. An event that carries
  /// kHangUpBit there means EPOLLHUP.
  virtual Status Register(EventSet& events, uint32_t index) = 0;
  static constexpr uint64_t kHangUpBit = uint64_t{1} << 32;
  /// The bits that the set told of it. Returns what of that the reader of frames has to know.
  virtual uint32_t OnEvents(uint32_t events) { return events; }

  /// Read said that there is nothing more yet, and at least so many bytes, 1 or more, must still
  /// come: an event may wait for them, unless the stream ends before.
  virtual void Expect(size_t bytes) {}

  /// True when bytes or room are there now. Media that the set watches say false: it tells.
  virtual bool Readable() { return false; }
  virtual bool Writable() { return false; }
  /// True when fewer bytes are retained than Retained last said.
  virtual bool Releases() { return false; }
  /// The reader turns to other peers: a writer that waits for room hears of it.
  virtual void TurnEnds() {}
  /// Before this rank sleeps: asks the peer to wake it when a wanted thing comes. False when one is
  /// there already. Awake takes the request back.
  struct Wish {
    bool bytes = false, room = false, release = false;
  };
  virtual bool PrepareSleep(const Wish& wish) { return true; }
  virtual void Awake() {}

  /// False for media whose bytes cannot change on the way: payloads then carry no checksum, on both
  /// sides.
  virtual bool checks_payload() const { return true; }
  /// True when the peer's process is on this host, as far as addresses tell: for timing alone.
  virtual bool within_host() const { return shares_memory(); }
  /// True when looking for news costs less than sleeping for a moment.
  virtual bool shares_memory() const { return false; }
  /// True when the bytes may pass a network, where others can read and change them.
  virtual bool crosses_network() const { return !shares_memory(); }
  /// Adds the sockets that must be read off before they are closed.
  virtual void AppendSockets(std::vector<int>* sockets) const {}
  /// How long the peer's host has answered nothing although it was asked, and how long an answer
  /// usually takes: smoothed, plus four deviations.
  struct Silence {
    Duration lasts{}, round_trip{};
  };
  /// Zeros where it was not asked, or cannot be silent.
  virtual Silence HostSilence() const { return {}; }
  /// Thread-safe.
  virtual PathSample Sample(int peer) const = 0;
};

}  // namespace weir::mesh
