// SPDX-License-Identifier: Apache-2.0
#pragma once
// The residuals of error feedback: the part of gradients that lossy codecs did not send. They are
// kept per parameter, so that they survive bucket rebuilds, codec changes and checkpoints, and
// never change on a skipped step. The store also keeps, in the same way, the moving sums of
// gradients of codecs with momentum inside, the memory of EF21 in place of residuals, and the
// aggregate residuals of sums that are encoded again on their way.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/mutex.h"
#include "datapath/base/status.h"
#include "datapath/codec/codec.h"
#include "datapath/codec/device.h"

namespace weir {

/// One contiguous parameter range of a bucket. Names are stable for the life of the job.
struct ResidualParameter {
  std::string name;
  uint64_t elements = 0;
  uint64_t columns = 0;  // of a row-major matrix; divides elements; 0: a vector
  friend bool operator==(const ResidualParameter&, const ResidualParameter&) = default;
};

/// The two buffers of a bucket in one step, each as long as the bucket. They never overlap and are
/// aligned to 64 bytes.
struct ResidualBuffers {
  std::span<const float> current;  // what earlier steps did not send
  std::span<float> next;           // to be filled in this step; unspecified before
};

/// A saved state of a codec for one bucket (CodecState::Save). It is stored by the bucket's key,
/// because states cannot be split by parameter.
struct SavedCodecState {
  uint64_t bucket = 0;
  std::string codec;
  CodecParams params;
  std::vector<std::byte> bytes;
  friend bool operator==(const SavedCodecState&, const SavedCodecState&) = default;
};

/// The buffers of EF21 for one bucket, each as long as the bucket; otherwise as ResidualBuffers.
struct Ef21Buffers {
  std::span<const float> negative;  // -h: minus the part of its gradient that this rank has sent
  std::span<float> next_negative;   // to be filled in this step
  std::span<const float> estimate;  // the sum over all ranks of h, equal on all ranks
  std::span<float> next_estimate;   // to be filled in this step
};

/// One residual per parameter, whichever codec runs, in gradient units before division by the world
/// size. A step reads `current` and writes `next`. Commit makes `next` current for every bucket
/// used in the step, and Discard drops it. A bucket that was never encoded by a lossy codec, or was
/// flushed, holds no memory and counts as zero; a bucket in use holds 8 bytes per element, or 16
/// with momentum.
///
/// Momentum is kept as long as every encoded step asks for it. A step that encodes without it, or
/// flushes, drops it at Commit.
///
/// Where sums are encoded again on their way (exchange form "regions"), each rank keeps an
/// aggregate residual, too: that of the region of the sum which it encodes for all ranks, with 8
/// bytes per element of the region. Where the sum of a node is encoded ("node_sums",
/// "node_shards"), there is only the aggregate residual, of the part of its node's sum that the
/// rank encodes. Since the result is a sum over ranks, an aggregate residual can be added to this
/// rank's own gradient instead. That happens with any part that the next step does not encode again
/// (another region, another collective, a dense step, another world after a checkpoint), so nothing
/// is lost.
///
/// A bucket has residuals or the memory of EF21, but not both: BeginEf21 flushes the residual and
/// drops momentum at Commit, while DropEf21 and a flush drop the memory. With EF21 a bucket holds
/// 16 bytes per element.
///
/// All of it is in the memory of the device that encodes the bucket or the sum; there, an aggregate
/// residual takes as much memory as a residual. Whatever else uses it (a step on the host or a
/// flush, Define, Scale, Export) moves it to the host first, with the errors of Device.
///
/// Thread-safe: a mutex guards the bookkeeping, but not the floats. The spans of BeginEncode belong
/// to the caller until Commit, Discard or a Define that redefines the bucket. The caller must not
/// call those while another thread uses the spans.
class ResidualStore {
 public:
  ResidualStore();
  ~ResidualStore();
  ResidualStore(const ResidualStore&) = delete;
  ResidualStore& operator=(const ResidualStore&) = delete;

