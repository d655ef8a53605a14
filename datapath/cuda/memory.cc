// SPDX-License-Identifier: Apache-2.0
#include "datapath/cuda/memory.h"

#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "datapath/base/check.h"
#include "datapath/base/mutex.h"
#include "datapath/cuda/team.h"

namespace weir::cuda {

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(stream_, other.stream_);
  return *this;
}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
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
  (void)cudaGetLastError();  // or the next launch would report it, too
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

namespace {

/// The source of Weir's memory on a device. cudaFree waits for all work of the device, the
/// training's too; CUDA's pools do not.
struct MemorySource {
  cudaMemPool_t pool = nullptr;   // null: the device has none
  cudaStream_t stream = nullptr;  // of allocations and releases only, so that it never has to wait
};

/// The memory that a pool keeps after its release, beyond what is in use.
constexpr uint64_t kReservedBytesMax = uint64_t{256} << 20;

/// Lets all devices that can reach this one use the pool's memory, as they may use that of
/// cudaMalloc once a library has enabled it: NCCL's ranks of one process read each other's buffers.
/// A device that another process holds alone, for instance, stays without.
void ShareWithPeers(int device, cudaMemPool_t pool) {
  int devices = 0;
  (void)CudaStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  for (int peer = 0; peer < devices; ++peer) {
    int reaches = 0;
    if (peer == device) continue;
    (void)CudaStatus(cudaDeviceCanAccessPeer(&reaches, peer, device), "cudaDeviceCanAccessPeer");
    if (reaches == 0) continue;
    cudaMemAccessDesc access{};
    access.location = {cudaMemLocationTypeDevice, peer};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    (void)CudaStatus(cudaMemPoolSetAccess(pool, &access, 1), "cudaMemPoolSetAccess");
  }
}

/// A device on which any of it fails has no pool.
MemorySource Create(int device) {
  int has_pools = 0;
  (void)CudaStatus(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device),
                   "cudaDeviceGetAttribute");
  if (has_pools == 0) return {};
  MemorySource source;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  uint64_t reserved = kReservedBytesMax;
  if (!CudaStatus(cudaMemPoolCreate(&source.pool, &properties), "cudaMemPoolCreate").ok()) {
    return {};
  }
  if (!CudaStatus(cudaMemPoolSetAttribute(source.pool, cudaMemPoolAttrReleaseThreshold, &reserved),
                  "cudaMemPoolSetAttribute")
           .ok() ||
      !CudaStatus(cudaStreamCreateWithFlags(&source.stream, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags")
           .ok()) {
    (void)CudaStatus(cudaMemPoolDestroy(source.pool), "cudaMemPoolDestroy");
    return {};
  }
  ShareWithPeers(device, source.pool);
  return source;
}

/// That of the current device.
StatusOr<MemorySource> Source() {
  // Never destroyed, because buffers may outlive static destructors.
  static Mutex& mutex = *new Mutex();
  static auto& sources = *new std::map<int, MemorySource>();
  int device = 0;
  WEIR_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  MutexLock lock(mutex);
  const auto found = sources.find(device);
  if (found != sources.end()) return found->second;
  return sources[device] = Create(device);
}

}  // namespace

StatusOr<DeviceBuffer> DeviceBuffer::Make(size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  WEIR_ASSIGN_OR_RETURN(const MemorySource source, Source());
  void* data = nullptr;
  if (source.pool == nullptr) {
    WEIR_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data, bytes), "cudaMalloc"));
  } else {
    WEIR_RETURN_IF_ERROR(
        CudaStatus(cudaMallocFromPoolAsync(&data, bytes, source.pool, source.stream),
                   "cudaMallocFromPoolAsync"));
    buffer.stream_ = source.stream;
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  if (source.pool != nullptr) {  // other streams may use it from now on
    WEIR_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(source.stream), "cudaStreamSynchronize"));
  }
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (stream_ != nullptr) {
    (void)CudaStatus(cudaFreeAsync(data_, static_cast<cudaStream_t>(stream_)), "cudaFreeAsync");
  } else {
    (void)CudaStatus(cudaFree(data_), "cudaFree");
  }
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
  if (found == cudaErrorNotReady) {
    (void)cudaGetLastError();  // it is no error, but the next launch would take it for its own
    return false;
  }
  WEIR_RETURN_IF_ERROR(CudaStatus(found, "cudaEventQuery"));
  return true;
}
int DeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
UseDevice::UseDevice(int ordinal) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess) mode_ = mode;
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current == ordinal) return;
  if (cudaSetDevice(ordinal) == cudaSuccess) before_ = current;
}
UseDevice::~UseDevice() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  if (mode_ >= 0) (void)cudaThreadExchangeStreamCaptureMode(&mode);
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
  const cudaError_t found = cudaStreamIsCapturing(HandleOf(stream), &status);
  if (found == cudaSuccess) return status != cudaStreamCaptureStatusNone;
  (void)cudaGetLastError();
  // The default stream, whose work would spoil what another stream records.
  return found == cudaErrorStreamCaptureImplicit;
}
namespace {

/// Takes over `recorded`.
StatusOr<cudaGraphExec_t> Instantiate(cudaGraph_t recorded) {
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = cudaGraphInstantiateWithFlags(&made, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  WEIR_RETURN_IF_ERROR(CudaStatus(error, "cudaGraphInstantiateWithFlags"));
  return made;
}

}  // namespace

StatusOr<Graph> Graph::Record(Stream stream, const std::function<Status()>& queue) {
  WEIR_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(HandleOf(stream), cudaStreamCaptureModeGlobal),
                 "cudaStreamBeginCapture"));
  const Status queued = queue();
  cudaGraph_t recorded = nullptr;
  const Status ended =
      CudaStatus(cudaStreamEndCapture(HandleOf(stream), &recorded), "cudaStreamEndCapture");
  if (!queued.ok()) {
    if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
    return queued;
  }
  WEIR_RETURN_IF_ERROR(ended);
  Graph graph;
  WEIR_ASSIGN_OR_RETURN(graph.handle_, Instantiate(recorded));
  return graph;
}
Graph::~Graph() {
  if (handle_ != nullptr) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_));
}
Status Graph::Launch(Stream stream) const {
  return CudaStatus(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), HandleOf(stream)),
                    "cudaGraphLaunch");
}

