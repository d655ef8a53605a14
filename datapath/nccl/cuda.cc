// SPDX-License-Identifier: Apache-2.0
// The device of the nccl transport: NCCL and CUDA's run time. Source: NVIDIA's NCCL user guide,
// "Creating a communicator" (non-blocking), "Point-to-point communication", "Fault tolerance".

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstring>

#include "datapath/nccl/transport.h"

namespace weir::nccl {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));
// A channel moves one batch at a time, and a rank has two channels per peer. With few blocks each,
// they can run at the same time as each other and as the job's own kernels.
constexpr int kBlocksMax = 4;

Status CudaError(const char* what, cudaError_t error) {
  return Unavailable(StrCat(what, ": ", cudaGetErrorString(error)));
}

Status NcclError(const char* what, ncclResult_t result, ncclComm_t comm) {
  const char* const detail = ncclGetLastError(comm);
  return Unavailable(StrCat(what, ": ", ncclGetErrorString(result),
                            detail == nullptr || *detail == 0 ? "" : "; ",
                            detail == nullptr ? "" : detail));
}

bool Begun(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

class CudaChannel : public Channel {
 public:
  CudaChannel(int device, bool sends) : device_(device), sends_(sends) {}
  ~CudaChannel() override {
    if (cudaSetDevice(device_) != cudaSuccess) return;
    // Unlike finalising, this never waits for the peer. The stream is idle afterwards.
    if (comm_ != nullptr) ncclCommAbort(comm_);
    if (event_ != nullptr) cudaEventDestroy(event_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status Make(const ncclUniqueId& id) {
    WEIR_RETURN_IF_ERROR(Select());
    cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    if (error != cudaSuccess) return CudaError("cannot make a stream", error);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kBlocksMax;
    const ncclResult_t result = ncclCommInitRankConfig(&comm_, 2, id, sends_ ? 0 : 1, &config);
    return Begun(result) ? OkStatus() : NcclError("ncclCommInitRankConfig", result, comm_);
  }

  StatusOr<bool> Done() override {
    WEIR_RETURN_IF_ERROR(Select());
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
    if (result != ncclSuccess) return NcclError("ncclCommGetAsyncError", result, comm_);
    if (state == ncclInProgress) return false;
    if (state != ncclSuccess) return NcclError("NCCL", state, comm_);
    if (stage_ == Stage::kBeginning) {  // now the whole batch is in the stream
      if (const cudaError_t error = cudaEventRecord(event_, stream_); error != cudaSuccess) {
        return CudaError("cudaEventRecord", error);
      }
      stage_ = Stage::kMoving;
    }
    if (stage_ == Stage::kMoving) {
      const cudaError_t error = cudaEventQuery(event_);
      if (error == cudaErrorNotReady) return false;
      if (error != cudaSuccess) return CudaError("cudaEventQuery", error);
      stage_ = Stage::kIdle;
    }
    return true;
  }

  Status Begin(std::span<const std::span<std::byte>> buffers) override {
    WEIR_RETURN_IF_ERROR(Select());
    const int peer = sends_ ? 1 : 0;
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) return NcclError("ncclGroupStart", result, comm_);
    for (const std::span<std::byte> buffer : buffers) {
      result = sends_ ? ncclSend(buffer.data(), buffer.size(), ncclUint8, peer, comm_, stream_)
                      : ncclRecv(buffer.data(), buffer.size(), ncclUint8, peer, comm_, stream_);
      if (!Begun(result)) break;
    }
    const ncclResult_t ended =
        ncclGroupEnd();  // also after a failure, because the group must not stay open
    if (!Begun(result)) return NcclError(sends_ ? "ncclSend" : "ncclRecv", result, comm_);
    if (!Begun(ended)) return NcclError("ncclGroupEnd", ended, comm_);
    stage_ = Stage::kBeginning;
    return OkStatus();
  }

 private:
  enum class Stage { kIdle, kBeginning, kMoving };

  // The current device belongs to the thread, which may differ between calls.
  Status Select() const {
    const cudaError_t error = cudaSetDevice(device_);
    return error == cudaSuccess ? OkStatus() : CudaError("cudaSetDevice", error);
  }

  const int device_;
  const bool sends_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  Stage stage_ = Stage::kIdle;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int device) : device_(device) {}

  StatusOr<UniqueId> NewId() override {
    ncclUniqueId made;
    const ncclResult_t result = ncclGetUniqueId(&made);
    if (result != ncclSuccess) return NcclError("ncclGetUniqueId", result, nullptr);
    UniqueId id;
    std::memcpy(id.data(), &made, id.size());
    return id;
  }

  StatusOr<std::unique_ptr<Channel>> Open(const UniqueId& id, bool sends) override {
    ncclUniqueId made;
    std::memcpy(&made, id.data(), id.size());
    auto channel = std::make_unique<CudaChannel>(device_, sends);
    WEIR_RETURN_IF_ERROR(channel->Make(made));
    return channel;
  }

  Status Check(std::span<const std::byte> buffer) const override {
    cudaPointerAttributes attributes = {};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, buffer.data());
    const bool device = error == cudaSuccess && attributes.type == cudaMemoryTypeDevice &&
                        attributes.device == device_;
    if (device || (error == cudaSuccess && attributes.type == cudaMemoryTypeManaged)) {
      return OkStatus();
    }
    return InvalidArgument(StrCat("buffer: expected memory of CUDA device ", device_, ", found ",
                                  attributes.type == cudaMemoryTypeDevice
                                      ? StrCat("that of device ", attributes.device)
                                      : std::string("memory of the host")));
  }

 private:
  const int device_;
};

StatusOr<std::unique_ptr<Device>> OpenCurrent() {
  int count = 0, device = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error != cudaSuccess) return CudaError("no CUDA device", error);
  if (count == 0) return Unavailable("no CUDA device");
  return std::make_unique<CudaDevice>(device);
}

}  // namespace

std::unique_ptr<TransportFactory> MakeCudaFactory() { return MakeFactory(OpenCurrent); }

}  // namespace weir::nccl
