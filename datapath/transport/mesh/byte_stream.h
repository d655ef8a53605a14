// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stream of bytes between two ranks that carries frames: TCP connections or rings in shared
// memory.

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "datapath/transport/mesh/event_set.h"
#include "datapath/transport/transport.h"

namespace weir::mesh {

/// An ordered, lossless, bidirectional stream that never blocks. Sample and the log of arrivals are
/// thread-safe.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// Returns the number of bytes taken, at least 1; -EAGAIN if there is no room; another negative
  /// errno if nothing can be sent any more.
  virtual ssize_t Write(std::span<const iovec> parts) = 0;
  /// Returns the number of bytes read, at least 1; 0 at the end of the stream; -EAGAIN if there is
  /// nothing yet; -EPROTO if the peer broke the rules of the medium; -ECONNRESET if the rest of a
  /// payload is lost, after which there may be more; another negative errno if the stream is cut.
  virtual ssize_t Read(std::span<const iovec> parts) = 0;
  /// Where the reader notes when payloads arrived; null if the medium does not tell.
  virtual ArrivalLog* arrivals() { return nullptr; }
  /// When the last byte of the last Read arrived at this host, on the kernel's clock; 0: not known.
  virtual double arrived_s() const { return 0; }
  /// How many of the last bytes taken the medium still reads from the caller's memory, so that
  /// their sends are not over. An event, or Releases, reports when there are fewer.
  virtual size_t Retained() { return 0; }
  /// Ends the stream after what was written: the peer then reads its end.
  virtual void CloseWrite() = 0;
  /// To be called before the stream is destroyed, to stop all reading of retained bytes. The peer
  /// may then read an error instead of the end.
  virtual void Cut() {}

  /// Adds its descriptors to `events`, edge-triggered, with `index` as data. An event with
  /// kHangUpBit in its data means EPOLLHUP.
  virtual Status Register(EventSet& events, uint32_t index) = 0;
  static constexpr uint64_t kHangUpBit = uint64_t{1} << 32;
  /// Takes the bits that the set reported. Returns those that the connection has to handle.
  virtual uint32_t OnEvents(uint32_t events) { return events; }

  /// To be called after Read has returned -EAGAIN, if at least `bytes` (1 or more) must still
  /// arrive. An event may then wait for all of them, unless the stream ends earlier.
  virtual void Expect(size_t bytes) {}

  /// Whether there are bytes or room now. Always false for media that report this by events.
  virtual bool Readable() { return false; }
  virtual bool Writable() { return false; }
  /// Whether fewer bytes are retained than Retained last returned.
  virtual bool Releases() { return false; }
  /// Called when the reader turns to other peers. It wakes a writer that waits for room.
  virtual void TurnEnds() {}
  /// To be called before this rank sleeps: asks the peer to wake it when something of the wish
  /// becomes available. Returns false if something already is. Awake withdraws the request.
  struct Wish {
    bool bytes = false, room = false, release = false;
  };
  virtual bool PrepareSleep(const Wish& wish) { return true; }
  virtual void Awake() {}

  /// False for media whose bytes cannot change on the way. Payloads then have no checksums, in both
  /// directions.
  virtual bool checks_payload() const { return true; }
  /// Whether the peer's process seems to be on this host, by its address. Used for timing only.
  virtual bool within_host() const { return shares_memory(); }
  /// Whether polling costs less than a short sleep.
  virtual bool shares_memory() const { return false; }
  /// Whether the bytes may pass a network, where others can read and change them.
  virtual bool crosses_network() const { return !shares_memory(); }
  /// Adds the sockets whose input must be read before they are closed.
  virtual void AppendSockets(std::vector<int>* sockets) const {}
  /// How long the peer's host has left requests unanswered, and how long an answer usually takes:
  /// smoothed, plus four deviations.
  struct Silence {
    Duration lasts{}, round_trip{};
  };
  /// Zeros if no request is unanswered, or if the medium has none.
  virtual Silence HostSilence() const { return {}; }
  /// Thread-safe.
  virtual PathSample Sample(int peer) const = 0;
};

}  // namespace weir::mesh