  /// Declares bucket `key` as these parameters in this order. Repeating the same definition has no
  /// effect. A parameter belongs to the bucket that named it last: buckets that contain one of
  /// `parameters`, and the previous definition of `key`, are dissolved. The residual of each of
  /// their parameters is kept by name until some bucket names the parameter again. Allowed within a
  /// step for buckets that the step has not used. kInvalidArgument: a name occurs twice, or its
  /// size differs from that of the kept residual (the message has both sizes). kFailedPrecondition:
  /// this step has used a bucket that would be dissolved. On error nothing changes.
  Status Define(uint64_t key, std::vector<ResidualParameter> parameters);

  /// The buffers of a bucket for EncodeWithFeedback in this step, allocated at the first use.
  /// kNotFound: the bucket is not defined or was dissolved. kFailedPrecondition: this step has used
  /// it. `device`: where the buffers are, and to where the residual moves if need be; null: the
  /// host.
  StatusOr<ResidualBuffers> BeginEncode(uint64_t key, Device* device = nullptr);

  /// The momentum of a bucket for this step, to be called after BeginEncode; allocated at the first
  /// use. kNotFound and `device` as above. kFailedPrecondition: BeginEncode was not called before,
  /// or this was called twice.
  StatusOr<MomentumBuffers> BeginMomentum(uint64_t key, Device* device = nullptr);

  /// The elements begin .. begin + size - 1 of a bucket.
  struct Range {
    size_t begin = 0, size = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  /// The aggregate residual of `region`, whose sum over all ranks this rank encodes in this step;
  /// to be called after BeginEncode of the bucket. Both spans have the size of the region. Parts of
  /// an earlier step's aggregate residual outside of the region are added to `gradient`, which is
  /// as long as the bucket. kNotFound as above. kFailedPrecondition: BeginEncode was not called
  /// before, or this was called twice. kInvalidArgument: the region or `gradient` does not fit the
  /// bucket. O(elements moved).
  StatusOr<ResidualBuffers> BeginAggregate(uint64_t key, Range region, std::span<float> gradient);

  /// For a step in which gradients are summed before anything is encoded: does what BeginAggregate
  /// does, without BeginEncode before it. The residual of the bucket is also added to `gradient`
  /// and becomes zero at Commit. `gradient` and both spans are in the memory of `device`; null: the
  /// host's. kNotFound and kFailedPrecondition as BeginEncode; kInvalidArgument as BeginAggregate,
  /// in which case nothing has changed.
  StatusOr<ResidualBuffers> BeginSum(uint64_t key, Range region, std::span<float> gradient,
                                     Device* device = nullptr);

  /// To be called instead of BeginAggregate in a step in which no sum is encoded again: adds the
  /// aggregate residual to `gradient`; it becomes zero at Commit. Without either call it remains
  /// unchanged. Errors as above.
  Status FlushAggregate(uint64_t key, std::span<float> gradient);

  /// The EF21 memory of a bucket for this step; zero at first. A residual that is left is added to
  /// `gradient` (as long as the bucket), as by Flush. `gradient` and all spans are in the memory of
  /// `device`; null: the host's. kNotFound and kFailedPrecondition as BeginEncode; kInvalidArgument
  /// as Flush.
  StatusOr<Ef21Buffers> BeginEf21(uint64_t key, std::span<float> gradient,
                                  Device* device = nullptr);

  /// Drops the bucket's EF21 memory at once. Every step of another codec calls it, so that all
  /// ranks begin again together. Has no effect on buckets that have no memory, are unknown or were
  /// used in this step.
  void DropEf21(uint64_t key);

  /// For a dense step: adds the residual and the aggregate residual to `gradient`, which is in the
  /// host's memory; they become zero at Commit. Costs nothing when the bucket has none. Returns
  /// true when something was added. Errors as BeginEncode; kInvalidArgument when `gradient` is not
  /// as long as the bucket. It may be empty if the bucket has none.
  StatusOr<bool> Flush(uint64_t key, std::span<float> gradient);

  /// Ends the step: every bucket used since the last call keeps (Commit) or drops (Discard) what
  /// the step wrote. O(buckets), no copying.
  void Commit();
  void Discard();