#else

StatusOr<std::string> DeviceName() { return std::string("host"); }

namespace {

/// The graphs that all threads record, and the calls that they forbid.
struct Recordings {
  std::atomic<int> running = 0;
  std::atomic<uint64_t> forbidden_calls = 0;
};
Recordings& AllRecordings() {
  static Recordings all;
  return all;
}
thread_local int devices_in_use = 0;  // UseDevice of this thread

/// Called by what CUDA forbids every thread while one records a graph, except in UseDevice.
void SpoilRecordings() {
  if (devices_in_use == 0 && AllRecordings().running > 0) ++AllRecordings().forbidden_calls;
}

}  // namespace

StatusOr<DeviceBuffer> DeviceBuffer::Make(size_t bytes) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  SpoilRecordings();
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
  SpoilRecordings();
  buffer.data_ = static_cast<std::byte*>(std::malloc(bytes));
  if (buffer.data_ == nullptr) return ResourceExhausted(StrCat("memory: ", bytes, " bytes"));
  return buffer;
}

PinnedBuffer::~PinnedBuffer() { std::free(data_); }

namespace {

/// Returns whether it is done, and is asked again until then.
using HostWork = std::function<bool()>;

/// The work that an OwnStream was given and has not begun.
class HostQueue {
 public:
  void Add(HostWork work) {
    MutexLock lock(mutex_);
    if (records_) return recorded_.push_back(std::move(work));
    waiting_.push_back(std::move(work));
    ++given_;
  }
  uint64_t given() {
    MutexLock lock(mutex_);
    return given_;
  }
  bool records() {
    MutexLock lock(mutex_);
    return records_;
  }
  /// From now on work is recorded, or not any more. Returns what was recorded so far.
  std::vector<HostWork> Record(bool records) {
    MutexLock lock(mutex_);
    records_ = records;
    return std::exchange(recorded_, {});
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
    HostWork work;
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
  std::deque<HostWork> waiting_ WEIR_GUARDED_BY(mutex_);
  std::vector<HostWork> recorded_ WEIR_GUARDED_BY(mutex_);
  bool records_ WEIR_GUARDED_BY(mutex_) = false;
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
  if (handle_ == nullptr) return;
  (void)Synchronise(get());
  delete static_cast<SharedQueue*>(handle_);
}
namespace {

struct HostEvent {
  SharedQueue queue;  // null: done
  uint64_t count;     // of its work
  bool recorded;      // a part of a graph
};

Status Recorded() {
  ++AllRecordings().forbidden_calls;
  return Unavailable("a stream that records a graph does no work that one could wait for");
}

}  // namespace

StatusOr<Event> Event::Record(Stream stream) {
  Event event;
  const SharedQueue queue = QueueOf(stream);
  event.handle_ =
      queue == nullptr ? new HostEvent{} : new HostEvent{queue, queue->given(), queue->records()};
  return event;
}
Event::~Event() { delete static_cast<HostEvent*>(handle_); }
StatusOr<bool> Event::IsDone() const {
  const auto* const event = static_cast<const HostEvent*>(handle_);
  SpoilRecordings();
  if (event->recorded) return Recorded();
  return event->queue == nullptr ||
         event->queue->RunOneUntil(event->count) == HostQueue::Ran::kAllBefore;
}
int DeviceCount() { return 1; }
UseDevice::UseDevice(int) { ++devices_in_use; }
UseDevice::~UseDevice() { --devices_in_use; }
Status Synchronise(Stream stream) {
  SpoilRecordings();
  const SharedQueue queue = QueueOf(stream);
  if (queue == nullptr) return OkStatus();
  if (queue->records()) return Recorded();
  queue->RunUntil(queue->given());
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
bool IsCaptured(Stream stream) {
  const SharedQueue queue = QueueOf(stream);
  return queue != nullptr && queue->records();
}

StatusOr<Graph> Graph::Record(Stream stream, const std::function<Status()>& queue) {
  const SharedQueue recorder = QueueOf(stream);
  WEIR_CHECK(recorder != nullptr);
  Recordings& all = AllRecordings();
  const uint64_t before = all.forbidden_calls;
  ++all.running;
  (void)recorder->Record(true);
  const Status queued = queue();
  Graph graph;
  graph.handle_ = new std::vector<HostWork>(recorder->Record(false));
  --all.running;
  WEIR_RETURN_IF_ERROR(queued);
  if (all.forbidden_calls != before) {
    return Unavailable("a call that is forbidden while a graph is recorded");
  }
  return graph;
}
Graph::~Graph() { delete static_cast<std::vector<HostWork>*>(handle_); }
Status Graph::Launch(Stream stream) const {
  for (const HostWork& work : *static_cast<const std::vector<HostWork>*>(handle_)) {
    RunOnHost(stream, [work] {
      while (!work()) sched_yield();
    });
  }
  return OkStatus();
}

#endif

}  // namespace weir::cuda
