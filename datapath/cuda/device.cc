// SPDX-License-Identifier: Apache-2.0
// A bucket's work of one operation runs in order on a stream of its own, taken from the device's
// idle ones, and each function waits for its end. So memory from the pools is free of work when it
// is returned, and no thread waits for anything but the bucket's own kernels. The bucket's stream
// does not wait for the caller's: a session polls IsReady first, because the caller's stream may
// wait for a peer that is lost, which must not keep a session from closing.

#include "datapath/cuda/device.h"

#include <cmath>
#include <limits>
#include <map>
#include <new>
#include <vector>

#include "datapath/base/mutex.h"
#include "datapath/cuda/device_codec.h"
#include "datapath/cuda/device_group.h"
#include "datapath/cuda/memory.h"
#include "datapath/cuda/passes.h"
#include "datapath/nccl/communicator.h"

namespace weir::cuda {
namespace {

/// The most that each of the two pools of a device keeps for later operations.
constexpr size_t kIdleMax = 16;
constexpr size_t kIdleBytesMax = size_t{1} << 30;

struct WidenElements {
  const uint16_t* in;
  float* out;
  bool half;
  WEIR_DEVICE void operator()(size_t i) const {
    const uint16_t lane = in[i];
    if (!half) {
      out[i] = FromBrain(lane);
    } else if (HalfIsFinite(lane)) {
      out[i] = FromHalf(lane);
    } else {
      out[i] = FloatOf((lane & 0x8000u) << 16 | kInfinityBits | (lane & 0x3FFu) << 13);
    }
  }
};
struct AddElements {
  const float* from;
  float* to;
  WEIR_DEVICE void operator()(size_t i) const { to[i] += from[i]; }
};
struct ScaleElements {
  float* data;
  float scale;
  WEIR_DEVICE void operator()(size_t i) const { data[i] *= scale; }
};
struct MoveEstimate {
  float* data;
  const float* estimate;
  float* next;
  float scale;
  WEIR_DEVICE void operator()(size_t i) const {
    const float moved = estimate[i] + data[i];
    next[i] = moved;
    data[i] = scale * moved;
  }
};
struct NarrowElements {
  const float* in;
  uint16_t* out;
  bool half;
  WEIR_DEVICE void operator()(size_t i) const { out[i] = half ? ToHalf(in[i]) : ToBrain(in[i]); }
};
template <class T>
struct FillElements {
  T* out;
  T value;
  WEIR_DEVICE void operator()(size_t i) const { out[i] = value; }
};

/// The smallest magnitude that is infinite when rounded to the type; see FitsDtype.
float LimitOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return std::numeric_limits<float>::infinity();
    case Dtype::kFloat16:
      return 65520.0f;
    case Dtype::kBrain16:
      return 0x1.FFp127f;
  }
  return 0;
}

class GpuDevice final : public Device {
 public:
  GpuDevice(int ordinal, std::string name)
      : ordinal_(ordinal),
        name_(std::move(name)),
        pinned_(kIdleMax, kIdleBytesMax, PoolOf<PinnedBuffer>()),
        memory_(kIdleMax, kIdleBytesMax, PoolOf<DeviceBuffer>()) {}

  const std::string& name() const override { return name_; }
  bool Runs(const Codec& codec) const override {
    return FindDeviceCodec(codec.Traits().name) != nullptr;
  }
  StatusOr<std::unique_ptr<DeviceBucket>> Open(const DeviceData& data) override;
  ScratchPool& pinned() override { return pinned_; }

