// SPDX-License-Identifier: Apache-2.0
#pragma once
// get, describe and watch: one entry per kind of resource.

#include <string>
#include <vector>

#include "controller/cli/client.h"
#include "controller/cli/render.h"

namespace weir::cli {

struct ResourceRequest {
  std::string kind;  // "nodes", "links", "jobs", "decisions", "aggregators", "policies", or their
                     // singular
  std::string name;  // empty: all
  std::string job;   // decisions of this job
  bool plans_only = false;  // decisions that offered a plan
  uint32_t limit = 100;     // newest decisions to list; 0: all that are kept
  bool switches = false;    // Watch: only decisions that changed the plan
  Output output = Output::kTable;
};

/// Prints a list, or one item as a table row. Of an empty list it says on standard error what to
/// do. Errors: kInvalidArgument for an unknown kind (lists
/// the valid ones), kNotFound for a name.
Status Get(Client& client, const ResourceRequest& request);

/// Prints one item with everything known of it, see DescriptionOf; YAML or JSON if asked for.
Status Describe(Client& client, const ResourceRequest& request);

/// Names of all of a kind, for completion; links: the nodes that they begin at. Empty when the
/// controller does not answer or the kind is unknown.
std::vector<std::string> ResourceNames(Client& client, const std::string& kind);

/// Prints events of one kind as they happen, with their time, until the stream ends or the process
/// is interrupted. kInvalidArgument: `switches` of a kind that is not decisions.
Status Watch(Client& client, const ResourceRequest& request);

}  // namespace weir::cli
