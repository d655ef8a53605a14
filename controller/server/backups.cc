// SPDX-License-Identifier: Apache-2.0
#include "controller/server/backups.h"

#include <pthread.h>

#include <filesystem>
#include <fstream>

#include "datapath/base/identity/rank_proof.h"

namespace weir {

Backups::Backups(const Store& store, std::string path, const Clock& clock)
    : store_(store), path_(std::move(path)), clock_(clock) {
  Remove();
}

Backups::~Backups() { Remove(); }

void Backups::Remove() {
  if (thread_.joinable()) thread_.join();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
  id_.clear();
}

StatusOr<std::string> Backups::Start() {
  if (!id_.empty()) {
    MutexLock lock(mutex_);
    const Duration unused = clock_.Now() - used_at_;
    if (!done_ || (result_.ok() && unused < kAbandonedAfter)) {
      return FailedPrecondition(StrCat("another backup is being ", done_ ? "read" : "made",
                                       ": try again when it is done, or in ",
                                       ToSeconds(kAbandonedAfter), " s"));
    }
  }
  Remove();
  {
    MutexLock lock(mutex_);
    done_ = false;
    result_ = OkStatus();
  }
  WEIR_ASSIGN_OR_RETURN(id_, NewChallenge());
  used_at_ = clock_.Now();
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "weir-backup");
    Status made = store_.Backup(path_);
    MutexLock lock(mutex_);
    result_ = std::move(made);
    done_ = true;
  });
  return id_;
}

StatusOr<BackupContents> Backups::Read(const std::string& id, uint64_t offset) {
  if (id_.empty() || id != id_) {
    return NotFound(StrCat("no backup '", id.substr(0, 40), "': start another one"));
  }
  used_at_ = clock_.Now();
  {
    MutexLock lock(mutex_);
    if (!done_) return BackupContents{};
    if (!result_.ok()) return result_;
  }
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path_, error);
  if (error) return Unavailable(StrCat("cannot read '", path_, "': ", error.message()));
  BackupContents part{.ready = true, .bytes = bytes, .data = {}};
  if (offset >= bytes) {
    Remove();
    return part;
  }
  part.data.resize(static_cast<size_t>(std::min<uint64_t>(kPartBytesMax, bytes - offset)));
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  if (!file.read(part.data.data(), static_cast<std::streamsize>(part.data.size()))) {
    return Unavailable(StrCat("cannot read '", path_, "' from byte ", offset));
  }
  return part;
}

}  // namespace weir