  StatusOr<float*> Allocate(size_t count) override {
    const UseDevice use(ordinal_);
    WEIR_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(count * sizeof(float)));
    WEIR_ASSIGN_OR_RETURN(OwnStream stream, TakeStream());
    WEIR_RETURN_IF_ERROR(FillDevice(buffer.data(), 0, buffer.size(), stream.get()));
    WEIR_RETURN_IF_ERROR(WaitAndReturn(std::move(stream)));
    MutexLock lock(mutex_);
    auto* const floats = reinterpret_cast<float*>(buffer.data());
    held_[floats] = std::move(buffer);
    return floats;
  }
  void Free(float* floats) noexcept override {
    const UseDevice use(ordinal_);
    MutexLock lock(mutex_);
    held_.erase(floats);
  }
  Status ReadFloats(float* to, const float* from, size_t count) override {
    const UseDevice use(ordinal_);
    WEIR_ASSIGN_OR_RETURN(OwnStream stream, TakeStream());
    WEIR_RETURN_IF_ERROR(CopyToHost(to, from, count * sizeof(float), stream.get()));
    return WaitAndReturn(std::move(stream));
  }
  Status WriteFloats(float* to, const float* from, size_t count) override {
    const UseDevice use(ordinal_);
    WEIR_ASSIGN_OR_RETURN(OwnStream stream, TakeStream());
    WEIR_RETURN_IF_ERROR(CopyToDevice(to, from, count * sizeof(float), stream.get()));
    return WaitAndReturn(std::move(stream));
  }
  Status AddFloats(float* to, const float* from, size_t count) override {
    if (count == 0) return OkStatus();
    const UseDevice use(ordinal_);
    WEIR_ASSIGN_OR_RETURN(OwnStream stream, TakeStream());
    WEIR_RETURN_IF_ERROR(ForEachElement(stream.get(), count, AddElements{from, to}));
    return WaitAndReturn(std::move(stream));
  }
  StatusOr<ScratchBuffer> TakeMemory(size_t bytes) override { return TakeFrom(memory_, bytes); }
  StatusOr<DeviceGroupId> NewGroupId() override { return nccl::NewId(); }
  StatusOr<std::unique_ptr<DeviceGroup>> Join(const DeviceGroupId& id, int place,
                                              int size) override {
    return JoinGroup(ordinal_, id, place, size);
  }

  int ordinal() const { return ordinal_; }
  StatusOr<ScratchBuffer> TakePinned(size_t bytes) { return TakeFrom(pinned_, bytes); }
  StatusOr<OwnStream> TakeStream() {
    {
      MutexLock lock(mutex_);
      if (!streams_.empty()) {
        OwnStream stream = std::move(streams_.back());
        streams_.pop_back();
        return stream;
      }
    }
    return OwnStream::Make();
  }
  Status WaitAndReturn(OwnStream stream) {
    WEIR_RETURN_IF_ERROR(Synchronise(stream.get()));
    MutexLock lock(mutex_);
    if (streams_.size() < kIdleMax) streams_.push_back(std::move(stream));
    return OkStatus();
  }

 private:
  /// Buffers are known by their addresses, because a pool has only these.
  template <class Buffer>
  ScratchMemory PoolOf() {
    struct Buffers {
      Mutex mutex;
      std::map<std::byte*, Buffer> held WEIR_GUARDED_BY(mutex);
    };
    const auto buffers = std::make_shared<Buffers>();
    return {.allocate =
                [this, buffers](size_t bytes) {
                  const UseDevice use(ordinal_);
                  StatusOr<Buffer> made = Buffer::Make(bytes);
                  if (!made.ok()) throw std::bad_alloc();
                  MutexLock lock(buffers->mutex);
                  std::byte* const data = made->data();
                  buffers->held[data] = *std::move(made);
                  return data;
                },
            .free =
                [this, buffers](std::byte* data) {
                  const UseDevice use(ordinal_);
                  MutexLock lock(buffers->mutex);
                  buffers->held.erase(data);
                }};
  }
  StatusOr<ScratchBuffer> TakeFrom(ScratchPool& pool, size_t bytes) {
    try {
      return pool.Take(bytes);
    } catch (const std::bad_alloc&) {
      return ResourceExhausted(StrCat(name_, ": no memory for ", bytes, " bytes"));
    }
  }

  const int ordinal_;
  const std::string name_;
  ScratchPool pinned_, memory_;
  Mutex mutex_;
  std::vector<OwnStream> streams_ WEIR_GUARDED_BY(mutex_);  // without work
  std::map<float*, DeviceBuffer> held_ WEIR_GUARDED_BY(mutex_);
};

/// Parts of one piece of memory.
class Parts {
 public:
  explicit Parts(std::span<std::byte> memory) : memory_(memory) {}
  static size_t Room(size_t bytes) {
    return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  }
  template <class T>
  std::span<T> Take(size_t count) {
    const std::span<std::byte> part = memory_.first(count * sizeof(T));
    memory_ = memory_.subspan(Room(part.size()));
    return {reinterpret_cast<T*>(part.data()), count};
  }

