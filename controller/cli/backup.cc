// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "datapath/base/clock.h"

namespace weir::cli {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(100);

Status WriteAll(int fd, const std::string& path, const std::string& data) {
  for (size_t at = 0; at < data.size();) {
    const ssize_t written = write(fd, data.data() + at, data.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Unavailable(StrCat("cannot write '", path, "': ", strerror(errno)));
    at += static_cast<size_t>(written);
  }
  return OkStatus();
}

StatusOr<uint64_t> Fetch(Client& client, const BackupOptions& options, int fd) {
  v1::StartBackupRequest start;
  start.set_actor(options.actor);
  start.set_reason(options.reason);
  v1::StartBackupResponse started;
  WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::StartBackup, start, &started));
  v1::ReadBackupRequest ask;
  ask.set_id(started.id());
  const TimePoint deadline = RealClock().Now() + FromSeconds(options.making_timeout_s);
  while (true) {
    v1::BackupPart part;
    WEIR_RETURN_IF_ERROR(client.Call(&v1::AdminService::Stub::ReadBackup, ask, &part));
    if (!part.ready()) {
      if (RealClock().Now() >= deadline) {
        return DeadlineExceeded(
            StrCat("the controller has not made the copy within ", options.making_timeout_s, " s"));
      }
      std::this_thread::sleep_for(kPollInterval);
      continue;
    }
    if (part.data().empty()) {
      if (ask.offset() == part.bytes()) return ask.offset();
      return DataLoss(
          StrCat("the copy ended after ", ask.offset(), " of ", part.bytes(), " bytes"));
    }
    WEIR_RETURN_IF_ERROR(WriteAll(fd, options.file, part.data()));
    ask.set_offset(ask.offset() + part.data().size());
  }
}

}  // namespace

Status Backup(Client& client, const BackupOptions& options) {
  const std::string part = options.file + ".part";
  if (access(options.file.c_str(), F_OK) == 0) {
    return MakeStatus(StatusCode::kAlreadyExists, StrCat("there is a file '", options.file, "'"));
  }
  const int fd = open(part.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable(StrCat("cannot create '", part, "': ", strerror(errno)));
  const auto bytes = Fetch(client, options, fd);
  Status done = bytes.status();
  if (done.ok() && fsync(fd) != 0)
    done = Unavailable(StrCat("cannot write '", part, "': ", strerror(errno)));
  close(fd);
  if (done.ok() && std::rename(part.c_str(), options.file.c_str()) != 0) {
    done = Unavailable(StrCat("cannot rename '", part, "': ", strerror(errno)));
  }
  if (!done.ok()) {
    unlink(part.c_str());
    return done;
  }
  std::printf("%s: %llu bytes; bring it back with: weir-controller --state FILE --restore %s\n",
              options.file.c_str(), static_cast<unsigned long long>(*bytes), options.file.c_str());
  return OkStatus();
}

}  // namespace weir::cli
