// SPDX-License-Identifier: Apache-2.0
#include "datapath/cuda/memory.h"

#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "datapath/base/check.h"
#include "datapath/base/mutex.h"
#include "datapath/cuda/team.h"

namespace weir::cuda {

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

OwnStream& OwnStream::operator=(OwnStream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}

#if defined(__CUDACC__)

Status CudaStatus(int error, const char* call) {
  if (error == cudaSuccess) return OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  const std::string message = StrCat(call, ": ", cudaGetErrorString(code));
  return code == cudaErrorMemoryAllocation ? ResourceExhausted(message) : Unavailable(message);
}

StatusOr<unsigned> ResidentTeams(const void* kernel) {
  int device = 0, processors = 0, each = 0;
  WEIR_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  WEIR_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                 "cudaDeviceGetAttribute"));
  WEIR_RETURN_IF_ERROR(
      CudaStatus(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kTeamThreads, 0),
                 "cudaOccupancyMaxActiveBlocksPerMultiprocessor"));
  const unsigned teams = static_cast<unsigned>(processors) * static_cast<unsigned>(each);
  return std::min(teams, kTeamsMax);
}

StatusOr<std::string> DeviceName() {
  int device = 0;
  cudaDeviceProp properties;
  WEIR_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  WEIR_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  return std::string(properties.name);
}

StatusOr<DeviceBuffer> DeviceBuffer::Make(size_t bytes) {
  DeviceBuffer buffer;
  void* data = nullptr;
  if (bytes > 0) WEIR_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data, bytes), "cudaMalloc"));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) (void)cudaFree(data_);
}

StatusOr<PinnedBuffer> PinnedBuffer::Make(size_t bytes) {
  PinnedBuffer buffer;
  void* data = nullptr;
  if (bytes > 0) WEIR_RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&data, bytes), "cudaMallocHost"));
  buffer.data_ = static_cast<std::byte*>(data);
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) (void)cudaFreeHost(data_);
}

namespace {

StatusOr<cudaEvent_t> RecordEvent(Stream stream, unsigned flags) {
  cudaEvent_t event = nullptr;
  WEIR_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | flags),
                                  "cudaEventCreateWithFlags"));
  const Status recorded = CudaStatus(
      cudaEventRecord(event, static_cast<cudaStream_t>(stream.handle)), "cudaEventRecord");
  if (recorded.ok()) return event;
  (void)cudaEventDestroy(event);
  return recorded;
}

cudaStream_t HandleOf(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream stream) {
  if (bytes == 0) return OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, bytes, kind, HandleOf(stream)), "cudaMemcpyAsync");
}

}  // namespace

Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}
Status CopyToHost(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}
Status CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
Status FillDevice(void* to, int octet, size_t bytes, Stream stream) {
  if (bytes == 0) return OkStatus();
  return CudaStatus(cudaMemsetAsync(to, octet, bytes, HandleOf(stream)), "cudaMemsetAsync");
}
Status Synchronise(Stream stream) {
  WEIR_ASSIGN_OR_RETURN(const cudaEvent_t event, RecordEvent(stream, cudaEventBlockingSync));
  const cudaError_t waited = cudaEventSynchronize(event);
  (void)cudaEventDestroy(event);
  return CudaStatus(waited, "cudaEventSynchronize");
}
StatusOr<Event> Event::Record(Stream stream) {
  Event event;
  WEIR_ASSIGN_OR_RETURN(event.handle_, RecordEvent(stream, 0));
  return event;
}
Event::~Event() {
  if (handle_ != nullptr) (void)cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}
StatusOr<bool> Event::IsDone() const {
  const cudaError_t found = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (found == cudaErrorNotReady) return false;
  WEIR_RETURN_IF_ERROR(CudaStatus(found, "cudaEventQuery"));
  return true;
}
int DeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
UseDevice::UseDevice(int ordinal) {
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current == ordinal) return;
  if (cudaSetDevice(ordinal) == cudaSuccess) before_ = current;
}
UseDevice::~UseDevice() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}
StatusOr<OwnStream> OwnStream::Make() {
  OwnStream stream;
  cudaStream_t handle = nullptr;
  WEIR_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking),
                                  "cudaStreamCreateWithFlags"));
  stream.handle_ = handle;
  return stream;
}
OwnStream::~OwnStream() {
  if (handle_ != nullptr) (void)cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}
