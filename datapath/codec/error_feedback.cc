#include "datapath/codec/error_feedback.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

#include "datapath/base/byte_cursor.h"
#include "datapath/base/check.h"
#include "datapath/wire/frame.h"

namespace weir {
namespace {

constexpr uint32_t kStateMagic = 0x53455257;  // "WRES"
constexpr uint32_t kStateVersion = 1;
constexpr size_t kStateHeaderBytes = 12, kStateChecksumBytes = 4;
constexpr size_t kEntryFixedBytes = 12;  // name length, elements
constexpr uint32_t kNameBytesMax = 4096;

/// "00c0ffee00c0ffee".
std::string KeyName(uint64_t key) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(key));
  return text;
}

std::string SizeMismatch(std::string_view name, uint64_t defined, uint64_t found) {
  return StrCat("residual of parameter '", name, "': expected ", defined, " elements, found ",
                found);
}

/// One parsed entry of an exported state; points into the state's bytes.
struct Entry {
  std::string name;
  uint64_t elements;
  std::span<const std::byte> floats;
};

Status ReadEntry(ByteReader& reader, Entry* entry) {
  uint32_t name_bytes = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&name_bytes));
  if (name_bytes > kNameBytesMax) {
    return DataLoss(StrCat("parameter name at offset ", reader.offset(), ": expected at most ",
                           kNameBytesMax, " bytes, found ", name_bytes));
  }
  WEIR_RETURN_IF_ERROR(reader.Read(&entry->elements));
  std::span<const std::byte> name;
  WEIR_RETURN_IF_ERROR(reader.ReadBytes(name_bytes, &name));
  entry->name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  if (entry->elements > reader.remaining() / sizeof(float)) {
    return DataLoss(StrCat("truncated at offset ", reader.offset(), ": expected ", entry->elements,
                           " floats of '", entry->name, "', found ", reader.remaining(), " bytes"));
  }
  return reader.ReadBytes(entry->elements * sizeof(float), &entry->floats);
}

/// The entries of an exported state, checked. Names are distinct.
StatusOr<std::vector<Entry>> ParseState(std::span<const std::byte> bytes) {
  if (bytes.size() < kStateHeaderBytes + kStateChecksumBytes) {
    return DataLoss(StrCat("residual state: expected at least ",
                           kStateHeaderBytes + kStateChecksumBytes, " bytes, found ",
                           bytes.size()));
  }
  const auto body = bytes.first(bytes.size() - kStateChecksumBytes);
  uint32_t stored = 0;
  std::memcpy(&stored, bytes.data() + body.size(), sizeof(stored));
  if (const uint32_t actual = Checksum(body); stored != actual) {
    return DataLoss(StrCat("residual state: checksum at offset ", body.size(), " is ", stored,
                           ", computed ", actual));
  }
  ByteReader reader(body);
  uint32_t magic = 0, version = 0, count = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&magic));
  WEIR_RETURN_IF_ERROR(reader.Read(&version));
  WEIR_RETURN_IF_ERROR(reader.Read(&count));
  if (magic != kStateMagic) return DataLoss("residual state: wrong magic at offset 0");
  if (version != kStateVersion) {
    return DataLoss(
        StrCat("residual state: version ", version, " at offset 4, expected ", kStateVersion));
  }
  std::vector<Entry> entries;
  std::set<std::string> names;
  for (uint32_t i = 0; i < count; ++i) {
    Entry entry;
    WEIR_RETURN_IF_ERROR(ReadEntry(reader, &entry));
    if (!names.insert(entry.name).second) {
      return DataLoss(StrCat("residual state: parameter '", entry.name,
                             "' twice, again before offset ", reader.offset()));
    }
    entries.push_back(std::move(entry));
  }
  if (reader.remaining() > 0) {
    return DataLoss(StrCat("residual state: ", reader.remaining(), " surplus bytes at offset ",
                           reader.offset()));
  }
  return entries;
}

}  // namespace

/// Zeroed floats aligned for the kernels; empty until allocated.
class ResidualStore::Buffer {
 public:
  void Allocate(size_t size) {
    if (floats_ != nullptr || size == 0) return;
    const size_t bytes = (size * sizeof(float) + 63) / 64 * 64;
    floats_.reset(static_cast<float*>(::operator new (bytes, std::align_val_t{64})));
    std::memset(floats_.get(), 0, bytes);
  }
  void Free() { floats_.reset(); }
  float* data() const { return floats_.get(); }

