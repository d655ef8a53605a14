// SPDX-License-Identifier: Apache-2.0
#include "datapath/base/caught.h"

#include "datapath/base/log.h"

namespace weir {

const Status& OutOfMemory() noexcept {
  // Never destroyed, because threads may use it while the process exits.
  static const Status& status = *new Status(ResourceExhausted("out of memory"));
  return status;
}

std::thread StartThread(const char* name, std::function<void()> body) {
  (void)OutOfMemory();  // made while there is enough memory
  return std::thread([name, body = std::move(body)] {
    pthread_setname_np(pthread_self(), name);
    const Status status = Caught(body);
    if (status.ok()) return;
    (void)Caught(
        [&] { Log(LogLevel::kError, name, StrCat("the thread ended: ", Message(status))); });
  });
}

}  // namespace weir