bool IsCaptured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(HandleOf(stream), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

#else

StatusOr<std::string> DeviceName() { return std::string("host"); }

StatusOr<DeviceBuffer> DeviceBuffer::Make(size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  // The exact number of bytes, so that a sanitizer sees an access past the end.
  void* data = nullptr;
  if (posix_memalign(&data, 256, bytes) != 0) {
    return ResourceExhausted(StrCat("device memory: ", bytes, " bytes"));
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() { std::free(data_); }

StatusOr<PinnedBuffer> PinnedBuffer::Make(size_t bytes) {
  PinnedBuffer buffer;
  buffer.data_ = static_cast<std::byte*>(std::malloc(bytes));
  if (buffer.data_ == nullptr) return ResourceExhausted(StrCat("memory: ", bytes, " bytes"));
  return buffer;
}

PinnedBuffer::~PinnedBuffer() { std::free(data_); }

namespace {

/// The work that an OwnStream was given and has not begun.
class HostQueue {
 public:
  /// `work` returns whether it is done, and is asked again until then.
  void Add(std::function<bool()> work) {
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(work));
    ++given_;
  }
  uint64_t given() {
    MutexLock lock(mutex_);
    return given_;
  }
  /// Does the first `count` of all work ever given, as far as it is not done.
  void RunUntil(uint64_t count) {
    for (;;) {
      const Ran ran = RunOneUntil(count);
      if (ran == Ran::kAllBefore) return;
      if (ran == Ran::kNotDone) sched_yield();
    }
  }
  enum class Ran { kAllBefore, kOne, kNotDone };
  /// Does one of these at most, unless all were done before.
  Ran RunOneUntil(uint64_t count) {
    MutexLock running(running_);
    std::function<bool()> work;
    {
      MutexLock lock(mutex_);
      if (given_ - waiting_.size() >= count) return Ran::kAllBefore;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (work()) return Ran::kOne;
    MutexLock lock(mutex_);
    waiting_.push_front(std::move(work));
    return Ran::kNotDone;
  }

 private:
  Mutex running_;  // while work is done, in its order
  Mutex mutex_;
  std::deque<std::function<bool()> > waiting_ WEIR_GUARDED_BY(mutex_);
  uint64_t given_ WEIR_GUARDED_BY(mutex_) = 0;
};

using SharedQueue = std::shared_ptr<HostQueue>;  // to which the handle points

SharedQueue QueueOf(Stream stream) {
  if (stream.handle == nullptr || stream.handle == kBackwards) return nullptr;
  return *static_cast<SharedQueue*>(stream.handle);
}

}  // namespace

void RunOnHost(Stream stream, std::function<void()> work) {
  const SharedQueue queue = QueueOf(stream);
  if (queue == nullptr) return work();
  queue->Add([work = std::move(work)] {
    work();
    return true;
  });
}

void AwaitOnHost(Stream stream, std::function<bool()> is_done) {
  const SharedQueue queue = QueueOf(stream);
  WEIR_CHECK(queue != nullptr);
  queue->Add(std::move(is_done));
}

StatusOr<OwnStream> OwnStream::Make() {
  OwnStream stream;
  stream.handle_ = new SharedQueue(std::make_shared<HostQueue>());
  return stream;
}
OwnStream::~OwnStream() {
  (void)Synchronise(get());
  delete static_cast<SharedQueue*>(handle_);
}
namespace {

struct HostEvent {
  SharedQueue queue;  // null: done
  uint64_t count;     // of its work
};

}  // namespace

StatusOr<Event> Event::Record(Stream stream) {
  Event event;
  const SharedQueue queue = QueueOf(stream);
  event.handle_ = new HostEvent{queue, queue == nullptr ? 0 : queue->given()};
  return event;
}
Event::~Event() { delete static_cast<HostEvent*>(handle_); }
StatusOr<bool> Event::IsDone() const {
  const auto* const event = static_cast<const HostEvent*>(handle_);
  return event->queue == nullptr ||
         event->queue->RunOneUntil(event->count) == HostQueue::Ran::kAllBefore;
}
int DeviceCount() { return 1; }
UseDevice::UseDevice(int) {}
UseDevice::~UseDevice() = default;
Status Synchronise(Stream stream) {
  if (const SharedQueue queue = QueueOf(stream); queue != nullptr) queue->RunUntil(queue->given());
  return OkStatus();
}

Status CopyToDevice(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes > 0) RunOnHost(stream, [=] { std::memcpy(to, from, bytes); });
  return OkStatus();
}
Status CopyToHost(void* to, const void* from, size_t bytes, Stream stream) {
  return CopyToDevice(to, from, bytes, stream);
}
Status CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return CopyToDevice(to, from, bytes, stream);
}
Status FillDevice(void* to, int octet, size_t bytes, Stream stream) {
  if (bytes > 0) RunOnHost(stream, [=] { std::memset(to, octet, bytes); });
  return OkStatus();
}
bool IsCaptured(Stream) { return false; }

#endif

}  // namespace weir::cuda