 private:
  struct Delete {
    void operator()(float* floats) const { ::operator delete (floats, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Delete> floats_;
};

struct ResidualStore::Bucket {
  std::vector<ResidualParameter> parameters;
  size_t elements = 0;
  Buffer current, next;
  Use use = Use::kUnused;
};

ResidualStore::ResidualStore() = default;
ResidualStore::~ResidualStore() = default;

Status ResidualStore::CheckDefinition(const std::vector<ResidualParameter>& parameters) const {
  std::set<std::string_view> names;
  for (const ResidualParameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return InvalidArgument(StrCat("parameter '", parameter.name, "' appears twice in a bucket"));
    }
    if (parameter.name.size() > kNameBytesMax) {
      return InvalidArgument(StrCat("parameter name of ", parameter.name.size(),
                                    " bytes, expected at most ", kNameBytesMax));
    }
    uint64_t known = parameter.elements;
    if (const auto kept = kept_.find(parameter.name); kept != kept_.end()) {
      known = kept->second.size();
    } else if (const auto owner = owner_.find(parameter.name); owner != owner_.end()) {
      const Bucket& bucket = *buckets_.at(owner->second);
      for (const ResidualParameter& held : bucket.parameters) {
        // Without memory there is nothing that could fail to fit.
        if (held.name == parameter.name && bucket.current.data() != nullptr) known = held.elements;
      }
    }
    if (known != parameter.elements) {
      return InvalidArgument(SizeMismatch(parameter.name, known, parameter.elements));
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
      return FailedPrecondition(StrCat("bucket ", KeyName(key), " takes parameters of bucket ",
                                       KeyName(old), ", which was used in the current step"));
    }
  }
  return std::vector<uint64_t>(keys.begin(), keys.end());
}

void ResidualStore::Dissolve(uint64_t key) {
  Bucket& bucket = *buckets_.at(key);
  const float* at = bucket.current.data();
  for (const ResidualParameter& parameter : bucket.parameters) {
    owner_.erase(parameter.name);
    if (at == nullptr) continue;
    kept_[parameter.name].assign(at, at + parameter.elements);
    at += parameter.elements;
  }
  buckets_.erase(key);
}

void ResidualStore::Adopt(Bucket& bucket) {
  size_t at = 0;
  for (const ResidualParameter& parameter : bucket.parameters) {
    const auto kept = kept_.find(parameter.name);
    if (kept != kept_.end()) {
      bucket.current.Allocate(bucket.elements);
      if (!kept->second.empty()) {
        std::memcpy(bucket.current.data() + at, kept->second.data(),
                    kept->second.size() * sizeof(float));
      }
      kept_.erase(kept);
    }
    at += parameter.elements;
  }
}

Status ResidualStore::Define(uint64_t key, std::vector<ResidualParameter> parameters) {
  MutexLock lock(mutex_);
  const auto known = buckets_.find(key);
  if (known != buckets_.end() && known->second->parameters == parameters) return OkStatus();
  WEIR_RETURN_IF_ERROR(CheckDefinition(parameters));
  WEIR_ASSIGN_OR_RETURN(const std::vector<uint64_t> old, BucketsToDissolve(key, parameters));
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
        StrCat("no residual bucket ", KeyName(key), "; ", buckets_.size(), " are defined"));
  }
  if (it->second->use != Use::kUnused) {
    return FailedPrecondition(StrCat("bucket ", KeyName(key), " was already used in this step"));
  }
  return it->second.get();
}

StatusOr<ResidualBuffers> ResidualStore::BeginEncode(uint64_t key) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, FindUnused(key));
  bucket->current.Allocate(bucket->elements);
  bucket->next.Allocate(bucket->elements);
  bucket->use = Use::kEncoded;
  return ResidualBuffers{{bucket->current.data(), bucket->elements},
                         {bucket->next.data(), bucket->elements}};
}

StatusOr<bool> ResidualStore::Flush(uint64_t key, std::span<float> gradient) {
  MutexLock lock(mutex_);
  WEIR_ASSIGN_OR_RETURN(Bucket* const bucket, FindUnused(key));
  if (gradient.size() != bucket->elements) {
    return InvalidArgument(StrCat("bucket ", KeyName(key), ": expected ", bucket->elements,
                                  " elements, found ", gradient.size()));
  }
  bucket->use = Use::kFlushed;
  const float* residual = bucket->current.data();
  if (residual == nullptr) return false;
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += residual[i];
  return true;
}