 private:
  std::span<std::byte> memory_;
};

class GpuBucket final : public DeviceBucket {
 public:
  GpuBucket(GpuDevice& device, const DeviceData& data, Event ready)
      : device_(device), data_(data), ready_(std::move(ready)) {}
  ~GpuBucket() override {
    const UseDevice use(device_.ordinal());
    // A failure has been reported, or the next operation will find it.
    if (stream_.get().handle != nullptr) (void)device_.WaitAndReturn(std::move(stream_));
  }

  Device& device() const override { return device_; }

  StatusOr<bool> IsReady() override {
    const UseDevice use(device_.ordinal());
    WEIR_ASSIGN_OR_RETURN(const bool done, ready_.IsDone());
    if (done && stream_.get().handle == nullptr) {
      WEIR_ASSIGN_OR_RETURN(stream_, device_.TakeStream());
    }
    return done;
  }

  Status CopyToHost(std::span<std::byte> to) override {
    const UseDevice use(device_.ordinal());
    WEIR_RETURN_IF_ERROR(cuda::CopyToHost(to.data(), data_.data, to.size(), stream()));
    return Synchronise(stream());
  }
  Status CopyFromHost(std::span<const std::byte> from) override {
    const UseDevice use(device_.ordinal());
    WEIR_RETURN_IF_ERROR(CopyToDevice(data_.data, from.data(), from.size(), stream()));
    return Synchronise(stream());
  }

  StatusOr<std::span<float>> Floats() override {
    const UseDevice use(device_.ordinal());
    if (data_.dtype == Dtype::kFloat32) {
      floats_ = {static_cast<float*>(data_.data), data_.elements};
      return floats_;
    }
    WEIR_ASSIGN_OR_RETURN(wide_, device_.TakeMemory(data_.elements * sizeof(float)));
    floats_ = wide_.floats(data_.elements);
    WEIR_RETURN_IF_ERROR(ForEachElement(
        stream(), floats_.size(),
        WidenElements{static_cast<const uint16_t*>(data_.data), floats_.data(), IsHalf()}));
    WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    return floats_;
  }

  StatusOr<SharedMax> LocalMax(const Codec& codec, std::span<const float> residual,
                               const EncodeContext& context) override {
    const UseDevice use(device_.ordinal());
    WEIR_ASSIGN_OR_RETURN(const Setup setup, SetUp(codec, context));
    std::vector<float> maxima(setup.codec->MaxCount(floats_.size()));
    WEIR_RETURN_IF_ERROR(
        Finish(setup.codec->LocalMax(floats_, residual, setup.call, setup.maxima.data())));
    WEIR_RETURN_IF_ERROR(Finish(cuda::CopyToHost(maxima.data(), setup.maxima.data(),
                                                 maxima.size() * sizeof(float), stream())));
    WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    return SharedMax(std::move(maxima));
  }

  StatusOr<EncodeResult> Encode(const Codec& codec, std::span<const float> residual,
                                std::span<float> rest, const EncodeContext& context,
                                std::span<std::byte> out) override {
    const UseDevice use(device_.ordinal());
    WEIR_ASSIGN_OR_RETURN(const Setup setup, SetUp(codec, context));
    const size_t room = codec.MaxEncodedBytes(floats_.size(), context) - context.previous.size();
    if (out.size() < room) return Internal(StrCat("output of ", out.size(), " bytes"));
    WEIR_ASSIGN_OR_RETURN(ScratchBuffer payload, device_.TakeMemory(room));
    const PassOperands operands{.gradient = floats_, .residual = residual, .rest = rest};
    const DeviceCodec& on_device = *setup.codec;
    WEIR_RETURN_IF_ERROR(Finish(on_device.Encode(operands, setup.call, payload.bytes())));
    const bool fixed = codec.Traits().form == PayloadForm::kLanes && codec.Traits().rounds == 1;
    if (fixed) {
      WEIR_RETURN_IF_ERROR(
          Finish(cuda::CopyToHost(out.data(), payload.bytes().data(), room, stream())));
    }
    const StatusOr<Outcome> outcome = on_device.Resolve(operands, setup.call, payload.bytes());
    WEIR_RETURN_IF_ERROR(Finish(outcome.status()));
    if (outcome->bytes > room || (fixed && outcome->bytes != room)) {
      return Internal(
          StrCat(codec.Traits().name, ": ", outcome->bytes, " bytes, expected at most ", room));
    }
    if (!fixed) {
      WEIR_RETURN_IF_ERROR(
          Finish(cuda::CopyToHost(out.data(), payload.bytes().data(), outcome->bytes, stream())));
    }
    std::vector<uint32_t> bins(context.statistics != nullptr ? GradientStatistics::kBins : 0);
    WEIR_RETURN_IF_ERROR(Finish(
        cuda::CopyToHost(bins.data(), setup.call.bins, bins.size() * sizeof(uint32_t), stream())));
    WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    if (context.statistics != nullptr) {
      *context.statistics = StatisticsOf(*outcome, bins, floats_.size());
    }
    return ResultOf(*outcome);
  }

