#pragma once
// The residuals of error feedback: what lossy codecs left behind, kept per parameter so that it
// survives bucket rebuilds, codec changes and checkpoints, and never changes on a step that was
// skipped. Beside them the moving sums of gradients of codecs with momentum inside, what EF21
// remembers in place of residuals, and the aggregate residuals of sums that are encoded again on
// their way, likewise.

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

namespace weir {

/// One contiguous parameter range of a bucket. Names are stable over the job's life.
struct ResidualParameter {
  std::string name;
  uint64_t elements = 0;
  uint64_t columns = 0;  // of a matrix, row-major; divides elements; 0: a vector
  friend bool operator==(const ResidualParameter&, const ResidualParameter&) = default;
};

/// The two buffers of one bucket in one step, each as long as the bucket. They never overlap and
/// are aligned to 64 bytes.
struct ResidualBuffers {
  std::span<const float> current;  // what earlier steps left behind
  std::span<float> next;           // to be filled in this step; its content is unspecified before
};

/// What a codec's state of one bucket was when it was saved (CodecState::Save). Buckets go by their
/// key, as states do not split along parameters.
struct SavedCodecState {
  uint64_t bucket = 0;
  std::string codec;
  CodecParams params;
  std::vector<std::byte> bytes;
  friend bool operator==(const SavedCodecState&, const SavedCodecState&) = default;
};

/// What EF21 keeps of one bucket, each span as long as the bucket; as ResidualBuffers otherwise.
struct Ef21Buffers {
  std::span<const float> negative;  // -h: less what this rank has sent of its gradient so far
  std::span<float> next_negative;   // to be filled in this step
  std::span<const float> estimate;  // the sum over all ranks of h, equal on all of them
  std::span<float> next_estimate;   // to be filled in this step
};

/// One residual per parameter, whatever codec runs, in gradient units before division by the world
/// size. A step reads `current` and writes `next`; Commit makes `next` current for every bucket
/// used in the step, Discard forgets it. A bucket that never met a lossy codec, or was flushed,
/// holds no memory and counts as zero; in use it holds 8 bytes per element, with momentum 16.
///
/// Momentum is kept as long as every encoded step asks for it: a step that encodes without it, or
/// flushes, drops it at Commit.
///
/// Where sums are encoded again on their way (exchange form "regions"), each rank keeps a second
/// residual, of the region of the sum that it encodes for all: 8 bytes for each of its elements.
/// Where the sum of a node is encoded ("node_sums", "node_shards") there is that one alone, of the
/// part of its node's sum that the rank encodes. The result being a sum over ranks, what is owed
/// there may as well be owed by this rank's own gradient; so whatever the next step does not encode
/// again (another region, another collective, a dense step, another world after a checkpoint) joins
/// the gradient, and nothing is lost.
///
/// A bucket has residuals or the memory of EF21, not both: BeginEf21 flushes the residual and drops
/// momentum at Commit, DropEf21 and a flush drop the memory. Under EF21 it holds 16 bytes an
/// element.
///
/// Thread-safe: a mutex guards the bookkeeping, not the floats. The spans of BeginEncode belong to
/// the caller until Commit, Discard or a Define that redefines the bucket; the caller does not run
/// those while another thread uses the spans.
class ResidualStore {
 public:
  ResidualStore();
  ~ResidualStore();
  ResidualStore(const ResidualStore&) = delete;
  ResidualStore& operator=(const ResidualStore&) = delete;

  /// Declares bucket `key` as these parameters in this order. The same definition again is a no-op.
  /// A parameter belongs to the bucket that named it last: buckets that held one of `parameters`
  /// (and the former definition of `key`) are dissolved, and the residual of each of their
  /// parameters is kept by name until some bucket names it again. Allowed within a step for buckets
  /// unused in it. kInvalidArgument: a name twice, or a size other than the kept residual's (names
  /// both sizes). kFailedPrecondition: a bucket to be dissolved was used in this step. On error
  /// nothing changes.
  Status Define(uint64_t key, std::vector<ResidualParameter> parameters);

  /// The buffers of a bucket for this step's EncodeWithFeedback, allocated now if they were not.
  /// kNotFound: not defined or dissolved. kFailedPrecondition: already used in this step.
  StatusOr<ResidualBuffers> BeginEncode(uint64_t key);

  /// The momentum of a bucket for this step, after its BeginEncode; allocated now if it was not.
  /// kNotFound as above; kFailedPrecondition: BeginEncode did not come first, or asked twice.
  StatusOr<MomentumBuffers> BeginMomentum(uint64_t key);

  /// Elements begin .. begin + size - 1 of a bucket.
  struct Range {
    size_t begin = 0, size = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };
  /// The aggregate residual of `region`, whose sum over all ranks this rank encodes in this step,
  /// after the bucket's BeginEncode; both spans have the region's size. What an earlier step left
  /// outside of the region is added to `gradient`, which is as long as the bucket. kNotFound as
  /// above; kFailedPrecondition: BeginEncode did not come first, or asked twice; kInvalidArgument:
  /// the region or `gradient` does not fit the bucket. O(what moves).
  StatusOr<ResidualBuffers> BeginServer(uint64_t key, Range region, std::span<float> gradient);

  /// For a step in which the gradient is summed before anything is encoded: what BeginServer does,
  /// without a BeginEncode before it. The residual of the bucket is added to `gradient`, too, and
  /// becomes zero at Commit. kNotFound, kFailedPrecondition as BeginEncode; kInvalidArgument as
  /// BeginServer, and then nothing has changed.
  StatusOr<ResidualBuffers> BeginSum(uint64_t key, Range region, std::span<float> gradient);

