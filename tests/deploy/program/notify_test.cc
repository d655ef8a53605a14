// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>

namespace weir {
namespace {

// A datagram socket with this name, as a service manager has it, and what comes to it.
class Manager {
 public:
  explicit Manager(const std::string& name) : descriptor_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name.front() == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), length), 0);
  }
  ~Manager() { close(descriptor_); }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // The message that has come; empty if none has.
  std::string Received() const {
    std::array<char, 64> bytes{};
    const ssize_t count = recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return count > 0 ? std::string(bytes.data(), static_cast<size_t>(count)) : "";
  }

 private:
  int descriptor_;
};

TEST(NotifyTest, SaysReadyToAPathAndToAnAbstractName) {
  const std::string process = std::to_string(getpid());
  const auto path = std::filesystem::temp_directory_path() / ("weir-notify-" + process);
  for (const std::string& name : {path.string(), "@weir-notify-" + process}) {
    const Manager manager(name);
    EXPECT_TRUE(NotifyReady(name.c_str()).ok());
    EXPECT_EQ(manager.Received(), "READY=1");
    EXPECT_EQ(manager.Received(), "");
  }
  std::filesystem::remove(path);
}

TEST(NotifyTest, SaysNothingWhereNobodyAsked) {
  EXPECT_TRUE(NotifyReady(nullptr).ok());
  EXPECT_TRUE(NotifyReady("").ok());
}

TEST(NotifyTest, RefusesWhatIsNoNameAndReportsThatNobodyReads) {
  EXPECT_EQ(NotifyReady("relative").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(NotifyReady(("/" + std::string(107, 'a')).c_str()).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(NotifyReady("/nonexistent/weir-notify").code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weir
