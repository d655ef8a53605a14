// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/residual/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/codec/residual/residual_buffer.h"
#include "datapath/codec/residual/residual_state.h"
#include "datapath/wire/frame.h"

namespace weir {
namespace {

// Kinds of entries.
constexpr int kResidual = 0, kMomentum = 1, kNegative = 2, kEstimate = 3, kAggregate = 4;

std::string SizeMismatch(int kind, std::string_view name, uint64_t defined, uint64_t found) {
  return StrCat(kResidualKindNames[kind], " of parameter '", name, "': expected ", defined,
                " elements, found ", found);
}

Status CheckSize(uint64_t key, size_t elements, std::span<const float> gradient) {
  if (gradient.size() == elements) return OkStatus();
  return InvalidArgument(StrCat("bucket ", BucketKeyName(key), ": expected ", elements,
                                " elements, found ", gradient.size()));
}

}  // namespace

struct ResidualStore::Bucket {
  std::vector<ResidualParameter> parameters;
  size_t elements = 0;
  std::array<Buffer, kKinds> current, next;
  // The `current` of before the last commit while that can be undone; afterwards spare memory.
  std::array<Buffer, kKinds> former;
  std::array<bool, kKinds> undoable = {};  // by the last commit
  Use use = Use::kUnused;
  bool momentum_used = false;
  AggregateUse aggregate_use = AggregateUse::kKept;

  /// Makes the last commit final.
  void Settle() {
    undoable.fill(false);
    for (int kind = 0; kind < kKinds; ++kind) {
      // Kinds that are not in use any more keep no spare memory.
      if (current[kind].data() == nullptr) former[kind].Free();
      if (next[kind].data() == nullptr) std::swap(next[kind], former[kind]);
    }
  }
  /// Prepares the memory from and to which this step reads and writes, in the memory of `device`
  /// (null: the host's). Memory that Undo needs is not overwritten.
  Status Place(int kind, Device* device) {
    WEIR_RETURN_IF_ERROR(current[kind].MoveTo(device));
    WEIR_RETURN_IF_ERROR(current[kind].AllocateOn(device, elements));
    if (!undoable[kind] && next[kind].data() == nullptr) std::swap(next[kind], former[kind]);
    return next[kind].AllocateOn(device, elements);
  }
  /// Moves what a device holds to the host.
  Status BringHome() {
    for (int kind = 0; kind < kKinds; ++kind) {
      WEIR_RETURN_IF_ERROR(current[kind].MoveTo(nullptr));
      if (undoable[kind]) WEIR_RETURN_IF_ERROR(former[kind].MoveTo(nullptr));
    }
    return OkStatus();
  }
  /// Makes `next`, or with to_nothing nothing, current.
  void Advance(int kind, bool to_nothing) {
    undoable[kind] = true;
    if (to_nothing) {
      next[kind].Free();
      former[kind].Free();
    }
    std::swap(former[kind], current[kind]);  // current: spare memory, or none
    std::swap(current[kind], next[kind]);    // next: that memory
  }
  /// Extends the range of the aggregate residual that may be other than zero to `parameter`.
  void AdoptAggregate(const Range& parameter) {
    Range& held = current[kAggregate].held;
    if (held.size == 0) {
      held = parameter;
      return;
    }
    const size_t end = std::max(held.begin + held.size, parameter.begin + parameter.size);
    held.begin = std::min(held.begin, parameter.begin);
    held.size = end - held.begin;
  }
};

/// The data of one parameter and kind.
struct ResidualStore::Content {
  std::string_view name;
  int kind;
  std::span<const float> floats;
};

ResidualStore::ResidualStore() = default;
ResidualStore::~ResidualStore() = default;

Status ResidualStore::CheckDefinition(const std::vector<ResidualParameter>& parameters) const {
  std::set<std::string_view> names;
  for (const ResidualParameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return InvalidArgument(StrCat("parameter '", parameter.name, "' appears twice in a bucket"));
    }
    if (parameter.name.size() > kResidualNameBytesMax) {
      return InvalidArgument(StrCat("parameter name of ", parameter.name.size(),
                                    " bytes, expected at most ", kResidualNameBytesMax));
    }
    for (int kind = 0; kind < kKinds; ++kind) {
      uint64_t known = parameter.elements;
      if (const auto kept = kept_[kind].find(parameter.name); kept != kept_[kind].end()) {
        known = kept->second.size();
      } else if (const auto owner = owner_.find(parameter.name); owner != owner_.end()) {
        const Bucket& bucket = *buckets_.at(owner->second);
        // A bucket without memory fits any size.
        if (bucket.current[kind].data() == nullptr) continue;
        for (const ResidualParameter& held : bucket.parameters) {
          if (held.name == parameter.name) known = held.elements;
        }
      }
      if (known != parameter.elements) {
        return InvalidArgument(SizeMismatch(kind, parameter.name, known, parameter.elements));
      }
    }
  }
  return OkStatus();
}

