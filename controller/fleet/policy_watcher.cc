// SPDX-License-Identifier: Apache-2.0
#include "controller/fleet/policy_watcher.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace weir {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFilesMax = 256;
constexpr uintmax_t kFileBytesMax = 1u << 20;
constexpr int kRescanMs = 2000;
constexpr int kDebounceMs = 20;

bool IsPolicyName(const fs::path& path) {
  const std::string name = path.filename();
  if (name.empty() || name[0] == '.') return false;
  const std::string extension = path.extension();
  return extension == ".yaml" || extension == ".yml" || extension == ".json";
}

}  // namespace

StatusOr<std::map<std::string, std::string>> ReadPolicyDirectory(const std::string& directory) {
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  if (error) return NotFound(StrCat("policy directory '", directory, "': ", error.message()));
  std::map<std::string, std::string> files;
  for (const auto end = fs::directory_iterator(); entries != end; entries.increment(error)) {
    if (error) break;
    const fs::path path = entries->path();
    if (!IsPolicyName(path) || !fs::is_regular_file(path, error)) continue;
    if (files.size() >= kFilesMax) {
      return ResourceExhausted(
          StrCat("'", directory, "' holds more than ", kFilesMax, " policy files"));
    }
    const uintmax_t size = fs::file_size(path, error);
    if (!error && size > kFileBytesMax) {
      return ResourceExhausted(
          StrCat("'", path.string(), "' has ", size, " bytes, at most ", kFileBytesMax));
    }
    std::ifstream in(path, std::ios::binary);
    files[path] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

PolicyWatcher::PolicyWatcher(std::string directory, std::function<void(Contents)> changed)
    : directory_(std::move(directory)),
      changed_(std::move(changed)),
      last_(NotFound("not read yet")) {
  stop_event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  inotify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "weir-policies");
}

PolicyWatcher::~PolicyWatcher() {
  const uint64_t one = 1;
  (void)!write(stop_event_, &one, sizeof(one));
  thread_.join();
  close(stop_event_);
  if (inotify_ >= 0) close(inotify_);
}

void PolicyWatcher::Loop() {
  int watch = -1;
  while (true) {
    // The directory itself may be replaced. Its watch then ends, and a rescan renews it.
    if (watch < 0 && inotify_ >= 0) {
      watch =
          inotify_add_watch(inotify_, directory_.c_str(),
                            IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CLOSE_WRITE |
                                IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR);
    }
    Reread();
    pollfd fds[] = {{stop_event_, POLLIN, 0}, {inotify_, POLLIN, 0}};
    poll(fds, inotify_ >= 0 ? 2 : 1, kRescanMs);
    if (fds[0].revents != 0) return;
    if (fds[1].revents == 0) continue;
    // One edit causes several events, so wait for all of them before reading.
    poll(fds, 1, kDebounceMs);
    if (fds[0].revents != 0) return;
    alignas(inotify_event) char buffer[4096];
    ssize_t size = 0;
    while ((size = read(inotify_, buffer, sizeof(buffer))) > 0) {
      for (ssize_t at = 0; at + static_cast<ssize_t>(sizeof(inotify_event)) <= size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        if ((event->mask & (IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF)) != 0) watch = -1;
        at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
      }
    }
  }
}

void PolicyWatcher::Reread() {
  Contents contents = ReadPolicyDirectory(directory_);
  const bool same = contents.ok() == last_.ok() &&
                    (contents.ok() ? *contents == *last_ : contents.status() == last_.status());
  if (same && !first_) return;
  first_ = false;
  last_ = contents;
  changed_(std::move(contents));
}

}  // namespace weir