  /// Makes the last Commit final. Until then Undo can revert what a step did to residuals and
  /// momenta. That costs no memory beyond that of `next`, except for buckets that the following
  /// step encodes before Confirm: those hold a third buffer. Allowed within a step. A later Commit
  /// also confirms. O(buckets).
  void Confirm();
  /// Restores the state before the last Commit, unless it was confirmed. Not restored are buckets
  /// that Define has dissolved since then and memories that DropEf21 has dropped.
  /// kFailedPrecondition within a step. O(buckets).
  Status Undo();
  /// Does DropEf21 for all buckets, between steps. For a world of other ranks, whose estimates
  /// differ.
  void ForgetEf21();

  /// Multiplies every residual and momentum by `factor`, for gradients that have another scale from
  /// now on. kInvalidArgument: `factor` is not finite and positive, or an element would not stay
  /// finite (the message names its parameter). kFailedPrecondition within a step. On error nothing
  /// changes. O(n), two passes.
  Status Scale(double factor);

  /// Returns true when the bucket holds residuals that a dense step would have to flush.
  bool HasResidual(uint64_t key) const;

  /// Returns true when the bucket holds an aggregate residual.
  bool HasAggregate(uint64_t key) const;

  /// The number of bytes of host memory held, kept parameters included.
  size_t MemoryBytes() const;

  /// The number of bytes that Export would write now.
  size_t ExportBytes(std::span<const SavedCodecState> codecs = {}) const;
  /// Writes every residual and momentum, ordered by parameter name, then `codecs`, whose buckets
  /// ascend. Parameters without memory are left out. Layout: proto/WIRE.md section 3.
  /// kFailedPrecondition within a step; kResourceExhausted when `out` is smaller than
  /// ExportBytes().
  StatusOr<size_t> Export(std::span<std::byte> out,
                          std::span<const SavedCodecState> codecs = {}) const;
  /// Replaces every residual and momentum by those in `bytes`. A parameter that is not named there
  /// becomes zero, and an unknown name is kept for a later Define. The states of codecs are passed
  /// to `accept` (when set) after everything else was checked; if it fails, its error is returned.
  /// kDataLoss: malformed or corrupt. kInvalidArgument: the size differs from that of the defined
  /// parameter (the message names the parameter and both sizes). kFailedPrecondition within a step.
  /// On error nothing changes.
  using AcceptCodecStates = std::function<Status(std::vector<SavedCodecState>)>;
  Status Import(std::span<const std::byte> bytes, const AcceptCodecStates& accept = {});

 private:
  // Kinds of exported entries: residual, momentum, two of EF21, aggregate residual.
  static constexpr int kKinds = 5;
  class Buffer;
  enum class Use { kUnused, kEncoded, kSummed, kFlushed, kEf21 };
  enum class AggregateUse { kKept, kEncoded, kFlushed };
  struct Bucket;
  using Kept = std::map<std::string, std::vector<float>, std::less<>>;

  StatusOr<Bucket*> FindUnused(uint64_t key) WEIR_REQUIRES(mutex_);
  StatusOr<Bucket*> FindEncoded(uint64_t key, std::span<const float> gradient)
      WEIR_REQUIRES(mutex_);
  static Status CheckRegion(uint64_t key, const Bucket& bucket, Range region);
  static StatusOr<bool> TakeFlush(uint64_t key, Bucket& bucket, std::span<float> gradient,
                                  Device* device);
  static StatusOr<ResidualBuffers> TakeAggregate(Bucket& bucket, Range region,
                                                 std::span<float> gradient, Device* device);
  Status CheckDefinition(const std::vector<ResidualParameter>& parameters) const
      WEIR_REQUIRES(mutex_);
  StatusOr<std::vector<uint64_t>> BucketsToDissolve(
      uint64_t key, const std::vector<ResidualParameter>& parameters) const WEIR_REQUIRES(mutex_);
  void Dissolve(uint64_t key) WEIR_REQUIRES(mutex_);
  void Adopt(Bucket& bucket) WEIR_REQUIRES(mutex_);
  bool StepOpen() const WEIR_REQUIRES(mutex_);
  Status BringHome() const WEIR_REQUIRES(mutex_);
  struct Content;
  std::vector<Content> Contents() const WEIR_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Bucket>> buckets_ WEIR_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t, std::less<>> owner_
      WEIR_GUARDED_BY(mutex_);  // name -> bucket key
  // By kind: the data of parameters that no bucket contains now.
  std::array<Kept, kKinds> kept_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