  StatusOr<bool> DecodeSum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                           std::span<const int> ranks, const EncodeContext& context,
                           float scale) override {
    const UseDevice use(device_.ordinal());
    const auto rank_of = [&](size_t i) {
      if (!ranks.empty()) return ranks[i];
      return payloads.size() > 1 ? static_cast<int>(i) : context.rank;
    };
    WEIR_ASSIGN_OR_RETURN(Setup setup, SetUp(codec, context, payloads.size()));
    size_t room = 0;
    for (const auto& payload : payloads) room += Parts::Room(payload.size());
    WEIR_ASSIGN_OR_RETURN(ScratchBuffer received, device_.TakeMemory(room));
    std::vector<uint64_t> faults(payloads.size());
    const auto run = [&]() -> Status {
      Parts parts(received.bytes());
      WEIR_RETURN_IF_ERROR(
          FillDevice(setup.faults.data(), 0xFF, setup.faults.size_bytes(), stream()));
      WEIR_RETURN_IF_ERROR(FillDevice(floats_.data(), 0, floats_.size_bytes(), stream()));
      for (size_t i = 0; i < payloads.size(); ++i) {
        const auto payload = parts.Take<std::byte>(payloads[i].size());
        WEIR_RETURN_IF_ERROR(
            CopyToDevice(payload.data(), payloads[i].data(), payload.size(), stream()));
        setup.call.fault = &setup.faults[i];
        setup.call.payload_on_host = payloads[i];
        setup.call.context.rank = rank_of(i);
        WEIR_RETURN_IF_ERROR(Annotate(setup.codec->DecodeAdd(payload, setup.call, scale, floats_),
                                      RankName(rank_of(i))));
      }
      WEIR_RETURN_IF_ERROR(
          MaxMagnitude(floats_, std::span<const float>(), setup.call, setup.largest.data()));
      WEIR_RETURN_IF_ERROR(cuda::CopyToHost(faults.data(), setup.faults.data(),
                                            setup.faults.size_bytes(), stream()));
      return cuda::CopyToHost(&largest_, setup.largest.data(), sizeof(largest_), stream());
    };
    WEIR_RETURN_IF_ERROR(Finish(run()));
    WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    for (size_t i = 0; i < faults.size(); ++i) {
      WEIR_RETURN_IF_ERROR(CheckFault(faults[i], rank_of(i), codec));
    }
    return std::isfinite(largest_);
  }

  Status Subtract(const Codec& codec, std::span<const std::byte> payload,
                  const EncodeContext& context, std::span<const float> from,
                  std::span<float> to) override {
    const UseDevice use(device_.ordinal());
    WEIR_ASSIGN_OR_RETURN(Setup setup, SetUp(codec, context, 1));
    WEIR_ASSIGN_OR_RETURN(ScratchBuffer received, device_.TakeMemory(payload.size()));
    const auto copy = received.bytes().first(payload.size());
    uint64_t fault = 0;
    setup.call.fault = setup.faults.data();
    setup.call.payload_on_host = payload;
    const auto run = [&]() -> Status {
      WEIR_RETURN_IF_ERROR(CopyOnDevice(to.data(), from.data(), from.size_bytes(), stream()));
      WEIR_RETURN_IF_ERROR(FillDevice(setup.call.fault, 0xFF, sizeof(fault), stream()));
      WEIR_RETURN_IF_ERROR(CopyToDevice(copy.data(), payload.data(), payload.size(), stream()));
      WEIR_RETURN_IF_ERROR(setup.codec->DecodeAdd(copy, setup.call, -1.0f, to));
      return cuda::CopyToHost(&fault, setup.call.fault, sizeof(fault), stream());
    };
    WEIR_RETURN_IF_ERROR(Finish(run()));
    WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    return CheckFault(fault, context.rank, codec);
  }

  StatusOr<bool> AddToEstimate(std::span<const float> estimate, std::span<float> next,
                               float scale) override {
    return Change(MoveEstimate{floats_.data(), estimate.data(), next.data(), scale});
  }
  StatusOr<bool> Scale(float scale) override {
    return Change(ScaleElements{floats_.data(), scale});
  }

  StatusOr<std::unique_ptr<DeviceBucket>> Part(size_t begin, size_t size) override {
    const UseDevice use(device_.ordinal());
    const DeviceData data{.data = &floats_[begin], .elements = size};
    auto part = std::make_unique<GpuBucket>(device_, data, Event());
    WEIR_ASSIGN_OR_RETURN(part->stream_, device_.TakeStream());
    part->floats_ = floats_.subspan(begin, size);
    return part;
  }

  StatusOr<bool> Deliver() override {
    const UseDevice use(device_.ordinal());
    if (!(largest_ < LimitOf(data_.dtype))) return false;
    if (data_.dtype == Dtype::kFloat32) return true;
    WEIR_RETURN_IF_ERROR(ForEachElement(
        stream(), floats_.size(),
        NarrowElements{floats_.data(), static_cast<uint16_t*>(data_.data), IsHalf()}));
    WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    return true;
  }

  Status FillNan() override {
    const UseDevice use(device_.ordinal());
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (data_.dtype == Dtype::kFloat32) {
      WEIR_RETURN_IF_ERROR(ForEachElement(
          stream(), data_.elements, FillElements<float>{static_cast<float*>(data_.data), nan}));
    } else {
      uint16_t lane = 0;
      IsHalf() ? FloatToHalf({&nan, 1}, {&lane, 1}) : FloatToBrain({&nan, 1}, {&lane, 1});
      WEIR_RETURN_IF_ERROR(
          ForEachElement(stream(), data_.elements,
                         FillElements<uint16_t>{static_cast<uint16_t*>(data_.data), lane}));
    }
    return Synchronise(stream());
  }

 private:
  /// A call of a codec, and what it uses besides the operands.
  struct Setup {
    const DeviceCodec* codec = nullptr;
    DeviceCall call;
    std::span<float> maxima, largest;
    std::span<uint64_t> faults;
    ScratchBuffer memory, pinned;
  };

  StatusOr<Setup> SetUp(const Codec& codec, const EncodeContext& context, size_t payloads = 0) {
    Setup setup;
    setup.codec = FindDeviceCodec(codec.Traits().name);
    WEIR_CHECK(setup.codec != nullptr && stream().handle != nullptr);
    const size_t n = floats_.size();
    setup.call.context = context;
    setup.call.stream = stream();
    const std::span<const float> shared = context.shared_max.values();
    const size_t workspace = std::max(setup.codec->WorkspaceBytes(n, setup.call), kPassWorkspace);
    const size_t maxima = std::max(setup.codec->MaxCount(n), shared.size());
    const size_t bins = context.statistics != nullptr ? GradientStatistics::kBins : 0;
    WEIR_ASSIGN_OR_RETURN(
        setup.memory,
        device_.TakeMemory(Parts::Room(workspace) + Parts::Room(maxima * sizeof(float)) +
                           Parts::Room(bins * sizeof(uint32_t)) + Parts::Room(sizeof(Outcome)) +
                           Parts::Room(payloads * sizeof(uint64_t)) + Parts::Room(sizeof(float))));
    Parts parts(setup.memory.bytes());
    setup.call.workspace = parts.Take<std::byte>(workspace);
    setup.maxima = parts.Take<float>(maxima);
    if (bins > 0) setup.call.bins = parts.Take<uint32_t>(bins).data();
    setup.call.outcome = parts.Take<Outcome>(1).data();
    setup.faults = parts.Take<uint64_t>(payloads);
    setup.largest = parts.Take<float>(1);
    if (const size_t pinned = setup.codec->PinnedBytes(n, setup.call); pinned > 0) {
      WEIR_ASSIGN_OR_RETURN(setup.pinned, device_.TakePinned(pinned));
      setup.call.pinned = setup.pinned.bytes();
    }
    if (!shared.empty()) {
      setup.call.shared_max = setup.maxima.first(shared.size());
      WEIR_RETURN_IF_ERROR(
          CopyToDevice(setup.maxima.data(), shared.data(), shared.size_bytes(), stream()));
      // The values live no longer than the caller's context.
      WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    }
    return setup;
  }

  /// Calls visit(i) for every element, which changes it. Returns whether all are finite then.
  template <class Visit>
  StatusOr<bool> Change(const Visit& visit) {
    const UseDevice use(device_.ordinal());
    WEIR_ASSIGN_OR_RETURN(ScratchBuffer memory, device_.TakeMemory(Parts::Room(kPassWorkspace) +
                                                                   Parts::Room(sizeof(float))));
    Parts parts(memory.bytes());
    DeviceCall call;
    call.stream = stream();
    call.workspace = parts.Take<std::byte>(kPassWorkspace);
    float* const largest = parts.Take<float>(1).data();
    const auto run = [&]() -> Status {
      WEIR_RETURN_IF_ERROR(ForEachElement(stream(), floats_.size(), visit));
      WEIR_RETURN_IF_ERROR(MaxMagnitude(floats_, {}, call, largest));
      return cuda::CopyToHost(&largest_, largest, sizeof(largest_), stream());
    };
    WEIR_RETURN_IF_ERROR(Finish(run()));
    WEIR_RETURN_IF_ERROR(Synchronise(stream()));
    return std::isfinite(largest_);
  }
  static Status CheckFault(uint64_t fault, int rank, const Codec& codec) {
    if (fault == std::numeric_limits<uint64_t>::max()) return OkStatus();
    return DataLoss(
        StrCat(RankName(rank), ": ", codec.Traits().name, ": malformed at offset ", fault));
  }

  /// Waits after an error, because memory of work that is under way is about to be returned.
  Status Finish(Status status) {
    if (!status.ok()) (void)Synchronise(stream());
    return status;
  }
  static std::string RankName(int rank) { return StrCat("payload of rank ", rank); }

  Stream stream() const { return stream_.get(); }
  bool IsHalf() const { return data_.dtype == Dtype::kFloat16; }

  GpuDevice& device_;
  const DeviceData data_;
  const Event ready_;
  OwnStream stream_;
  ScratchBuffer wide_;  // the float32 copy of 16-bit data
  std::span<float> floats_;
  float largest_ = 0;  // magnitude of the decoded sum
};