StatusOr<std::vector<uint64_t>> ResidualStore::BucketsToDissolve(
    uint64_t key, const std::vector<ResidualParameter>& parameters) const {
  std::set<uint64_t> keys;
  if (buckets_.contains(key)) keys.insert(key);
  for (const ResidualParameter& parameter : parameters) {
    const auto owner = owner_.find(parameter.name);
    if (owner != owner_.end()) keys.insert(owner->second);
  }
  for (const uint64_t old : keys) {
    if (buckets_.at(old)->use != Use::kUnused) {
      return FailedPrecondition(StrCat("bucket ", BucketKeyName(key),
                                       " takes parameters of bucket ", BucketKeyName(old),
                                       ", which was used in the current step"));
    }
  }
  return std::vector<uint64_t>(keys.begin(), keys.end());
}

void ResidualStore::Dissolve(uint64_t key) {
  Bucket& bucket = *buckets_.at(key);
  for (const ResidualParameter& parameter : bucket.parameters) owner_.erase(parameter.name);
  for (int kind = 0; kind < kKinds; ++kind) {
    const float* at = bucket.current[kind].data();
    if (at == nullptr) continue;
    for (const ResidualParameter& parameter : bucket.parameters) {
      kept_[kind][parameter.name].assign(at, at + parameter.elements);
      at += parameter.elements;
    }
  }
  buckets_.erase(key);
}

void ResidualStore::Adopt(Bucket& bucket) {
  for (int kind = 0; kind < kKinds; ++kind) {
    size_t at = 0;
    for (const ResidualParameter& parameter : bucket.parameters) {
      const auto kept = kept_[kind].find(parameter.name);
      if (kept != kept_[kind].end()) {
        bucket.current[kind].Allocate(bucket.elements);
        if (kind == kAggregate) bucket.AdoptAggregate({at, parameter.elements});
        if (!kept->second.empty()) {
          std::memcpy(bucket.current[kind].data() + at, kept->second.data(),
                      kept->second.size() * sizeof(float));
        }
        kept_[kind].erase(kept);
      }
      at += parameter.elements;
    }
  }
}

Status ResidualStore::Define(uint64_t key, std::vector<ResidualParameter> parameters) {
  MutexLock lock(mutex_);
  const auto known = buckets_.find(key);
  if (known != buckets_.end() && known->second->parameters == parameters) return OkStatus();
  WEIR_RETURN_IF_ERROR(CheckDefinition(parameters));
  WEIR_ASSIGN_OR_RETURN(const std::vector<uint64_t> old, BucketsToDissolve(key, parameters));
  for (const uint64_t each : old) WEIR_RETURN_IF_ERROR(buckets_.at(each)->BringHome());
  for (const uint64_t each : old) Dissolve(each);
  auto bucket = std::make_unique<Bucket>();
  bucket->parameters = std::move(parameters);
  for (const ResidualParameter& parameter : bucket->parameters) {
    owner_[parameter.name] = key;
    bucket->elements += parameter.elements;
  }
  Adopt(*bucket);
  buckets_[key] = std::move(bucket);
  return OkStatus();
}

StatusOr<ResidualStore::Bucket*> ResidualStore::FindUnused(uint64_t key) {
  const auto it = buckets_.find(key);
  if (it == buckets_.end()) {
    return NotFound(
        StrCat("no residual bucket ", BucketKeyName(key), "; ", buckets_.size(), " are defined"));
  }
  if (it->second->use != Use::kUnused) {
    return FailedPrecondition(
        StrCat("bucket ", BucketKeyName(key), " was already used in this step"));
  }
  return it->second.get();
}

