#pragma once
// The residuals of error feedback: what lossy codecs left behind, kept per parameter so that it
// survives bucket rebuilds, codec changes and checkpoints, and never changes on a step that was
// skipped.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/base/mutex.h"
#include "datapath/base/status.h"

namespace weir {

/// One contiguous parameter range of a bucket. Names are stable over the job's life.
struct ResidualParameter {
  std::string name;
  uint64_t elements = 0;
  friend bool operator==(const ResidualParameter&, const ResidualParameter&) = default;
};

/// The two buffers of one bucket in one step, each as long as the bucket. They never overlap and
/// are aligned to 64 bytes.
struct ResidualBuffers {
  std::span<const float> current;  // what earlier steps left behind
  std::span<float> next;           // to be filled in this step; its content is unspecified before
};

/// One residual per parameter, whatever codec runs, in gradient units before division by the world
/// size. A step reads `current` and writes `next`; Commit makes `next` current for every bucket
/// used in the step, Discard forgets it. A bucket that never met a lossy codec, or was flushed,
/// holds no memory and counts as zero; in use it holds 8 bytes per element.
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

  /// gradient += residual, and the residual becomes zero at Commit: for a dense step. Free when the
  /// bucket holds none. True when something was added. Errors as BeginEncode; kInvalidArgument when
  /// `gradient` is not as long as the bucket.
  StatusOr<bool> Flush(uint64_t key, std::span<float> gradient);

  /// Ends the step: every bucket used since the last call keeps (Commit) or forgets (Discard) what
  /// the step wrote. O(buckets), no copying.
  void Commit();
  void Discard();

  /// True when the bucket holds a residual that a dense step would have to flush.
  bool HasResidual(uint64_t key) const;

  /// Bytes of memory held, kept parameters included.
  size_t MemoryBytes() const;

  /// Bytes that Export writes now.
  size_t ExportBytes() const;
  /// Writes every residual, ordered by parameter name; zero-memory parameters are left out. Layout:
  /// proto/WIRE.md section 3. kFailedPrecondition within a step; kResourceExhausted when `out` is
  /// smaller than ExportBytes().
  StatusOr<size_t> Export(std::span<std::byte> out) const;
  /// Replaces every residual by those in `bytes`; a parameter not named there becomes zero, a name
  /// not known yet is kept for a later Define. kDataLoss: malformed or corrupt; kInvalidArgument: a
  /// size other than the defined parameter's (names the parameter and both sizes);
  /// kFailedPrecondition within a step. On error nothing changes.
  Status Import(std::span<const std::byte> bytes);

 private:
  class Buffer;
  enum class Use { kUnused, kEncoded, kFlushed };
  struct Bucket;
  using Kept = std::map<std::string, std::vector<float>, std::less<>>;

  StatusOr<Bucket*> FindUnused(uint64_t key) WEIR_REQUIRES(mutex_);
  Status CheckDefinition(const std::vector<ResidualParameter>& parameters) const
      WEIR_REQUIRES(mutex_);
  StatusOr<std::vector<uint64_t>> BucketsToDissolve(
      uint64_t key, const std::vector<ResidualParameter>& parameters) const WEIR_REQUIRES(mutex_);
  void Dissolve(uint64_t key) WEIR_REQUIRES(mutex_);
  void Adopt(Bucket& bucket) WEIR_REQUIRES(mutex_);
  bool StepOpen() const WEIR_REQUIRES(mutex_);
  std::map<std::string, std::span<const float>, std::less<>> Contents() const WEIR_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Bucket>> buckets_ WEIR_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t, std::less<>> owner_
      WEIR_GUARDED_BY(mutex_);         // name -> bucket key
  Kept kept_ WEIR_GUARDED_BY(mutex_);  // residuals of parameters that no bucket holds now
};

}  // namespace weir