  /// In place of BeginServer, for a step in which no sum is encoded again: gradient += the second
  /// residual, which becomes zero at Commit. Without either call it stays. Errors as above.
  Status FlushServer(uint64_t key, std::span<float> gradient);

  /// The memory of a bucket for this step; zero at first. A residual that is left over is added to
  /// `gradient` (as long as the bucket), as by Flush. kNotFound, kFailedPrecondition as
  /// BeginEncode; kInvalidArgument as Flush.
  StatusOr<Ef21Buffers> BeginEf21(uint64_t key, std::span<float> gradient);

  /// Forgets the bucket's memory of EF21 at once: every step of another codec calls it, so that all
  /// ranks begin again together. No-op for buckets without one, unknown or used in this step.
  void DropEf21(uint64_t key);

  /// gradient += both residuals, and they become zero at Commit: for a dense step. Free when the
  /// bucket holds none. True when something was added. Errors as BeginEncode; kInvalidArgument when
  /// `gradient` is not as long as the bucket.
  StatusOr<bool> Flush(uint64_t key, std::span<float> gradient);

  /// Ends the step: every bucket used since the last call keeps (Commit) or forgets (Discard) what
  /// the step wrote. O(buckets), no copying.
  void Commit();
  void Discard();

  /// The last Commit is final: nobody will ask for what was before it. What a step did to residuals
  /// and momenta can be undone until then, which costs no memory beyond that of `next`, except for
  /// buckets that the following step encodes before: those hold a third buffer. Allowed within a
  /// step. A later Commit confirms, too. O(buckets).
  void Confirm();
  /// All is as before the last Commit, unless it was confirmed; what buckets held that Define
  /// dissolved since then, and memories that DropEf21 dropped, stay as they are.
  /// kFailedPrecondition within a step. O(buckets).
  Status Undo();
  /// DropEf21 of all buckets, between steps: for a world of other ranks, whose estimates are
  /// others.
  void ForgetEf21();

  /// Multiplies every residual and momentum by `factor`: for gradients that come at another scale
  /// from now on. kInvalidArgument: `factor` is not finite and positive, or an element would not
  /// stay finite (named by its parameter); kFailedPrecondition within a step. On error nothing
  /// changes. O(n), two passes.
  Status Scale(double factor);

  /// True when the bucket holds residuals that a dense step would have to flush.
  bool HasResidual(uint64_t key) const;

  /// Bytes of memory held, kept parameters included.
  size_t MemoryBytes() const;

  /// Bytes that Export writes now.
  size_t ExportBytes(std::span<const SavedCodecState> codecs = {}) const;
  /// Writes every residual and momentum, ordered by parameter name, then `codecs`, which ascend by
  /// bucket; zero-memory parameters are left out. Layout: proto/WIRE.md section 3.
  /// kFailedPrecondition within a step; kResourceExhausted when `out` is smaller than
  /// ExportBytes().
  StatusOr<size_t> Export(std::span<std::byte> out,
                          std::span<const SavedCodecState> codecs = {}) const;
  /// Replaces every residual and momentum by those in `bytes`; a parameter not named there becomes
  /// zero, a name not known yet is kept for a later Define. The states of codecs go to `accept`
  /// (when set) once everything else is known to fit; its error is this one's. kDataLoss:
  /// malformed or corrupt; kInvalidArgument: a size other than the defined parameter's (names the
  /// parameter and both sizes); kFailedPrecondition within a step. On error nothing changes.
  using AcceptCodecStates = std::function<Status(std::vector<SavedCodecState>)>;
  Status Import(std::span<const std::byte> bytes, const AcceptCodecStates& accept = {});

 private:
  // Of exported entries: residual, momentum, two of EF21, aggregate residual.
  static constexpr int kKinds = 5;
  class Buffer;
  enum class Use { kUnused, kEncoded, kSummed, kFlushed, kEf21 };
  enum class ServerUse { kKept, kEncoded, kFlushed };
  struct Bucket;
  using Kept = std::map<std::string, std::vector<float>, std::less<>>;

  StatusOr<Bucket*> FindUnused(uint64_t key) WEIR_REQUIRES(mutex_);
  StatusOr<Bucket*> FindEncoded(uint64_t key, std::span<const float> gradient)
      WEIR_REQUIRES(mutex_);
  static Status CheckRegion(uint64_t key, const Bucket& bucket, Range region);
  static ResidualBuffers TakeServer(Bucket& bucket, Range region, std::span<float> gradient);
  Status CheckDefinition(const std::vector<ResidualParameter>& parameters) const
      WEIR_REQUIRES(mutex_);
  StatusOr<std::vector<uint64_t>> BucketsToDissolve(
      uint64_t key, const std::vector<ResidualParameter>& parameters) const WEIR_REQUIRES(mutex_);
  void Dissolve(uint64_t key) WEIR_REQUIRES(mutex_);
  void Adopt(Bucket& bucket) WEIR_REQUIRES(mutex_);
  bool StepOpen() const WEIR_REQUIRES(mutex_);
  struct Content;
  std::vector<Content> Contents() const WEIR_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Bucket>> buckets_ WEIR_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t, std::less<>> owner_
      WEIR_GUARDED_BY(mutex_);  // name -> bucket key
  // By kind: what parameters have that no bucket holds now.
  std::array<Kept, kKinds> kept_ WEIR_GUARDED_BY(mutex_);
};

}  // namespace weir