StatusOr<ResidualBuffers> ResidualStore::BeginEncode(uint64_t key, Device* device) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, FindUnused(key));
  WEIR_RETURN_IF_ERROR(bucket->Place(kResidual, device));
  bucket->use = Use::kEncoded;
  bucket->momentum_used = false;
  bucket->aggregate_use = AggregateUse::kKept;
  return ResidualBuffers{{bucket->current[kResidual].data(), bucket->elements},
                         {bucket->next[kResidual].data(), bucket->elements}};
}

StatusOr<MomentumBuffers> ResidualStore::BeginMomentum(uint64_t key, Device* device) {
  MutexLock lock(mutex_);
  const auto it = buckets_.find(key);
  if (it == buckets_.end()) return NotFound(StrCat("no residual bucket ", BucketKeyName(key)));
  Bucket& bucket = *it->second;
  if (bucket.use != Use::kEncoded || bucket.momentum_used) {
    return FailedPrecondition(StrCat("momentum of bucket ", BucketKeyName(key),
                                     " is taken once per step, after its residual"));
  }
  WEIR_RETURN_IF_ERROR(bucket.Place(kMomentum, device));
  bucket.momentum_used = true;
  return MomentumBuffers{{bucket.current[kMomentum].data(), bucket.elements},
                         {bucket.next[kMomentum].data(), bucket.elements}};
}

StatusOr<ResidualStore::Bucket*> ResidualStore::FindEncoded(uint64_t key,
                                                            std::span<const float> gradient) {
  const auto it = buckets_.find(key);
  if (it == buckets_.end()) return NotFound(StrCat("no residual bucket ", BucketKeyName(key)));
  Bucket& bucket = *it->second;
  if (bucket.use != Use::kEncoded || bucket.aggregate_use != AggregateUse::kKept) {
    return FailedPrecondition(StrCat("aggregate residual of bucket ", BucketKeyName(key),
                                     " is taken once per step, after its residual"));
  }
  WEIR_RETURN_IF_ERROR(CheckSize(key, bucket.elements, gradient));
  return &bucket;
}

Status ResidualStore::CheckRegion(uint64_t key, const Bucket& bucket, Range region) {
  const size_t end = region.begin + region.size;
  if (end <= bucket.elements && end >= region.begin) return OkStatus();
  return InvalidArgument(StrCat("bucket ", BucketKeyName(key), ": region of ", region.size,
                                " from ", region.begin, " in ", bucket.elements, " elements"));
}

StatusOr<ResidualBuffers> ResidualStore::TakeAggregate(Bucket& bucket, Range region,
                                                       std::span<float> gradient, Device* device) {
  const size_t begin = region.begin, end = begin + region.size;
  Buffer& current = bucket.current[kAggregate];
  Buffer& next = bucket.next[kAggregate];
  WEIR_RETURN_IF_ERROR(bucket.Place(kAggregate, device));
  WEIR_RETURN_IF_ERROR(next.HoldOnly(region));
  const Range held = current.held;
  const size_t held_end = held.begin + held.size;
  WEIR_RETURN_IF_ERROR(current.AddTo(gradient, held.begin, std::min(held_end, begin)));
  WEIR_RETURN_IF_ERROR(current.AddTo(gradient, std::max(held.begin, end), held_end));
  bucket.aggregate_use = AggregateUse::kEncoded;
  return ResidualBuffers{{current.data() + begin, region.size}, {next.data() + begin, region.size}};
}

StatusOr<ResidualBuffers> ResidualStore::BeginAggregate(uint64_t key, Range region,
                                                        std::span<float> gradient) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, FindEncoded(key, gradient));
  WEIR_RETURN_IF_ERROR(CheckRegion(key, *bucket, region));
  return TakeAggregate(*bucket, region, gradient, nullptr);
}

StatusOr<ResidualBuffers> ResidualStore::BeginSum(uint64_t key, Range region,
                                                  std::span<float> gradient, Device* device) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, FindUnused(key));
  WEIR_RETURN_IF_ERROR(CheckSize(key, bucket->elements, gradient));
  WEIR_RETURN_IF_ERROR(CheckRegion(key, *bucket, region));
  Buffer& residual = bucket->current[kResidual];
  WEIR_RETURN_IF_ERROR(residual.MoveTo(device));
  WEIR_RETURN_IF_ERROR(residual.AddTo(gradient, 0, gradient.size()));
  bucket->use = Use::kSummed;
  return TakeAggregate(*bucket, region, gradient, device);
}

