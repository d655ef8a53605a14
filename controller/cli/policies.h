// SPDX-License-Identifier: Apache-2.0
#pragma once
// Commands that check, apply and end policies, and forget what is gone.

#include <string>

#include "controller/cli/client.h"
#include "controller/cli/render.h"

namespace weir::cli {

struct ApplyRequest {
  std::string file, actor;
  bool dry_run = false;
  bool differences = false;  // print only what would change
};

/// Applies a policy and prints its effect on running jobs. A dry run that finds a job without any
/// plan is kFailedPrecondition, after printing.
Status Apply(Client& client, const ApplyRequest& request, Output output);

struct DeleteRequest {
  std::string kind, name, actor;  // kind: "policy", "node" or "job"
  bool dry_run = false;           // policies only
};
Status Delete(Client& client, const DeleteRequest& request, Output output);

/// Checks a policy file by the names of this release, without a controller.
Status Validate(const std::string& file);

/// The JSON Schema of policy files with the names of this release.
std::string PolicySchemaText();

}  // namespace weir::cli