void ResidualStore::Commit() {
  MutexLock lock(mutex_);
  for (auto& [key, bucket] : buckets_) {
    switch (bucket->use) {
      case Use::kUnused:
        break;
      case Use::kEncoded:
        std::swap(bucket->current, bucket->next);
        break;
      case Use::kFlushed:
        bucket->current.Free();
        bucket->next.Free();
        break;
    }
    bucket->use = Use::kUnused;
  }
}

void ResidualStore::Discard() {
  MutexLock lock(mutex_);
  for (auto& [key, bucket] : buckets_) bucket->use = Use::kUnused;
}

bool ResidualStore::HasResidual(uint64_t key) const {
  MutexLock lock(mutex_);
  const auto it = buckets_.find(key);
  return it != buckets_.end() && it->second->current.data() != nullptr;
}

size_t ResidualStore::MemoryBytes() const {
  MutexLock lock(mutex_);
  size_t floats = 0;
  for (const auto& [key, bucket] : buckets_) {
    if (bucket->current.data() != nullptr) floats += bucket->elements;
    if (bucket->next.data() != nullptr) floats += bucket->elements;
  }
  for (const auto& [name, kept] : kept_) floats += kept.size();
  return floats * sizeof(float);
}

bool ResidualStore::StepOpen() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const auto& entry) { return entry.second->use != Use::kUnused; });
}

std::map<std::string, std::span<const float>, std::less<>> ResidualStore::Contents() const {
  std::map<std::string, std::span<const float>, std::less<>> contents;
  for (const auto& [name, kept] : kept_) contents[name] = kept;
  for (const auto& [key, bucket] : buckets_) {
    const float* at = bucket->current.data();
    if (at == nullptr) continue;
    for (const ResidualParameter& parameter : bucket->parameters) {
      contents[parameter.name] = {at, parameter.elements};
      at += parameter.elements;
    }
  }
  return contents;
}

size_t ResidualStore::ExportBytes() const {
  MutexLock lock(mutex_);
  size_t bytes = kStateHeaderBytes + kStateChecksumBytes;
  for (const auto& [name, floats] : Contents()) {
    bytes += kEntryFixedBytes + name.size() + floats.size_bytes();
  }
  return bytes;
}

StatusOr<size_t> ResidualStore::Export(std::span<std::byte> out) const {
  MutexLock lock(mutex_);
  if (StepOpen()) return FailedPrecondition("residual state exported within a step");
  const auto contents = Contents();
  ByteWriter writer(out);
  writer.Write(kStateMagic);
  writer.Write(kStateVersion);
  writer.Write(static_cast<uint32_t>(contents.size()));
  for (const auto& [name, floats] : contents) {
    writer.Write(static_cast<uint32_t>(name.size()));
    writer.Write(uint64_t{floats.size()});
    writer.WriteBytes(std::as_bytes(std::span(name)));
    writer.WriteBytes(std::as_bytes(floats));
  }
  if (writer.ok()) writer.Write(Checksum(out.first(writer.offset())));
  if (writer.ok()) return writer.offset();
  return ResourceExhausted(StrCat("residual state: buffer of ", out.size(), " bytes is too small"));
}

Status ResidualStore::Import(std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  if (StepOpen()) return FailedPrecondition("residual state imported within a step");
  WEIR_ASSIGN_OR_RETURN(const std::vector<Entry> entries, ParseState(bytes));
  for (const Entry& entry : entries) {
    const auto owner = owner_.find(entry.name);
    if (owner == owner_.end()) continue;
    for (const ResidualParameter& held : buckets_.at(owner->second)->parameters) {
      if (held.name == entry.name && held.elements != entry.elements) {
        return InvalidArgument(SizeMismatch(entry.name, held.elements, entry.elements));
      }
    }
  }
  kept_.clear();
  for (const Entry& entry : entries) {
    std::vector<float>& floats = kept_[entry.name];
    floats.resize(entry.elements);
    if (!floats.empty()) std::memcpy(floats.data(), entry.floats.data(), entry.floats.size());
  }
  for (auto& [key, bucket] : buckets_) {
    bucket->current.Free();
    Adopt(*bucket);
  }
  return OkStatus();
}

}  // namespace weir