StatusOr<std::unique_ptr<DeviceBucket>> GpuDevice::Open(const DeviceData& data) {
  const UseDevice use(ordinal_);
  const Stream stream{data.stream};
  if (reinterpret_cast<uintptr_t>(data.data) % DtypeBytes(data.dtype) != 0) {
    return InvalidArgument("data: is not aligned to its elements");
  }
  if (IsCaptured(stream)) {
    return FailedPrecondition(
        StrCat("the stream records a CUDA graph, which cannot hold an exchange with other hosts"));
  }
  WEIR_ASSIGN_OR_RETURN(Event ready, Event::Record(stream));
  return std::unique_ptr<DeviceBucket>(std::make_unique<GpuBucket>(*this, data, std::move(ready)));
}

}  // namespace

StatusOr<Device*> FindDevice(int ordinal) {
  // Never destroyed, because sessions may outlive static destructors.
  static Mutex& mutex = *new Mutex();
  static auto& devices = *new std::map<int, std::unique_ptr<GpuDevice>>();
  const int count = DeviceCount();
  if (ordinal < 0 || ordinal >= count) {
    return InvalidArgument(StrCat("device: found ", ordinal, ", there are ", count));
  }
  MutexLock lock(mutex);
  std::unique_ptr<GpuDevice>& device = devices[ordinal];
  if (device == nullptr) {
    device = std::make_unique<GpuDevice>(ordinal, StrCat("device ", ordinal));
  }
  return device.get();
}

}  // namespace weir::cuda
