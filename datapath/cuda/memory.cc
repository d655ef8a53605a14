// SPDX-License-Identifier: Apache-2.0
#include "datapath/cuda/memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "datapath/cuda/team.h"

namespace weir::cuda {

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
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

DeviceBuffer::~DeviceBuffer() { (void)cudaFree(data_); }

StatusOr<PinnedBuffer> PinnedBuffer::Make(size_t bytes) {
  PinnedBuffer buffer;
  void* data = nullptr;
  WEIR_RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&data, bytes), "cudaMallocHost"));
  buffer.data_ = static_cast<std::byte*>(data);
  return buffer;
}

PinnedBuffer::~PinnedBuffer() { (void)cudaFreeHost(data_); }

namespace {

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
  return CudaStatus(cudaStreamSynchronize(HandleOf(stream)), "cudaStreamSynchronize");
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

Status CopyToDevice(void* to, const void* from, size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return OkStatus();
}
Status CopyToHost(void* to, const void* from, size_t bytes, Stream stream) {
  return CopyToDevice(to, from, bytes, stream);
}
Status CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return CopyToDevice(to, from, bytes, stream);
}
Status FillDevice(void* to, int octet, size_t bytes, Stream) {
  if (bytes > 0) std::memset(to, octet, bytes);
  return OkStatus();
}
Status Synchronise(Stream) { return OkStatus(); }
bool IsCaptured(Stream) { return false; }

#endif

}  // namespace weir::cuda
