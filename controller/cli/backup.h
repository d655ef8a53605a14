// SPDX-License-Identifier: Apache-2.0
#pragma once
// "weirctl backup": brings a copy of the controller's state here.

#include <string>

#include "controller/cli/client.h"

namespace weir::cli {

struct BackupOptions {
  std::string file;
  std::string actor, reason;  // for the audit trail
  double making_timeout_s = 300;
};

/// Writes the copy to the new file `file`, which only its owner can read, and prints how large it
/// is. A failure leaves no file. kAlreadyExists: there is such a file; kDeadlineExceeded: the
/// controller has not made the copy in time; the errors of StartBackup and ReadBackup.
Status Backup(Client& client, const BackupOptions& options);

}  // namespace weir::cli
