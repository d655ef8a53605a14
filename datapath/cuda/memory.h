// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of the device and copies to and from it. Built for the host, all of it is ordinary memory.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "datapath/base/status.h"
#include "datapath/cuda/stream.h"

namespace weir::cuda {

/// The name of the current device; kUnavailable: there is none. Built for the host: "host".
StatusOr<std::string> DeviceName();

/// Memory of the current device, aligned to 256 octets. Nothing on the device may use it any more
/// when it is destroyed, which does not wait. Not copyable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// kResourceExhausted or kUnavailable: the device's memory is full, or there is no device. 0
  /// bytes give null.
  static StatusOr<DeviceBuffer> Make(size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  [[maybe_unused]] void* stream_ = nullptr;  // in whose order the memory is freed, if any
};

/// Host memory to and from which the device copies without a wait. Not copyable.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// Errors as DeviceBuffer::Make.
  static StatusOr<PinnedBuffer> Make(size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// A stream of the current device that runs beside all others. Not copyable. The handle must not be
/// used after it is destroyed, but work that it was given is still done.
class OwnStream {
 public:
  OwnStream() = default;
  /// kUnavailable: CUDA failed.
  static StatusOr<OwnStream> Make();
  OwnStream(OwnStream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  OwnStream& operator=(OwnStream&& other) noexcept;
  ~OwnStream();

  Stream get() const { return {handle_}; }

 private:
  void* handle_ = nullptr;
};

/// The work that a stream had been given by some time. Not copyable.
class Event {
 public:
  Event() = default;
  /// Everything that the stream has been given by now. kUnavailable: CUDA failed.
  static StatusOr<Event> Record(Stream stream);
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;
  ~Event();

  /// Whether it is done. Does not wait. kUnavailable: some of it failed.
  StatusOr<bool> IsDone() const;

 private:
  void* handle_ = nullptr;
};

/// The number of devices; 0: there are none, or no driver. Built for the host: 1.
int DeviceCount();
/// Makes device `ordinal` the current one of the calling thread, until it is destroyed. Meanwhile
/// the thread may allocate and ask for events without spoiling a CUDA graph that another one
/// records.
class UseDevice {
 public:
  explicit UseDevice(int ordinal);
  ~UseDevice();
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;

 private:
  [[maybe_unused]] int before_ = -1;  // the host's memory has no devices to choose from
  [[maybe_unused]] int mode_ = -1;    // the thread's mode of capture before
};

/// Queues a copy. Host memory that is not pinned may make the call wait. kUnavailable: CUDA failed.
Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream);
Status CopyToHost(void* to, const void* from, size_t bytes, Stream stream);
Status CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);
/// Queues setting every octet to `octet`.
Status FillDevice(void* to, int octet, size_t bytes, Stream stream);
/// Waits, without keeping a core busy, for everything queued on the stream. kUnavailable: some of
/// it failed.
Status Synchronise(Stream stream);
/// Returns true while the stream records a CUDA graph, so that nothing may wait for it.
bool IsCaptured(Stream stream);

/// A CUDA graph: work that a stream has recorded instead of doing it. Weir records none; this is
/// how tests do what a training loop does. Built for the host, a copy of the work is done. Not
/// copyable.
class Graph {
 public:
  Graph() = default;
  /// Records the work that `queue` gives to `stream`, an OwnStream. Errors are those of `queue`.
  /// kUnavailable: `queue`, or a thread outside of UseDevice, did what cannot be recorded, such as
  /// waiting for the stream or allocating; or CUDA failed.
  static StatusOr<Graph> Record(Stream stream, const std::function<Status()>& queue);
  Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  /// Queues the work, whose arguments are those of the recording. kUnavailable: CUDA failed.
  Status Launch(Stream stream) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace weir::cuda
