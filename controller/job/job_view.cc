// SPDX-License-Identifier: Apache-2.0
#include "controller/job/job_view.h"

namespace weir {

std::string ProtectionText(FramesProtected protection, uint32_t unauthenticated_peers) {
  if (unauthenticated_peers > 0) return "unauthenticated";
  switch (protection) {
    case FramesProtected::kNotSaid:
      return "";
    case FramesProtected::kChecked:
      return "checked";
    case FramesProtected::kAuthenticated:
      return "authenticated";
    case FramesProtected::kEncrypted:
      return "encrypted";
  }
  return "";
}

}  // namespace weir