Status ResidualStore::FlushAggregate(uint64_t key, std::span<float> gradient) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, FindEncoded(key, gradient));
  Buffer& aggregate = bucket->current[kAggregate];
  WEIR_RETURN_IF_ERROR(aggregate.MoveTo(nullptr));
  const Range held = aggregate.held;
  WEIR_RETURN_IF_ERROR(aggregate.AddTo(gradient, held.begin, held.begin + held.size));
  bucket->aggregate_use = AggregateUse::kFlushed;
  return OkStatus();
}

StatusOr<Ef21Buffers> ResidualStore::BeginEf21(uint64_t key, std::span<float> gradient,
                                               Device* device) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const unused, FindUnused(key));
  Bucket& bucket = *unused;
  for (const int kind : {kNegative, kEstimate}) {
    WEIR_RETURN_IF_ERROR(bucket.Place(kind, device));
  }
  WEIR_RETURN_IF_ERROR(TakeFlush(key, bucket, gradient, device).status());
  bucket.use = Use::kEf21;
  return Ef21Buffers{{bucket.current[kNegative].data(), bucket.elements},
                     {bucket.next[kNegative].data(), bucket.elements},
                     {bucket.current[kEstimate].data(), bucket.elements},
                     {bucket.next[kEstimate].data(), bucket.elements}};
}

void ResidualStore::DropEf21(uint64_t key) {
  MutexLock lock(mutex_);
  const auto it = buckets_.find(key);
  if (it == buckets_.end() || it->second->use != Use::kUnused) return;
  for (const int kind : {kNegative, kEstimate}) {
    it->second->current[kind].Free();
    it->second->next[kind].Free();
  }
}

StatusOr<bool> ResidualStore::Flush(uint64_t key, std::span<float> gradient) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, FindUnused(key));
  return TakeFlush(key, *bucket, gradient, nullptr);
}

StatusOr<bool> ResidualStore::TakeFlush(uint64_t key, Bucket& bucket, std::span<float> gradient,
                                        Device* device) {
  Buffer& residual = bucket.current[kResidual];
  Buffer& aggregate = bucket.current[kAggregate];
  WEIR_RETURN_IF_ERROR(residual.MoveTo(device));
  WEIR_RETURN_IF_ERROR(aggregate.MoveTo(device));
  const bool left = residual.data() != nullptr || aggregate.data() != nullptr;
  if (!gradient.empty() || left) {
    WEIR_RETURN_IF_ERROR(CheckSize(key, bucket.elements, gradient));
  }
  bucket.use = Use::kFlushed;
  const Range held = aggregate.held;
  WEIR_RETURN_IF_ERROR(residual.AddTo(gradient, 0, gradient.size()));
  WEIR_RETURN_IF_ERROR(aggregate.AddTo(gradient, held.begin, held.begin + held.size));
  return left;
}

void ResidualStore::Commit() {
  MutexLock lock(mutex_);
  for (auto& [key, bucket] : buckets_) {
    const Use use = std::exchange(bucket->use, Use::kUnused);
    bucket->Settle();
    if (use == Use::kUnused) continue;
    const bool encoded = use == Use::kEncoded;
    bucket->Advance(kResidual, !encoded);
    bucket->Advance(kMomentum, !encoded || !bucket->momentum_used);
    if (use == Use::kSummed) {
      bucket->Advance(kAggregate, false);
    } else if (!encoded || bucket->aggregate_use != AggregateUse::kKept) {
      bucket->Advance(kAggregate, !encoded || bucket->aggregate_use == AggregateUse::kFlushed);
    }
    if (encoded) continue;
    for (const int kind : {kNegative, kEstimate}) bucket->Advance(kind, use != Use::kEf21);
  }
}

void ResidualStore::Confirm() {
  MutexLock lock(mutex_);
  for (auto& [key, bucket] : buckets_) bucket->Settle();
}

