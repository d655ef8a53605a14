// SPDX-License-Identifier: Apache-2.0
#include "datapath/codec/residual/residual_state.h"

#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "datapath/base/byte_cursor.h"
#include "datapath/wire/frame.h"

namespace weir {
namespace {

Status ReadEntry(ByteReader& reader, ResidualEntry* entry) {
  uint32_t name_bytes = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&entry->kind));
  if (entry->kind >= kResidualKindNames.size()) {
    return DataLoss(StrCat("kind of entry at offset ", reader.offset() - 1, ": expected 0 to ",
                           kResidualKindNames.size() - 1, ", found ", int{entry->kind}));
  }
  WEIR_RETURN_IF_ERROR(reader.Read(&name_bytes));
  if (name_bytes > kResidualNameBytesMax) {
    return DataLoss(StrCat("parameter name at offset ", reader.offset(), ": expected at most ",
                           kResidualNameBytesMax, " bytes, found ", name_bytes));
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

Status ReadCodecState(ByteReader& reader, SavedCodecState* saved) {
  uint32_t name_bytes = 0, state_bytes = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&saved->bucket));
  WEIR_RETURN_IF_ERROR(reader.Read(&saved->params.ratio));
  WEIR_RETURN_IF_ERROR(reader.Read(&saved->params.bits));
  if (!(saved->params.ratio > 0 && saved->params.ratio <= 1)) {
    return DataLoss(StrCat("codec state before offset ", reader.offset(), ": ratio ",
                           saved->params.ratio, ", expected 0 to 1"));
  }
  WEIR_RETURN_IF_ERROR(reader.Read(&name_bytes));
  WEIR_RETURN_IF_ERROR(reader.Read(&state_bytes));
  std::span<const std::byte> name, state;
  WEIR_RETURN_IF_ERROR(reader.ReadBytes(name_bytes, &name));
  WEIR_RETURN_IF_ERROR(reader.ReadBytes(state_bytes, &state));
  saved->codec.assign(reinterpret_cast<const char*>(name.data()), name.size());
  saved->bytes.assign(state.begin(), state.end());
  return OkStatus();
}

/// Buckets must ascend, so that each bucket has at most one state.
Status ReadCodecStates(ByteReader& reader, std::vector<SavedCodecState>* states) {
  uint32_t count = 0;
  WEIR_RETURN_IF_ERROR(reader.Read(&count));
  for (uint32_t i = 0; i < count; ++i) {
    SavedCodecState saved;
    WEIR_RETURN_IF_ERROR(ReadCodecState(reader, &saved));
    if (!states->empty() && saved.bucket <= states->back().bucket) {
      return DataLoss(StrCat("codec state of bucket ", BucketKeyName(saved.bucket),
                             " before offset ", reader.offset(), " follows that of ",
                             BucketKeyName(states->back().bucket)));
    }
    states->push_back(std::move(saved));
  }
  return OkStatus();
}

Status ReadEntries(ByteReader& reader, uint32_t count, std::vector<ResidualEntry>* entries) {
  std::set<std::pair<std::string, int>> names;
  for (uint32_t i = 0; i < count; ++i) {
    ResidualEntry entry;
    WEIR_RETURN_IF_ERROR(ReadEntry(reader, &entry));
    if (!names.insert({entry.name, entry.kind}).second) {
      return DataLoss(StrCat("residual state: ", kResidualKindNames[entry.kind], " of parameter '",
                             entry.name, "' twice, again before offset ", reader.offset()));
    }
    entries->push_back(std::move(entry));
  }
  return OkStatus();
}

}  // namespace

std::string BucketKeyName(uint64_t key) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(key));
  return text;
}

StatusOr<ResidualState> ParseResidualState(std::span<const std::byte> bytes) {
  if (bytes.size() < kResidualHeaderBytes + kResidualChecksumBytes) {
    return DataLoss(StrCat("residual state: expected at least ",
                           kResidualHeaderBytes + kResidualChecksumBytes, " bytes, found ",
                           bytes.size()));
  }
  const auto body = bytes.first(bytes.size() - kResidualChecksumBytes);
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
  if (magic != kResidualMagic) return DataLoss("residual state: wrong magic at offset 0");
  if (version != kResidualVersion) {
    return DataLoss(
        StrCat("residual state: version ", version, " at offset 4, expected ", kResidualVersion));
  }
  ResidualState state;
  WEIR_RETURN_IF_ERROR(ReadEntries(reader, count, &state.entries));
  WEIR_RETURN_IF_ERROR(ReadCodecStates(reader, &state.codecs));
  if (reader.remaining() > 0) {
    return DataLoss(StrCat("residual state: ", reader.remaining(), " surplus bytes at offset ",
                           reader.offset()));
  }
  return state;
}

}  // namespace weir
