// SPDX-License-Identifier: Apache-2.0
// The state of a Session that goes into checkpoints: residuals and momenta by parameter, and
// codecs' states by bucket. All of it runs on the caller's thread between steps, or in a step
// before its first operation, when no stage works on a bucket.

#include "datapath/base/json.h"
#include "datapath/session/session.h"

namespace weir {

std::vector<SavedCodecState> Session::SaveCodecStates() const {
  std::map<uint64_t, SavedCodecState> saved;
  const auto add = [&saved](uint64_t key, const CodecMemory& memory) {
    if (memory.whole() == nullptr) return;
    std::vector<std::byte> bytes = memory.whole()->Save();
    if (bytes.empty()) return;
    saved[key] = {key, memory.codec, memory.params, std::move(bytes)};
  };
  for (const auto& [key, restored] : restored_) add(key, restored);
  MutexLock lock(mutex_);
  for (const Bucket* bucket : buckets_.Live()) {
    add(bucket->key, bucket->codec_memory);
  }
  std::vector<SavedCodecState> ascending;
  for (auto& [key, state] : saved) ascending.push_back(std::move(state));
  return ascending;
}

StatusOr<Session::RestoredStates> Session::LoadCodecStates(
    const std::vector<SavedCodecState>& saved) const {
  RestoredStates restored;
  for (const SavedCodecState& each : saved) {
    WEIR_ASSIGN_OR_RETURN(const Codec* codec, Codecs().Find(each.codec));
    // If a world of this size does not allow the setting, no plan can ask for it either.
    if (!codec->Validate(each.params, options_.world).ok()) continue;
    EncodeContext context;
    context.params = each.params;
    context.world = options_.world;
    // The size of the bucket is not known yet. A state that does not fit its bucket is reset there.
    std::unique_ptr<CodecState> state = codec->NewState(0, context);
    const Status loaded =
        state != nullptr ? state->Load(each.bytes) : DataLoss("the codec keeps no state");
    if (!loaded.ok()) {
      return Annotate(loaded, StrCat("state of ", each.codec, " in bucket ", Hex64(each.bucket)));
    }
    CodecMemory& memory = restored[each.bucket];
    memory = {.codec = each.codec, .params = each.params};
    memory.states.push_back(std::move(state));
  }
  return restored;
}

void Session::TakeRestored(Bucket& bucket) {
  const auto found = restored_.find(bucket.key);
  if (found == restored_.end()) return;
  bucket.codec_memory = std::move(found->second);
  restored_.erase(found);
}

Status Session::CheckQuiet(const char* what) const {
  if (!step_open_ || submitted_keys_.empty()) return OkStatus();
  return FailedPrecondition(
      StrCat("state is ", what, " between steps, or before the first all-reduce of a step"));
}

StatusOr<size_t> Session::ExportState(std::span<std::byte> out) {
  WEIR_RETURN_IF_ERROR(CheckQuiet("exported"));
  WEIR_RETURN_IF_ERROR(ApplyAgreement());
  return residuals_->Export(out, SaveCodecStates());
}

StatusOr<size_t> Session::ExportBytes() {
  WEIR_RETURN_IF_ERROR(CheckQuiet("exported"));
  WEIR_RETURN_IF_ERROR(ApplyAgreement());
  return residuals_->ExportBytes(SaveCodecStates());
}

Status Session::ImportState(std::span<const std::byte> bytes) {
  WEIR_RETURN_IF_ERROR(CheckQuiet("imported"));
  WEIR_RETURN_IF_ERROR(ApplyAgreement());
  RestoredStates restored;
  WEIR_RETURN_IF_ERROR(
      residuals_->Import(bytes, [&](const std::vector<SavedCodecState>& saved) -> Status {
        WEIR_ASSIGN_OR_RETURN(restored, LoadCodecStates(saved));
        return OkStatus();
      }));
  restored_ = std::move(restored);
  MutexLock lock(mutex_);
  for (Bucket* bucket : buckets_.Live()) {
    bucket->codec_memory = {};
    TakeRestored(*bucket);
  }
  return OkStatus();
}

Status Session::ScaleState(double factor) {
  WEIR_RETURN_IF_ERROR(CheckQuiet("scaled"));
  WEIR_RETURN_IF_ERROR(ApplyAgreement());
  WEIR_RETURN_IF_ERROR(residuals_->Scale(factor));
  for (auto& [key, restored] : restored_) restored.Scale(factor);
  MutexLock lock(mutex_);
  for (Bucket* bucket : buckets_.Live()) {
    bucket->codec_memory.Scale(factor);
  }
  return OkStatus();
}

}  // namespace weir