Status ResidualStore::Undo() {
  MutexLock lock(mutex_);
  if (StepOpen()) return FailedPrecondition("a commit is undone between steps");
  for (auto& [key, bucket] : buckets_) {
    for (int kind = 0; kind < kKinds; ++kind) {
      if (!std::exchange(bucket->undoable[kind], false)) continue;
      std::swap(bucket->current[kind], bucket->former[kind]);
      bucket->former[kind].Free();
    }
  }
  return OkStatus();
}

void ResidualStore::ForgetEf21() {
  MutexLock lock(mutex_);
  for (const int kind : {kNegative, kEstimate}) {
    kept_[kind].clear();
    for (auto& [key, bucket] : buckets_) {
      for (auto* buffers : {&bucket->current, &bucket->next, &bucket->former}) {
        (*buffers)[kind].Free();
      }
      bucket->undoable[kind] = false;
    }
  }
}

void ResidualStore::Discard() {
  MutexLock lock(mutex_);
  for (auto& [key, bucket] : buckets_) bucket->use = Use::kUnused;
}

Status ResidualStore::Scale(double factor) {
  MutexLock lock(mutex_);
  if (StepOpen()) return FailedPrecondition("residual state scaled within a step");
  if (!(factor > 0) || !std::isfinite(factor)) {
    return InvalidArgument(StrCat("factor: expected a finite number above 0, found ", factor));
  }
  WEIR_RETURN_IF_ERROR(BringHome());
  const auto scaled = [factor](float v) { return static_cast<float>(v * factor); };
  for (const Content& content : Contents()) {
    for (const float v : content.floats) {
      if (std::isfinite(scaled(v))) continue;
      return InvalidArgument(StrCat(kResidualKindNames[content.kind], " of parameter '",
                                    content.name, "': ", v, " times ", factor, " is not finite"));
    }
  }
  for (int kind = 0; kind < kKinds; ++kind) {
    for (auto& [name, values] : kept_[kind]) {
      for (float& v : values) v = scaled(v);
    }
    for (auto& [key, bucket] : buckets_) {
      float* at = bucket->current[kind].data();
      for (size_t i = 0; at != nullptr && i < bucket->elements; ++i) at[i] = scaled(at[i]);
      if (!bucket->undoable[kind]) continue;
      at = bucket->former[kind].data();
      for (size_t i = 0; at != nullptr && i < bucket->elements; ++i) at[i] = scaled(at[i]);
    }
  }
  return OkStatus();
}

Status ResidualStore::BringHome() const {
  for (auto& [key, bucket] : buckets_) WEIR_RETURN_IF_ERROR(bucket->BringHome());
  return OkStatus();
}

bool ResidualStore::HasAggregate(uint64_t key) const {
  MutexLock lock(mutex_);
  const auto it = buckets_.find(key);
  return it != buckets_.end() && it->second->current[kAggregate].held.size > 0;
}

bool ResidualStore::HasResidual(uint64_t key) const {
  MutexLock lock(mutex_);
  const auto it = buckets_.find(key);
  return it != buckets_.end() && (it->second->current[kResidual].data() != nullptr ||
                                  it->second->current[kAggregate].data() != nullptr);
}

size_t ResidualStore::MemoryBytes() const {
  MutexLock lock(mutex_);
  size_t floats = 0;
  for (const auto& [key, bucket] : buckets_) {
    for (const auto* buffers : {&bucket->current, &bucket->next, &bucket->former}) {
      for (int kind = 0; kind < kAggregate; ++kind) {
        const Buffer& buffer = (*buffers)[kind];
        if (buffer.data() != nullptr && buffer.on_host()) floats += bucket->elements;
      }
      const Buffer& aggregate = (*buffers)[kAggregate];
      if (aggregate.on_host()) floats += aggregate.held.size;
    }
  }
  for (const Kept& kept : kept_) {
    for (const auto& [name, values] : kept) floats += values.size();
  }
  return floats * sizeof(float);
}

bool ResidualStore::StepOpen() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const auto& entry) { return entry.second->use != Use::kUnused; });
}

std::vector<ResidualStore::Content> ResidualStore::Contents() const {
  std::vector<Content> contents;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const auto& [name, values] : kept_[kind]) contents.push_back({name, kind, values});
    for (const auto& [key, bucket] : buckets_) {
      const float* const begin = bucket->current[kind].data();
      if (begin == nullptr) continue;
      const Range held =
          kind == kAggregate ? bucket->current[kAggregate].held : Range{0, bucket->elements};
      size_t at = 0;
      for (const ResidualParameter& parameter : bucket->parameters) {
        const size_t end = at + parameter.elements;
        if (kind != kAggregate || (at < held.begin + held.size && end > held.begin)) {
          contents.push_back({parameter.name, kind, {begin + at, parameter.elements}});
        }
        at = end;
      }
    }
  }
  std::sort(contents.begin(), contents.end(), [](const Content& a, const Content& b) {
    return a.name != b.name ? a.name < b.name : a.kind < b.kind;
  });
  return contents;
}

size_t ResidualStore::ExportBytes(std::span<const SavedCodecState> codecs) const {
  MutexLock lock(mutex_);
  size_t bytes = kResidualHeaderBytes + sizeof(uint32_t) + kResidualChecksumBytes;
  for (const SavedCodecState& saved : codecs) {
    bytes += kResidualCodecFixedBytes + saved.codec.size() + saved.bytes.size();
  }
  for (const auto& [name, kind, floats] : Contents()) {
    bytes += kResidualEntryFixedBytes + name.size() + floats.size_bytes();
  }
  return bytes;
}

StatusOr<size_t> ResidualStore::Export(std::span<std::byte> out,
                                       std::span<const SavedCodecState> codecs) const {
  MutexLock lock(mutex_);
  if (StepOpen()) return FailedPrecondition("residual state exported within a step");
  WEIR_RETURN_IF_ERROR(BringHome());
  const auto contents = Contents();
  ByteWriter writer(out);
  writer.Write(kResidualMagic);
  writer.Write(kResidualVersion);
  writer.Write(static_cast<uint32_t>(contents.size()));
  for (const auto& [name, kind, floats] : contents) {
    writer.Write(static_cast<uint8_t>(kind));
    writer.Write(static_cast<uint32_t>(name.size()));
    writer.Write(uint64_t{floats.size()});
    writer.WriteBytes(std::as_bytes(std::span(name)));
    writer.WriteBytes(std::as_bytes(floats));
  }
  writer.Write(static_cast<uint32_t>(codecs.size()));
  for (const SavedCodecState& saved : codecs) {
    writer.Write(saved.bucket);
    writer.Write(saved.params.ratio);
    writer.Write(saved.params.bits);
    writer.Write(static_cast<uint32_t>(saved.codec.size()));
    writer.Write(static_cast<uint32_t>(saved.bytes.size()));
    writer.WriteBytes(std::as_bytes(std::span(saved.codec)));
    writer.WriteBytes(saved.bytes);
  }
  if (writer.ok()) writer.Write(Checksum(out.first(writer.offset())));
  if (writer.ok()) return writer.offset();
  return ResourceExhausted(StrCat("residual state: buffer of ", out.size(), " bytes is too small"));
}

Status ResidualStore::Import(std::span<const std::byte> bytes, const AcceptCodecStates& accept) {
  MutexLock lock(mutex_);
  if (StepOpen()) return FailedPrecondition("residual state imported within a step");
  WEIR_ASSIGN_OR_RETURN(ResidualState state, ParseResidualState(bytes));
  const std::vector<ResidualEntry>& entries = state.entries;
  for (const ResidualEntry& entry : entries) {
    const auto owner = owner_.find(entry.name);
    if (owner == owner_.end()) continue;
    for (const ResidualParameter& held : buckets_.at(owner->second)->parameters) {
      if (held.name == entry.name && held.elements != entry.elements) {
        return InvalidArgument(SizeMismatch(entry.kind, entry.name, held.elements, entry.elements));
      }
    }
  }
  if (accept) WEIR_RETURN_IF_ERROR(accept(std::move(state.codecs)));
  for (Kept& kept : kept_) kept.clear();
  for (const ResidualEntry& entry : entries) {
    std::vector<float>& floats = kept_[entry.kind][entry.name];
    floats.resize(entry.elements);
    if (!floats.empty()) std::memcpy(floats.data(), entry.floats.data(), entry.floats.size());
  }
  for (auto& [key, bucket] : buckets_) {
    for (Buffer& buffer : bucket->current) buffer.Free();
    bucket->undoable.fill(false);
    Adopt(*bucket);
  }
  return OkStatus();
}

}  // namespace weir
